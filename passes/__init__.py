"""See the package's modules; imported as `specc.passes` only."""

from __future__ import annotations

if not __name__.startswith("specc."):
    raise ImportError("import specc.passes, not passes: the top-level folder is linked into the specc package")
