"""Children drawn without replacement from a drafter's law, and those laws by node.

The Triton backend finds these in the graphs; lowering writes them out (`specc.lower.drafts.children`).
"""

from __future__ import annotations

import torch

from specc.ir.op import op
from specc.ir.ops.draft import stable_topk
from specc.ir.ops.sampling import counter_uniform_rows


def _children_fake(
    logits: torch.Tensor,
    rng: torch.Tensor,
    position: torch.Tensor,
    draw: torch.Tensor,
    count: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    shape = (*logits.shape[:2], count)
    wide = torch.promote_types(logits.dtype, torch.float32)
    sums = logits.new_empty((*logits.shape[:2], 2), dtype=wide)
    return logits.new_empty(shape, dtype=torch.int64), logits.new_empty(shape, dtype=wide), sums


@op(
    "draw_children(Tensor logits, Tensor rng, Tensor position, Tensor draw, int count, float temperature) "
    "-> (Tensor, Tensor, Tensor)",
    fake=_children_fake,
)
def draw_children(
    logits: torch.Tensor,
    rng: torch.Tensor,
    position: torch.Tensor,
    draw: torch.Tensor,
    count: int,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`count` distinct tokens of each row's law, softmax(logits / temperature): (token, log_prob) [B,M,count], sums.

    logits [B,M,V]; rng int64 [B]; position int64 [B,M], draw int64 [B,M] or [1,M]. Drawn one after the other without
    replacement: the first by logits / temperature + Gumbel noise in float64 (Kool et al. 2019, Gumbel-top-k), where the
    noise of token j is -log(-log u_j), u = counter_uniform_rows(rng, position, draw). A token of probability 0 comes
    last and has log_prob -inf; a law that is no numbers gives NaN. sums [B,M,2]: the largest logit by temperature, and
    the sum of exp of the others' distance to it.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    scaled = logits.to(wide) / temperature
    uniform = counter_uniform_rows(rng, position, draw.expand(position.shape), logits.shape[-1])
    _, token = stable_topk(scaled - (-uniform.log()).log(), count)
    largest = scaled.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).amax(-1, keepdim=True)
    base = torch.where(largest == -torch.inf, torch.zeros_like(largest), largest)
    total = (scaled - base).exp().sum(-1, keepdim=True)
    log_prob = scaled.gather(-1, token) - largest - total.log()
    return token, log_prob, torch.cat([largest, total], -1)


def _embedded_fake(
    logits: torch.Tensor,
    rng: torch.Tensor,
    position: torch.Tensor,
    draw: torch.Tensor,
    count: int,
    temperature: float,
    table: torch.Tensor,
    place: list[int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    drawn = _children_fake(logits, rng, position, draw, count, temperature)
    return *drawn, table.new_empty((logits.shape[0], len(place), table.shape[1]))


@op(
    "draw_embedded(Tensor logits, Tensor rng, Tensor position, Tensor draw, int count, float temperature, "
    "Tensor table, int[] place) -> (Tensor, Tensor, Tensor, Tensor)",
    fake=_embedded_fake,
)
def draw_embedded(
    logits: torch.Tensor,
    rng: torch.Tensor,
    position: torch.Tensor,
    draw: torch.Tensor,
    count: int,
    temperature: float,
    table: torch.Tensor,
    place: list[int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """`draw_children`, and the rows of table [V,H] of some of the tokens: [B,len(place),H]; `place`: among the M count
    tokens of a batch row."""
    token, log_prob, sums = draw_children(logits, rng, position, draw, count, temperature)
    return token, log_prob, sums, torch.nn.functional.embedding(token.flatten(1)[:, place], table)


def _laws_fake(
    logits: list[torch.Tensor], sums: list[torch.Tensor], row: torch.Tensor, temperature: float
) -> torch.Tensor:
    wide = torch.promote_types(logits[0].dtype, torch.float32)
    return logits[0].new_empty((*row.shape, logits[0].shape[-1]), dtype=wide)


@op("drawn_laws(Tensor[] logits, Tensor[] sums, Tensor row, float temperature) -> Tensor", fake=_laws_fake)
def drawn_laws(
    logits: list[torch.Tensor], sums: list[torch.Tensor], row: torch.Tensor, temperature: float
) -> torch.Tensor:
    """The laws that nodes' children were drawn from: [B,N,V] in float32 at least, zeros where row says none.

    logits: [B,M,V] of some levels, sums: what `draw_children` has of them; row int64 [B,N]: a place among the rows of
    all levels together, or their number for a node without children.
    """
    wide = torch.promote_types(logits[0].dtype, torch.float32)
    parts = [
        (part.to(wide) / temperature - known[..., :1]).exp() / known[..., 1:]
        for part, known in zip(logits, sums, strict=True)
    ]
    rows = torch.cat([*parts, torch.zeros_like(parts[0][:, :1])], 1)
    return rows.gather(1, row.unsqueeze(-1).expand(*row.shape, rows.shape[-1]))
