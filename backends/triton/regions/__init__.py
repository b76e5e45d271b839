"""Generated kernels: groups of the nodes that no hand-written kernel covers, each as one Triton kernel.

`plan(module)` divides one graph (a step, or the body of a loop) and gives what the printer needs: the order of
statements, and for each group the source of its kernel and of the function that launches it. A backend switches it on
with `Dialect(regions=plan)`.

* `partition.py` decides which nodes go together: "batch" regions with one program per batch row (integers of
  acceptance, bookkeeping, tree building, masks, positions), "token" regions with one program per token row (norms,
  rotations, gates, residuals); `schedule.py` writes them, leaves out what can't be, and finds the order to print in.
* `region.py` writes a region; `table.py` lists the nodes it knows, each file beside it the lines for a kind of node;
  `writer.py` has names, loads, stores and the shapes of blocks (`values.py`).
* `effects.py` keeps writes in order.

Views and constants belong to no region: each kernel that reads one works it out as addresses or numbers. Every node
that is work is one line, rounded as torch rounds it, so that a kernel equals the nodes one by one: bitwise for
elementwise work and integers (functions like exp as the device has them), up to the order of addition in reductions.
"""

from __future__ import annotations

from specc.backends.triton.regions.planning import plan

__all__ = ["plan"]
