"""Writing by index: Scatter and ScatterNdUpdate (in place), ScatterElements (a new tensor)."""

from __future__ import annotations

import torch

from specc.backends.ascend.harness.evaluator.gather import checked_index
from specc.backends.ascend.harness.evaluator.node import Node, documented, operator
from specc.backends.ascend.semantics.scatter import scatter_nd_update_, scatter_update_


@operator("Scatter", inputs=("var", "indices", "updates"), attributes={"reduce": ("update",), "axis": None})
def scatter(node: Node) -> torch.Tensor:
    """Rows at a start of each sequence; `var` itself changes."""
    parts = (node.tensor("var"), node.tensor("indices"), node.tensor("updates"))
    return documented(node, scatter_update_, *parts, node.attribute("axis", 0))


@operator("ScatterNdUpdate", inputs=("var", "indices", "updates"), attributes={"use_locking": (False,)})
def scatter_nd_update(node: Node) -> torch.Tensor:
    """Slices at index tuples; `var` itself changes."""
    return documented(node, scatter_nd_update_, node.tensor("var"), node.tensor("indices"), node.tensor("updates"))


@operator(
    "ScatterElements",
    inputs=("data", "indices", "updates"),
    attributes={"axis": None, "reduction": ("none", "add")},
)
def scatter_elements(node: Node) -> torch.Tensor:
    """result[index[i][j]][j] = updates[i][j] along an axis, or added to it. A place written twice is undefined
    unless values are added."""
    data, axis, updates = node.tensor("data"), node.attribute("axis", 0), node.tensor("updates")
    if data.dtype != updates.dtype or data.dtype == torch.bool:
        raise node.undefined(f"{updates.dtype} scattered into {data.dtype}")
    index = checked_index(node, node.tensor("indices"), data.shape[axis])
    adds = node.attribute("reduction", "none") == "add"
    if not adds:
        written = torch.zeros(data.shape, dtype=torch.int64).scatter_add(axis, index, torch.ones_like(index))
        if bool((written > 1).any()):
            raise node.undefined("a place is written twice")
    source = updates.expand(index.shape) if updates.dim() == 0 else updates
    return data.scatter_add(axis, index, source) if adds else data.scatter(axis, index, source)
