"""Tuning of specs: `specc tune budget` chooses the draft tree that decodes fastest on a given device.

shapes.py: the best static tree for given acceptance probabilities; evidence.py, lookup.py: what recorded drafts say of
every tree; record.py: recording them; timing.py: what a step costs; choose.py: the choice; edit.py: the written spec.
"""

from __future__ import annotations
