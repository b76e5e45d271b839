"""From a divided graph to what the printer takes."""

from __future__ import annotations

import re
from dataclasses import replace
from weakref import WeakKeyDictionary

from torch.fx import GraphModule, Node

from specc.backends.printing.literals import comment_text
from specc.backends.printing.naming import is_automatic, wanted_name
from specc.backends.printing.regions import Generated, Plan, RegionCall, Unit, planned
from specc.backends.triton.kernels import region_math
from specc.backends.triton.regions import host
from specc.backends.triton.regions.effects import Touched, launches_nothing, root, touched
from specc.backends.triton.regions.region import INDENT, Emitted, Region
from specc.backends.triton.regions.schedule import Level, plan_level
from specc.ir import ops
from specc.ir.edit import is_impure

IMPORTS = {
    "triton": "import triton",
    "tl": "import triton.language as tl",
    "Tensor": "from torch import Tensor",
    "torch": "import torch",
}
FOLLOWING = frozenset({ops.commit_pages_layers_, ops.commit_path_layers_, ops.conv_commit_layers_})
"""Ops whose kernels wait for the kernel in front of them before all else, and let the next one start only then."""
HOST = (host.dense, host.frequencies, host.beside)
_DONE: WeakKeyDictionary[GraphModule, tuple[str, Plan]] = WeakKeyDictionary()


def plan(module: GraphModule) -> Plan:
    """The plan of one graph; loop bodies are graphs of their own. Equal graphs give equal source."""
    text = str(module.graph)
    known = _DONE.get(module)
    if known is None or known[0] != text:
        known = _DONE[module] = (text, _made(plan_level(module)))
    return known[1]


def _made(level: Level) -> Plan:
    units: list[Unit] = []
    ahead: Node | None = None
    for unit in level.order:
        if isinstance(unit, Region):
            emitted = level.emitted[unit]
            beside = ahead is not None and _apart(unit, emitted, touched(ahead))
            units.append(_call(unit, _late(emitted) if beside else emitted))
            ahead = None
        else:
            units.append(unit)
            if not launches_nothing(unit):
                ahead = unit if unit.target in FOLLOWING else None
    return planned(units)


def _apart(region: Region, emitted: Emitted, other: Touched) -> bool:
    """Whether a region neither reads nor writes what another call writes, nor writes what that reads."""
    written = {item for node in region.nodes for item in touched(node).writes}
    read = {root(item) for item in emitted.inputs}
    return not (other.writes & (read | written) or other.reads & written)


def _late(emitted: Emitted) -> Emitted:
    """The kernel beside the launch in front of it: it waits for that one when its own work is done.

    It starts when all programs of that launch are behind their own wait: what stands before is complete then. It ends
    behind that launch, so that whoever waits for this kernel has waited for both.
    """
    wait = f"{INDENT}{region_math.follow.fn.__name__}()"
    assert emitted.kernel.count(wait) == 1
    lines = [line for line in emitted.kernel.splitlines() if line != wait]
    return replace(emitted, kernel="\n".join([*lines, wait]))


def _call(region: Region, emitted: Emitted) -> RegionCall:
    # The Python functions behind the device functions.
    functions = [getattr(function, "fn", function) for function in emitted.helpers]
    functions += [function for function in HOST if f"{function.__name__}(" in emitted.host]
    source = "\n".join([*_origin(region), emitted.kernel, "", "", emitted.host])
    made = Generated(_base(region), source, tuple(functions), IMPORTS)
    items = tuple(user for node in region.nodes for user in node.users if isinstance(node.meta.get("val"), tuple))
    impure = any(is_impure(node) for node in region.nodes)
    return RegionCall((*region.nodes, *items), emitted.inputs, emitted.outputs, made, impure)


def _base(region: Region) -> str:
    """A name: after the last result that its author named."""
    named = [node for node in (region.outputs or region.nodes) if not is_automatic(node)]
    node: Node = named[-1] if named else region.nodes[-1]
    return f"fused_{re.sub(r'(_[0-9]+)+$', '', wanted_name(node).lower().strip('_'))}"


def _origin(region: Region) -> list[str]:
    """A comment with the spec keys and passes that the nodes come from."""
    keys = dict.fromkeys(key for node in region.nodes for key in node.meta.get("keys", ()))
    passes = dict.fromkeys(name for node in region.nodes for name in node.meta.get("passes", ()))
    shown = ", ".join(comment_text(key) for key in keys) or "nothing"
    return [f"# Spec: {shown}", f"# Passes: {', '.join(comment_text(name) for name in passes) or 'none'}"]
