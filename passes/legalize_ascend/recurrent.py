"""The delta rule of chains as the device's recurrent operator, where its contracts allow it; otherwise why not.

    value level                                                    NPU form
    o, _, S' = delta_rule(S, q, k, v, g, beta)       one token     o, P' = npu_recurrent_chain(P, …, slots(row, 1))
    o, _, states = delta_rule_verify_states(S, …)    N nodes       o, P' = npu_recurrent_chain(P, …, slots(row, N + 1))
    S' = delta_rule_chunk(S, …)                      a prompt      P' = pool_fill(P, chunk(pool_read(P, row), …))
    S' = where(count > 0, states[path[count - 1]], S)  a commit    row' = (row + count) mod (N + 1)

The operator writes the state after every token into a row of a pool and updates the pool in place, and it starts from
the row that it writes first. So a sequence's committed state and the N states of a step share a pool of N + 1 rows, a
ring: a step leaves the committed row as it is (a token with g = beta = 0 comes first), and a commit moves its number
on. No state is copied, by a step or by a commit. In a chain node i - 1 is the parent of node i, so an accepted path of
`count` nodes ends in the state `count` rows further.

Where a step's nodes are no chain, or are committed from something else than snapshots, plain decoding still takes the
operator: one token per sequence, on the committed states themselves.
"""

from __future__ import annotations

import torch
from torch.fx import Node

from specc.ir import ops
from specc.ir.dims import is_symbolic
from specc.ir.scope import named_arguments
from specc.passes.legalize_ascend.common import Plan
from specc.passes.legalize_ascend.pools import (
    FACTORS,
    VERIFIES,
    Pool,
    Rule,
    operator_of,
    pooled,
    pools_of,
    rules_of,
    through_pool,
)
from specc.program import DecodeProgram

NARROW = torch.bfloat16
MAX_TOKENS, MAX_SIZE = 8, 256


def recurrent(program: DecodeProgram, plan: Plan) -> DecodeProgram:
    """The program with the operator where it is allowed; graphs are edited in place (types are left to `retype`)."""
    rules = [rule for step, module in program.graphs.items() for rule in rules_of(step, module)]
    reasons = {rule.node: _refused(rule, program) for rule in rules}
    verifies = [rule for rule in rules if rule.node.target in VERIFIES]
    verified, pools = {rule.node for rule in verifies}, dict[str, Pool]()
    if verifies and not any(reasons[rule.node] for rule in verifies):
        pools = pools_of(program, rules, verifies)
        if not pools:
            reasons |= dict.fromkeys((rule.node for rule in verifies), "something else reads or writes its states too")
    for rule in rules:
        text, keys = reasons[rule.node], rule.node.meta.get("keys", ())
        if text:
            plan.note(rule.step, f"`{rule.node.name}` is matmuls: {text}", False, keys)
            if rule.slot in pools:
                through_pool(rule, plan, pools[rule.slot])
        else:
            name, tokens = rule.node.name, operator_of(rule, plan, pools.get(rule.slot or ""))
            over = f"over {tokens} tokens of a sequence, the first of which carries its committed state on"
            text = over if rule.node in verified else "over one token of a sequence"
            plan.note(rule.step, f"`{name}` is the recurrent operator, {text}", True, keys)
    return pooled(program, pools) if pools else program


def _unfit(node: Node) -> str:
    """Why the operator does not take these operands; empty where it does."""
    given = named_arguments(node)
    state, k, v = (given[name].meta["val"] for name in ("state", "k", "v"))
    if state.dtype != NARROW:
        return f"the recurrent operator keeps states in bfloat16, not {str(state.dtype).removeprefix('torch.')}"
    if v.dtype != NARROW:
        return f"the recurrent operator takes values in bfloat16, not {str(v.dtype).removeprefix('torch.')}"
    if max(k.shape[2], *v.shape[2:], k.shape[3]) > MAX_SIZE:
        return f"the recurrent operator has at most {MAX_SIZE} heads of at most {MAX_SIZE} elements"
    return ""


def _refused(rule: Rule, program: DecodeProgram) -> str:
    """Why a delta rule is not the operator; empty where it is."""
    node, verifies = rule.node, rule.node.target in VERIFIES
    if not verifies and (is_symbolic(rule.tokens) or rule.tokens > 1):
        return f"the recurrent operator takes at most {MAX_TOKENS} tokens of a sequence, a prompt may be longer"
    if verifies and (named_arguments(node)["parent_row"] is not None or not program.attributes.get("chain")):
        return "the recurrent operator follows a chain, not a tree"
    if verifies and rule.tokens >= MAX_TOKENS:
        taken = f"{rule.tokens} nodes and the one that carries the committed state on"
        return f"the recurrent operator takes at most {MAX_TOKENS} tokens, not {taken}"
    if verifies and node.target is not ops.delta_rule_verify_states:
        return "the recurrent operator stores a state per token, which a commit of snapshots takes and no other"
    return _unfit(node) or _read_twice(rule)


def _read_twice(rule: Rule) -> str:
    """Why the states could not be updated in place."""
    state = named_arguments(rule.node)["state"]
    if rule.slot is None or rule.place.loop is None or state.op != "placeholder" or len(state.users) != 1:
        return "the recurrent operator updates states in place, and something else reads this one too"
    if any(user.args[1] == FACTORS and user.users for user in rule.node.users):
        return "the recurrent operator does not give the corrected values u"
    return ""
