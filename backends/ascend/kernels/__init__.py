"""Kernels for triton-ascend. They import Triton alone, so that its compiler can read them in its own environment."""
