"""The reference backend: one standalone, readable PyTorch module per spec, printed from the FX step graphs."""

from __future__ import annotations
