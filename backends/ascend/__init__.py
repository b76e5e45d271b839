"""The Ascend target: modules for torchair's graph mode, and the means to check them without an NPU."""
