"""Host code of generated Triton modules: captured steps and the Decoder; copied into the module."""

from __future__ import annotations
