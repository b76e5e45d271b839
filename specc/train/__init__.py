"""Training of the small models that the project ships: corpus, tokenizer, training model, loop, baseline, export."""

from __future__ import annotations
