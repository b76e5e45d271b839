"""Host functions of Ascend modules: every op of a program as PyTorch calls that torchair can turn into a GE graph.

A function has exactly the signature of its op. Shapes are static, nothing is read back from the device, and no address
outside its operand is formed, also for rows that count for nothing: GE leaves those undefined. See `table` for what
stands for which op, and for the aten ops that GE has no form of.
"""
