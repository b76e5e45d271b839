"""An EAGLE-3 head on whole texts: rows pair the target's feature at position p with the token at p + 1.

Plain torch, independent of the IR (arXiv:2503.01840, section 3.1): the aux features pass through fc, which is also the
residual stream; attention reads [norm(embedding), norm(feature)]; one decoder layer; norm; lm_head over the draft
vocabulary. Below the root, a row's feature is the head's own output at the row before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specc.check.oracle import PlainDecoding, Text
from specc.check.plain import Weights, attention, rms_norm, rotate
from specc.check.weights import PREFIX
from specc.lower.drafts.state import head_geometry
from specc.spec import Spec


@dataclass(slots=True)
class PlainHead:
    """The head of a spec, fed by plain decoding of its target."""

    spec: Spec
    target: PlainDecoding
    weights: Weights
    _logits: dict[tuple[Text, Text], list[float]] = field(default_factory=dict)

    def _weight(self, name: str) -> Tensor | None:
        value = self.weights.get(PREFIX + name)
        return value if value is None or isinstance(value, Tensor) else value[0]

    def _project(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weight(f"{name}_proj"), self._weight(f"{name}_proj_bias")
        assert weight is not None
        return x @ weight.T if bias is None else x @ weight.T + bias

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, head = self._weight(name), self.spec.eagle_geometry
        assert weight is not None
        assert head is not None
        return rms_norm(x, weight, head.rms_norm_eps)

    def features(self, text: Sequence[int]) -> Tensor:
        """The target's aux features [T,F] at every position of a text."""
        plain = self.target.forward([text])
        kinds = {"input": plain.inputs, "output": plain.outputs, "readout": plain.readouts}
        return torch.cat([kinds[feature.of][feature.layer][0] for feature in self.spec.draft.aux_features], -1)

    def rows(self, hidden: Tensor, tokens: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """The decoder layer on rows of features after fc [T,H] and tokens: outputs [T,H], K and V rows [T,Hkv,D]."""
        eagle = self.spec.eagle_geometry
        assert eagle is not None
        geometry = head_geometry(eagle)
        own = self._weight("embed_tokens")
        table = own if own is not None else self.weights["embed_tokens"]
        assert isinstance(table, Tensor)
        embedded = table[torch.tensor(list(tokens))]
        both = torch.cat([self._norm(embedded, "input_layernorm"), self._norm(hidden, "hidden_norm")], -1)[None]
        shape = (1, hidden.shape[0], -1, geometry.head_dim)
        q, k, v = (self._project(both, name).reshape(shape) for name in "qkv")
        q, k = rotate(q, geometry), rotate(k, geometry)
        x = hidden + self._project(attention(q, k, v, self.spec.draft.window), "o")[0]
        middle = self._norm(x, "post_attention_layernorm")
        gate = self._project(middle, "gate")
        return x + self._project(gate / (1 + (-gate).exp()) * self._project(middle, "up"), "down"), k[0], v[0]

    def committed(self, text: Sequence[int]) -> tuple[Tensor, Sequence[int]]:
        """What the rows of a text (its root last) pair: features after fc [T-1,H], and the tokens that follow."""
        weight, bias = self._weight("fc"), self._weight("fc_bias")
        assert weight is not None
        hidden = self.features(text[:-1]) @ weight.T
        return hidden if bias is None else hidden + bias, text[1:]

    def log_probs(self, text: Sequence[int], path: tuple[int, ...]) -> list[float]:
        """The log-probabilities over the target's vocabulary after a text and drafted tokens; -inf outside the draft
        vocabulary."""
        key = (tuple(text), path)
        if key not in self._logits:
            hidden, tokens = self.committed(text)
            out = self.rows(hidden, tokens)[0]
            for token in path:
                hidden, tokens = torch.cat([hidden, out[-1:]]), [*tokens, token]
                out = self.rows(hidden, tokens)[0]
            self._logits[key] = self._over_vocabulary(out[-1])
        return self._logits[key]

    def _over_vocabulary(self, out: Tensor) -> list[float]:
        head, offsets = self._weight("lm_head"), self._weight("d2t")
        assert head is not None
        scores: list[float] = torch.log_softmax(self._norm(out, "norm") @ head.T, -1).float().tolist()
        places = range(len(scores)) if offsets is None else [i + int(offset) for i, offset in enumerate(offsets)]
        found = [-math.inf] * self.spec.target.geometry.vocab_size
        for place, score in zip(places, scores, strict=True):
            found[place] = score
        return found
