"""specc: a compiler that makes speculative decoding correct and fast on any accelerator."""

from __future__ import annotations

__version__ = "0.1.0"
