"""See the package's modules; imported as `specc.backends` only."""

from __future__ import annotations

if not __name__.startswith("specc."):
    raise ImportError("import specc.backends, not backends: the top-level folder is linked into the specc package")
