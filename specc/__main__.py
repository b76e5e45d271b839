"""`python -m specc`."""

from __future__ import annotations

import sys

from specc.cli import main

sys.exit(main())
