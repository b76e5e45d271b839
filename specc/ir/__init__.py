"""The torch.fx IR: ops, structured loops, builder, printer/parser, verifier, index ranges, interpreter."""

from __future__ import annotations
