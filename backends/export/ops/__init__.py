"""Plain PyTorch forms of the ops that an exporter meets: no host reads, static shapes, no writes in place."""

from __future__ import annotations
