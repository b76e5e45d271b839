"""Host code of generated Ascend modules: static graphs, their compilation, the Decoder; copied into the module."""

from __future__ import annotations
