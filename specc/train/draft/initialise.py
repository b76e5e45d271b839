"""The head before training: what of the target can stand in its place.

- fc: the ridge regression from the features to the hidden state that enters the target's last layer one position later:
  a row of the head predicts the token behind the next one, so that its layer stands where the target's last layer does.
- The decoder layer: the target's last layer where shapes agree. q, k and v read [embedding, feature]: the feature half
  is the target's, the embedding half small noise. A last layer without attention gives its norms and its MLP; the
  attention is then small noise.
- norm is the final norm; lm_head the target's output rows of the draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from specc.models.geometry import AuxFeature, Geometry
from specc.train.draft.head import EagleHead
from specc.train.draft.teacher import Target
from specc.train.draft.vocabulary import vocabulary_tables

NOISE = 0.02
RIDGE = 1e-3
Weights = Mapping[str, Tensor | tuple[Tensor, ...]]


@torch.no_grad()
def initialise(head: EagleHead, weights: Weights, geometry: Geometry, draft_ids: Tensor, seed: int) -> list[str]:
    """Fill the head from the target's `weights` (logical names) and the draft vocabulary; fc is left as noise.

    Returns the names of the tensors that come from the target.
    """
    random = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(head.named_parameters()):
        if parameter.dim() == 2:
            parameter.copy_(NOISE * torch.randn(parameter.shape, generator=random))
        elif name.endswith("bias"):
            parameter.zero_()
    taken = []
    for name, parameter in head.named_parameters():
        source = _source(name, weights, geometry)
        if source is not None and _taken(name, parameter, source, geometry):
            taken.append(name)
    output = weights["embed_tokens" if geometry.tie_word_embeddings else "lm_head"]
    assert isinstance(output, Tensor)
    head.lm_head.weight.copy_(output[draft_ids.to(output.device)])
    if hasattr(head, "d2t"):
        for name, table in vocabulary_tables(draft_ids.cpu(), geometry.vocab_size).items():
            getattr(head, name).copy_(table)
    return [*taken, "lm_head.weight"]


def _source(name: str, weights: Weights, geometry: Geometry) -> Tensor | None:
    """The target's tensor for a parameter of the head, if it has one."""
    last = geometry.num_hidden_layers - 1
    position = f"l{last % geometry.period}_" if geometry.period > 1 else ""
    *_, module, kind = name.split(".")
    if name == "norm.weight":
        found = weights.get("norm")
    elif not name.startswith("midlayer.") or module == "input_layernorm":
        return None  # the norm of embeddings, which the target does not have
    else:
        logical = "input_layernorm" if module == "hidden_norm" else module
        found = weights.get(f"{position}{logical}" + ("_bias" if kind == "bias" else ""))
        if geometry.layers[last].mixer == "delta" and ".self_attn." in name:
            return None  # projections of another mixer under the same names
    return found[-1] if isinstance(found, tuple) else found


def _taken(name: str, parameter: nn.Parameter, source: Tensor, geometry: Geometry) -> bool:
    """Copy what fits: all of it, or the feature half of q, k and v."""
    if parameter.shape == source.shape:
        offset = geometry.norm_offset if "norm" in name else 0.0
        parameter.copy_(source + offset)
        return True
    wide = parameter.dim() == 2 and parameter.shape == (source.shape[0], 2 * source.shape[1])
    if wide:
        parameter[:, source.shape[1] :].copy_(source)
    return wide


@torch.no_grad()
def initialise_fc(
    head: EagleHead, target: Target, texts: Sequence[Tensor], shown: Sequence[AuxFeature], last_layer: int
) -> str:
    """Set fc; `texts` are batches of ids [B,T] that a regression is fitted on. Returns what was done."""
    weight = head.fc.weight
    gram, moment = weight.new_zeros(weight.shape[1], weight.shape[1]), weight.new_zeros(weight.shape[1], len(weight))
    for ids in texts:
        features, _ = target.states(ids, shown)
        wanted, _ = target.states(ids, [AuxFeature(last_layer, "input")])
        x, y = (part.flatten(0, 1).to(weight.dtype) for part in (features[:, :-1], wanted[:, 1:]))
        gram += x.T @ x
        moment += x.T @ y
    gram.diagonal().add_(RIDGE * float(gram.diagonal().mean()))
    weight.copy_(torch.linalg.solve(gram.double(), moment.double()).T)
    return "ridge regression from the aux features to the input of the target's last layer one position later"
