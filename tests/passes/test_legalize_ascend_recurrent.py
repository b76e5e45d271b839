"""legalize-ascend takes the recurrent operator where it is allowed, and says why not where it isn't."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from specc.driver import lower_spec, run_passes
from specc.ir import ops
from specc.ir.edit import modules
from specc.ir.parser import parse_program
from specc.ir.printer import print_program
from specc.manager import Note
from specc.passes.legalize_ascend import illegal
from specc.program import DecodeProgram, input_ports, output_ports
from specc.spec import LoadedSpec
from tests.backends.ascend.chain_specs import chain, hybrid, narrowed, plain

MATMULS = {ops.delta_rule, ops.delta_rule_chunk, ops.delta_rule_verify, ops.delta_rule_verify_states}


def legalized(loaded: LoadedSpec) -> tuple[DecodeProgram, list[Note]]:
    made = run_passes(loaded, lower_spec(loaded, "ascend"), target="ascend")
    return made.program, list(made.notes("legalize-ascend"))


def calls(program: DecodeProgram, step: str) -> set[Any]:
    return {node.target for item in modules(program.graphs[step]) for node in item.graph.nodes}


def said(notes: list[Note], step: str) -> str:
    """What the pass says of a step's delta rules."""
    return "\n".join(note.message for note in notes if note.graph == step and "recurrent operator" in note.message)


@pytest.mark.parametrize(
    ("loaded", "prefixes"), [(chain(), [""]), (hybrid(), ["l0_", "l1_", "l2_"])], ids=["chain", "hybrid"]
)
def test_states_of_a_chain_share_a_pool(loaded: LoadedSpec, prefixes: list[str]) -> None:
    program, notes = legalized(loaded)
    assert illegal(program) == []
    for prefix in prefixes:
        pool = program.slots[f"{prefix}state_pool"]
        assert (pool.shape[2], pool.dtype, pool.batch_dim) == (8, torch.bfloat16, 1)
        assert f"{prefix}state" not in program.slots
        assert f"{prefix}state_candidate" not in program.slots
    assert program.ranges["slot:state_row"].high == 7
    for step in ("verify", "decode"):
        assert ops.npu_recurrent_chain in calls(program, step)
        assert not calls(program, step) & MATMULS
    assert "over 8 tokens" in said(notes, "verify")
    assert "over one token" in said(notes, "decode")
    assert "a prompt may be longer" in said(notes, "prefill")
    assert parse_program(print_program(program)).slots == program.slots


def test_a_commit_moves_the_row_and_no_state() -> None:
    program, _ = legalized(chain())
    ports = input_ports(program.graphs["commit"])
    assert "slot:state_row" in ports
    assert not [name for name in ports if "pool" in name]
    assert [port.name for port in output_ports(program.graphs["commit"]) if "state" in port.name] == ["state_row"]


WIDE = {"runtime.state_dtype": "float32"}
REFUSED: Mapping[str, tuple[dict[str, Any], str, bool]] = {
    "float32 state": (WIDE, "keeps states in bfloat16, not float32", False),
    "float16 values": ({"runtime.dtype": "float16"}, "takes values in bfloat16, not float16", False),
    "a tree": ({"draft.tree": "dynamic", "draft.top_k": 3}, "follows a chain, not a tree", True),
    "8 nodes": (
        {"draft.num_speculative_tokens": 7, "draft.num_steps": 7},
        "at most 8 tokens, not 8 nodes and the one that carries the committed state on",
        True,
    ),
    "factors": ({"commit.state": "factors"}, "which a commit of snapshots takes and no other", True),
}


@pytest.mark.parametrize("case", REFUSED)
def test_where_nodes_are_matmuls_the_reason_is_noted(case: str) -> None:
    """Plain decoding takes the operator all the same, where operands allow it: one token is a chain."""
    changes, reason, decodes = REFUSED[case]
    program, notes = legalized(chain(**{key.replace(".", "__"): held for key, held in changes.items()}))
    assert reason in said(notes, "verify")
    assert ops.npu_recurrent_chain not in calls(program, "verify")
    assert (ops.npu_recurrent_chain in calls(program, "decode")) == decodes
    assert "state_pool" not in program.slots
    assert [note for note in notes if reason in note.message and not note.fired and note.keys]


def test_heads_beyond_the_operator_are_matmuls() -> None:
    wide = {"target.config.head_dim": 264, "target.config.num_heads": 1}
    _, notes = legalized(narrowed("gdn-15m-tree", wide))
    assert "at most 256 heads of at most 256 elements" in said(notes, "decode")


def test_plain_programs_update_the_committed_states() -> None:
    program, notes = legalized(plain())
    assert ops.npu_recurrent_chain in calls(program, "decode")
    assert "state" in program.slots
    assert "over one token" in said(notes, "decode")
