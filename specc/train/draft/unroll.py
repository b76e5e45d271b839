"""Training-time test (EAGLE-3, arXiv:2503.01840, section 3.2): the head unrolled over its own outputs, for all roots.

Row t pairs position t's feature with token t + 1 and predicts token t + 2. Step 0 is the head on the target's features.
At step s row t belongs to the root t - s: its feature is the head's output of step s - 1 at row t - 1, and it sees the
step-0 rows up to its root and its own chain, row t - s + i of step i for i = 1 … s: what the compiled draft stage
computes at depth s below that root, if the drafted tokens are those of the text. Rows t < s have no root; they hold
finite numbers that nothing should read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specc.train.draft.head import EagleHead

OWN_COLUMNS = 8
"""The chain's scores take a multiple of this many columns, which keeps rows aligned for matrix products."""


def unroll(head: EagleHead, features: Tensor, ids: Tensor, steps: int) -> list[Tensor]:
    """The head's outputs before the final norm [B,T-1,H] at steps 0 … steps - 1; features [B,T,F], ids [B,T]."""
    tokens = ids[:, 1:]
    embedded = head.embed(tokens)
    rotary = head.rotary(torch.arange(tokens.shape[1], device=ids.device))
    residual = head.project(features[:, :-1])
    outputs: list[Tensor] = []
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys.append(k)
        values.append(v)
        return causal(q, k, v) if len(keys) == 1 else along_chains(q, keys, values)

    for _ in range(steps):
        outputs.append(head.midlayer(residual, embedded, rotary, attend))
        residual = shifted(outputs[-1], 1)
    return outputs


def shifted(x: Tensor, by: int) -> Tensor:
    """Row t gets row t - by; the first `by` rows are zeros. x [B,R,…]."""
    if by == 0:
        return x
    return torch.cat((torch.zeros_like(x[:, :by]), x[:, : x.shape[1] - by]), 1)[:, : x.shape[1]]


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q [B,R,Hq,D], k, v [B,R,Hkv,D]: row t sees rows up to t."""
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    return F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    ).transpose(1, 2)


def along_chains(q: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
    """Step s = len(keys) - 1: row t sees step-0 rows up to t - s and row t - s + i of each step i = 1 … s.

    q [B,R,Hq,D]; keys, values [B,R,Hkv,D] of steps 0 … s. Scores are materialised, [B,Hkv,Hq/Hkv,R,R + 8].
    """
    step, rows, dim = len(keys) - 1, q.shape[1], q.shape[-1]
    q = (q * dim**-0.5).unflatten(2, (keys[0].shape[2], -1)).permute(0, 2, 3, 1, 4)  # [B,Hkv,G,R,D]
    key, value = (x[0].transpose(1, 2).unsqueeze(2) for x in (keys, values))  # [B,Hkv,1,R,D]
    own_keys, own_values = (
        [shifted(part, step - i).transpose(1, 2).unsqueeze(2) for i, part in enumerate(x) if i] for x in (keys, values)
    )
    with torch.autocast(q.device.type, enabled=False):
        index = torch.arange(rows, device=q.device)
        hidden = index > (index - step).unsqueeze(1)
        past = products(q, key.transpose(-1, -2)).masked_fill(hidden, -torch.inf)
        own = torch.stack([(q * k).sum(-1) for k in own_keys], -1)
        pad = -own.shape[-1] % OWN_COLUMNS
        weights = torch.cat((past, F.pad(own, (0, pad), value=-torch.inf)), -1).softmax(-1)
        out = products(weights[..., :rows], value)
        for i, v in enumerate(own_values):
            out = out + weights[..., rows + i : rows + i + 1] * v
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


def products(a: Tensor, b: Tensor) -> Tensor:
    """a [B,Hkv,G,R,X] b [B,Hkv,1,X,Y] -> [B,Hkv,G,R,Y], one product per key/value head."""
    return (a.flatten(2, 3) @ b.squeeze(2)).unflatten(2, (a.shape[2], a.shape[3]))


class UnrolledLoss(nn.Module):
    """Soft cross-entropy with the target's law at chosen rows, for every step of the unrolled head."""

    def __init__(self, head: EagleHead, steps: int) -> None:
        super().__init__()
        self.head, self.steps = head, steps

    def forward(self, features: Tensor, ids: Tensor, rows: Tensor, law: Tensor, mass: Tensor) -> Tensor:
        """Sums [steps] over rows of mass * CE(law, head) in nats.

        `rows` [n] are indices into the flattened [B * (T - 1)] rows; `law` [n,Vd] is the target's law of the token that
        the row predicts, within the draft vocabulary; `mass` [n] what the draft vocabulary holds of the whole law. Rows
        that have no root at a step count nothing there (`row_weights`).
        """
        outputs = unroll(self.head, features, ids, self.steps)
        weights = row_weights(rows, mass, ids.shape[1] - 1, self.steps)
        sums = []
        for output, weight in zip(outputs, weights, strict=True):
            logits = self.head.logits(output.flatten(0, 1).index_select(0, rows)).float()
            sums.append((F.cross_entropy(logits, law, reduction="none") * weight).sum())
        return torch.stack(sums)


def row_weights(rows: Tensor, mass: Tensor, width: int, steps: int) -> Tensor:
    """Weight [steps,n] of each row at each step: its mass, or 0 where row t < step has no root."""
    step = torch.arange(steps, device=rows.device).unsqueeze(1)
    return mass * (rows % width >= step)
