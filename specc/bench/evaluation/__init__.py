"""What evaluations share: sweeps of cells, kept results, workers, prompt sets, decoding turn by turn, their metrics.

Modules that only hand out work (cells, store, pool, ray_pool, worker) import no torch, so that a worker starts at once.
"""

from __future__ import annotations
