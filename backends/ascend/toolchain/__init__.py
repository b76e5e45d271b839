"""The optional rung: triton-ascend and AscendNPU-IR, in their own environment, compile kernels as far as they can.

triton-ascend installs a package called `triton`, so it never shares an environment with the triton backend.
"""
