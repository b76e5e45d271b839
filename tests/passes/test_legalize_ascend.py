"""legalize-ascend: the same results before and after, step by step, over all shipped specs in small geometries."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx import Node

from specc.diagnostics import DiagnosticError
from specc.ir import ops
from specc.ir.edit import modules
from specc.ir.parser import parse_program
from specc.ir.printer import print_program
from specc.ir.scope import named_arguments
from specc.manager import PassContext
from specc.passes.legalize_ascend import LegalizeAscend, illegal
from specc.program import DecodeProgram
from tests.passes.npu_steps import CHUNK, LONGEST, SPECS, Pair, Twins, pair, prefill, random_tree, speculate

QUICK = {"smollm2-dynamic-tree", "eagle-pangu", "pangu-chain", "gdn-15m-tree"}
NAMES = [pytest.param(path.stem, marks=() if path.stem in QUICK else pytest.mark.slow) for path in SPECS]
Changes = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]


def changed(**sections: dict[str, Any]) -> Changes:
    """Changes of a spec's sections, in a form that can be cached by."""
    return tuple((section, tuple(keys.items())) for section, keys in sections.items())


VARIATIONS = [
    ("smollm2-dynamic-tree", changed(commit={"update": "immediate"})),
    ("smollm2-static-tree", changed(commit={"update": "deferred"})),
    ("eagle-pangu", changed(commit={"update": "immediate"}, verify={"attention": "eager"})),
    ("smollm2-rejection", changed(commit={"update": "deferred"})),
    ("qwen3-next-hybrid", changed(commit={"window": 6})),
    ("qwen3-next-hybrid", changed(commit={"update": "immediate", "window": None})),
    ("pangu-chain", changed(commit={"kv": "path_index", "update": "deferred"})),
]


def walk(twins: Twins, random: Random, steps: int) -> None:
    """A prompt, then steps, with a continued prompt, a plain step or a flush among them."""
    prefill(twins, random, least=1)
    twins.set(remaining=torch.tensor([random.choice([3, 9, 99]) for _ in range(twins.batch)]))
    for _ in range(steps):
        extra = random.choice(["", "", "prefill", "decode", "flush"])
        if extra == "prefill":
            prefill(twins, random)
        elif extra and (extra != "decode" or "recent_count" not in twins.state):
            twins.run(extra, {})
        speculate(twins, random)


def fill(twins: Twins, random: Random) -> None:
    """Steps until every row is as long as a sequence may be; nothing but that ends a row."""
    for _ in range(5):
        prefill(twins, random, least=5)
    while bool((twins.state["length"] < LONGEST).any()):
        twins.set(finished=twins.state["length"] >= LONGEST)
        speculate(twins, random)
    prefill(twins, random)
    speculate(twins, random)


@pytest.mark.parametrize("name", NAMES)
@given(random=st.randoms())
@settings(max_examples=1)
def test_steps_give_the_same_before_and_after(name: str, random: Random) -> None:
    walk(Twins(pair(name), random.randint(1, 3)), random, 2)


@pytest.mark.parametrize("name", ["smollm2-dynamic-tree", "pangu-chain"])
@given(random=st.randoms())
@settings(max_examples=1)
def test_steps_give_the_same_up_to_a_full_cache(name: str, random: Random) -> None:
    fill(Twins(pair(name), 2), random)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@given(random=st.randoms())
@settings(max_examples=1)
def test_longer_walks_give_the_same(name: str, random: Random) -> None:
    walk(Twins(pair(name), random.randint(1, 3)), random, 5)
    fill(Twins(pair(name), random.randint(1, 2)), random)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "changes"), VARIATIONS, ids=[f"{name} {changes}" for name, changes in VARIATIONS])
@given(random=st.randoms())
@settings(max_examples=1)
def test_other_commits_give_the_same(name: str, changes: Changes, random: Random) -> None:
    walk(Twins(pair(name, changes), random.randint(1, 3)), random, 4)


@pytest.mark.parametrize("name", ["eagle-pangu", "gdn-15m-tree"])
def test_a_second_run_changes_nothing(name: str) -> None:
    made = pair(name).after
    again = LegalizeAscend(prefill_chunk=CHUNK, row_multiple=1).run(made, PassContext())
    assert not again.changed
    assert again.program is made


@pytest.mark.parametrize("options", [{"prefill_chunk": -1}, {"row_multiple": 0}])
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(DiagnosticError) as caught:
        LegalizeAscend(**options).run(pair("smollm2-plain").before, PassContext())
    assert [item.code for item in caught.value.diagnostics] == ["SPC252"]


def test_caches_grow_to_what_the_scatters_need() -> None:
    both = pair("smollm2-dynamic-tree")
    nodes, path = both.after.attributes["nodes"], both.after.attributes["max_path"]
    # A drafter's rows that a prompt finds missing and the prompt; the rows of a commit and the nodes.
    wanted = LONGEST + path + max(CHUNK, nodes)
    rows = {both.after.slots[name].shape[2] for name in ("k_cache", "v_cache", "draft_k_cache", "draft_v_cache")}
    assert rows == {wanted}
    assert both.after.attributes["prefill_chunk"] == CHUNK
    aligned = LegalizeAscend(prefill_chunk=CHUNK).run(both.before, PassContext()).program
    assert aligned.slots["k_cache"].shape[2] == -(-wanted // 32) * 32


def fused_calls(program: DecodeProgram, step: str) -> list[Node]:
    return [
        node
        for body in modules(program.graphs[step])
        for node in body.graph.nodes
        if node.target is ops.npu_fused_infer_attention_score
    ]


HALF = changed(runtime={"dtype": "bfloat16"})


def test_half_precision_takes_the_fused_operator_with_a_mask_and_tensor_lengths() -> None:
    both = pair("smollm2-dynamic-tree", HALF, 16)
    for step in ("prefill", "decode", "verify"):
        (call, *_) = fused_calls(both.after, step)
        given = named_arguments(call)
        assert given["atten_mask"].meta["val"].dtype == torch.int8
        assert given["actual_seq_lengths_kv"].meta["val"].dtype == torch.int64
        assert (given["input_layout"], given["sparse_mode"], given["inner_precise"]) == ("BSND", 1, 0)
    twins = Twins(both, 2, bound=0.1)
    fixed = Random(3)
    prefill(twins, fixed, 2)
    twins.run("verify", random_tree(fixed, twins, both.before.attributes["nodes"]))
    twins.run("decode", {})


@pytest.mark.parametrize(
    ("name", "changes", "head_dim", "reason"),
    [
        ("smollm2-dynamic-tree", HALF, 8, "a head dim of 8 is not a multiple of 16"),
        ("smollm2-dynamic-tree", (), 16, "not float64"),
        ("smollm2-plain", (*HALF, *changed(verify={"attention": "eager"})), 16, "`verify.attention: eager`"),
    ],
)
def test_other_attention_says_why_it_is_not_fused(name: str, changes: Changes, head_dim: int, reason: str) -> None:
    both = pair(name, changes, head_dim)
    assert not fused_calls(both.after, "verify")
    assert any(reason in note.message and not note.fired for note in both.result.notes)


@pytest.mark.parametrize("name", NAMES)
def test_the_form_is_legal_and_its_text_reads_back(name: str) -> None:
    both: Pair = pair(name)
    assert illegal(both.after) == []
    text = print_program(both.after)
    assert print_program(parse_program(text)) == text
    left = ("tree_attention", "causal_attention", "specc.rope(", "aten.rms_norm")
    assert not [line for line in text.splitlines() for op in left if op in line]
