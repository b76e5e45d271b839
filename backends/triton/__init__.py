"""Triton kernels for NVIDIA GPUs of the Hopper class, and the launchers that call them.

Importing this package does not need Triton; importing `kernels` or `launch` does.
"""

from __future__ import annotations
