"""Host code that every generated module carries: edge checks, weight loading, row bookkeeping, the Decoder.

Real, linted files whose definitions are copied; `abi.py` declares what the rest of the module provides.
"""

from __future__ import annotations
