"""IR text: print -> parse -> print is a fixed point, what is read runs and equals, bad text gets a place."""

from __future__ import annotations

import math
import random
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.fx import GraphModule, symbolic_trace

from specc.diagnostics import DiagnosticError
from specc.ir.build import BodyBuilder, GraphBuilder, fake
from specc.ir.dims import BATCH, CHUNK
from specc.ir.edit import modules
from specc.ir.parser import parse_module, parse_program
from specc.ir.port import Port, ValueRange
from specc.ir.printer import fingerprint, print_module, print_program
from specc.ir.types import same_type
from specc.ir.verifier import verify
from specc.lower.assemble import lower
from specc.program import DecodeProgram, Slot, Weight
from tests.ir_graphs import assert_same_outcome, graphs
from tests.unit.decoding_fixtures import small_spec

aten = torch.ops.aten
DRAFTS: list[dict[str, Any]] = [
    {"method": "none"},
    {"method": "prompt_lookup", "tree": "chain", "num_speculative_tokens": 3},
    {"method": "prompt_lookup", "tree": "static", "choices": [[0], [1], [0, 0]]},
]


@given(graphs())
def test_what_is_read_equals_what_was_printed(module: GraphModule) -> None:
    text = print_module(module)
    made = parse_module(text)
    assert print_module(made) == text
    assert fingerprint(made) == fingerprint(module)
    verify(made)
    assert_same_outcome(module, made)
    for left, right in zip(modules(module), modules(made), strict=True):
        for old, new in zip(left.graph.nodes, right.graph.nodes, strict=True):
            assert (old.name, old.meta["keys"], old.meta["passes"]) == (new.name, new.meta["keys"], new.meta["passes"])
            assert same_type(old.meta["val"], new.meta["val"])


@given(graphs(writes=True))
def test_writing_ops_are_read_back_too(module: GraphModule) -> None:
    assert_same_outcome(module, parse_module(print_module(module)))


@pytest.mark.parametrize("draft", DRAFTS)
def test_whole_programs_come_back(draft: dict[str, Any]) -> None:
    program = lower(small_spec(draft))
    text = print_program(program)
    made = parse_program(text)
    verify(made)
    assert print_program(made) == text
    for field in fields(DecodeProgram):
        if field.name != "graphs":
            assert getattr(made, field.name) == getattr(program, field.name), field.name
    assert list(made.slots) == list(program.slots)
    assert list(made.graphs) == list(program.graphs)


def tiny(**changes: Any) -> DecodeProgram:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((BATCH, CHUNK, 2 * BATCH), torch.float32), Port("slot", "x"))
    module = b.output([b.call(aten.mul.Tensor, x, 2)], [Port("slot", "x")])
    slot = Slot("x", (BATCH, CHUNK, 2 * BATCH), torch.float32, "committed", "")
    return replace(DecodeProgram("tiny", {"x": slot}, {}, {"flush": module}), **changes)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.text(), st.dictionaries(st.text(), PLAIN, max_size=3), st.text())
def test_any_text_and_any_plain_data_survives(name: str, attributes: dict[str, Any], doc: str) -> None:
    slot = replace(tiny().slots["x"], doc=doc, alias=name)
    program = tiny(name=name, attributes=attributes, slots={"x": slot})
    made = parse_program(print_program(program))
    assert (made.name, made.attributes, made.slots) == (name, attributes, program.slots)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3))
@example(["a;b", "c, d", "#", "keys: x", '"'])
def test_any_spec_key_survives(keys: list[str]) -> None:
    program = tiny()
    node = next(node for node in program.graphs["flush"].graph.nodes if node.op == "call_function")
    node.meta["keys"] = tuple(keys)
    made = parse_program(print_program(program))
    read = next(node for node in made.graphs["flush"].graph.nodes if node.op == "call_function")
    assert read.meta["keys"] == tuple(keys)


@pytest.mark.parametrize(
    "value",
    [
        *(0, -3, 2**63 - 1, 1.5, -1e-30, math.inf, -math.inf, True, None, 'a"b\n%x # {', [], [1, [2.0]], (1,), ()),
        *(torch.float32, torch.bool, torch.uint16, torch.strided, torch.contiguous_format, torch.device("cuda", 1)),
        *({"k": [1, None]}, slice(None, 2, 3), ...),
    ],
)
def test_every_kind_of_argument_survives(value: Any) -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((2,), torch.float32))
    b.graph.create_node("call_function", aten.add.Tensor, (x, value), {"alpha": value}, "y").meta.update(
        val=fake((2,), torch.float32), keys=(), passes=()
    )
    made = parse_module(print_module(b.output([x])))
    node = next(node for node in made.graph.nodes if node.name == "y")
    assert node.args[1] == value
    assert type(node.kwargs["alpha"]) is type(node.args[1])


def test_slots_weights_and_ranges_survive_with_every_field() -> None:
    slots = {
        "x": tiny().slots["x"],
        "f": Slot("f", (BATCH,), torch.bool, "control", "", fill=True),
        "g": Slot("g", (2, BATCH), torch.float64, "rng", "", fill=-0.5, batch_dim=1, alias="elsewhere"),
    }
    weights = {
        "w": Weight("w", (4, 4), torch.bfloat16, ("a.weight", "b.weight"), layers=3, model="draft"),
        "v": Weight("v", (4,), torch.float16, ("v",), form="plus_one"),
        "e": Weight("e", (8, 4), torch.float32, ("{layer}{expert}",), layers=2, first_layer=1, layer_step=3, experts=2),
    }
    ranges = {"slot:x": ValueRange(-1, 4, "pad"), "input:y": ValueRange(0, BATCH)}
    program = tiny(slots=slots, weights=weights, ranges=ranges, properties=frozenset({"B", "A"}))
    made = parse_program(print_program(program))
    assert (made.slots, made.weights, made.ranges, made.properties) == (slots, weights, ranges, {"A", "B"})
    text = print_program(program)
    for record in (Slot, Weight, ValueRange):
        for field in fields(record):
            if field.name not in ("name", "shape", "dtype", "low", "high"):
                assert f"{field.name}=" in text, f"{record.__name__}.{field.name} is not printed"


def test_the_fingerprint_ignores_comments_and_nothing_else() -> None:
    program = tiny()
    node = next(node for node in program.graphs["flush"].graph.nodes if node.op == "call_function")
    before = fingerprint(program)
    node.meta["keys"], node.meta["passes"] = ("other",), ("p",)
    assert fingerprint(program) == before
    node.args = (node.args[0], 3)
    assert fingerprint(program) != before
    assert fingerprint(tiny(ranges={"slot:x": ValueRange(0, 1)})) != before


def test_loops_are_indented_blocks_with_one_op_per_line() -> None:
    b = GraphBuilder(("verify",))
    x = b.placeholder("x", fake((3, BATCH), torch.float32))
    body = BodyBuilder("layer", carried={}, sliced={"s": x}, invariant={}, keys=("verify.attention",))
    out = body.close(b, 3, [body.call(aten.neg.default, body["s"])], "rows")
    assert print_module(b.output(out)).splitlines() == [
        "specc-ir 1",
        "graph main {",
        "  %x: f32[3,B] = param  # keys: verify; passes: lower",
        "  %rows: (f32[3,B]) = loop layer trip=3 carried=[] sliced=[%x] invariant=[] @rows_body {"
        "  # keys: verify; passes: lower",
        "    %index: int = index  # keys: verify.attention; passes: lower",
        "    %s: f32[B] = slice  # keys: verify.attention; passes: lower",
        "    %neg_default: f32[B] = aten.neg(%s)  # keys: verify.attention; passes: lower",
        "    return (%neg_default,)  # passes: lower",
        "  }",
        "  %getitem: f32[3,B] = %rows[0]  # keys: verify; passes: lower",
        "  return (%getitem,)  # passes: lower",
        "}",
    ]


def test_a_users_function_prints_but_says_that_it_can_not_be_read() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x).view(-1)

    text = print_module(symbolic_trace(function))
    assert 'method"view"(%relu, -1)' in text
    with pytest.raises(DiagnosticError) as caught:
        parse_module(text)
    assert caught.value.diagnostics[0].code in ("SPC301", "SPC302")


GRAPH = """specc-ir 1
graph main {
  %x: f32[4] = param
  %y: f32[4] = aten.neg(%x)
  return (%y,)
}
"""


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("specc-ir 1", "specc-ir 2", "SPC300", 1),
        ("specc-ir 1", "graph", "SPC300", 1),
        ("aten.neg", "aten.nag", "SPC302", 4),
        ("aten.neg", "os.system", "SPC302", 4),
        ("aten.neg", "aten.__class__", "SPC302", 4),
        ("aten.neg", "operator.attrgetter", "SPC302", 4),
        ("aten.neg(%x)", "aten.neg(%z)", "SPC302", 4),
        ("aten.neg(%x)", "aten.neg(%x", "SPC301", 4),
        ("aten.neg(%x)", "aten.neg(torch.load)", "SPC302", 4),
        ("aten.neg(%x)", "aten.neg(slice(1, 2))", "SPC301", 4),
        ("aten.neg(%x)", "aten.neg({[1]: 2})", "SPC301", 4),
        ("aten.neg(%x)", 'aten.neg("\\q")', "SPC301", 4),
        ("aten.neg(%x)", 'aten.neg(device("nowhere"))', "SPC302", 4),
        ("aten.neg(%x)", "aten.neg(" + "[" * 5000, "SPC301", 4),
        ("aten.neg(%x)", "aten.neg(" + "9" * 5000 + ")", "SPC301", 4),
        ("%y: f32[4]", "%y: f99[4]", "SPC302", 4),
        ("%y: f32[4]", "%y: f32[-4]", "SPC301", 4),
        ("%y: f32[4]", "%y: f32[4294967296,4294967296]", "SPC301", 4),
        ("%y: f32[4]", "%y: 999999999 x f32[4]", "SPC301", 4),
        ("%y: f32[4]", "%x: f32[4]", "SPC301", 4),
        ("%y: f32[4]", "%def: f32[4]", "SPC301", 4),
        ("%y: f32[4] =", "%y f32[4] =", "SPC301", 4),
        ("return (%y,)", "", "SPC301", 6),
        ("(%y,)\n}\n", "(%y,)\n", "SPC301", 6),
        ("}\n", "}\nmore\n", "SPC301", 7),
        ("%y,", "§", "SPC301", 5),
    ],
)
def test_bad_text_gets_a_code_and_a_place(old: str, new: str, code: str, line: int) -> None:
    assert old in GRAPH
    with pytest.raises(DiagnosticError) as caught:
        parse_module(GRAPH.replace(old, new, 1), "bad.ir")
    found = caught.value.diagnostics[0]
    assert found.code == code
    assert found.span is not None
    assert (found.span.file, found.span.line) == ("bad.ir", line)


@pytest.mark.parametrize(
    "line",
    [
        *("slot x: f32[4]", 'slot x: f32[4] role=king fill=0 batch_dim=0 doc=""', "slot x: int role=rng"),
        *("weight w: f32[4] model=other sources=[]", "weight w: f32[4] model=target sources=[1]", "nonsense x"),
        *('range "a" = [1]', 'range "a" = [1, 2] sentinel=king', "attribute a", "attribute a = %x", "properties"),
    ],
)
def test_bad_declarations_are_refused(line: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        parse_program(f'specc-ir 1\nprogram "p"\n{line}\n')
    assert caught.value.diagnostics[0].code in ("SPC301", "SPC302")


def test_random_damage_never_gives_anything_but_a_diagnostic() -> None:
    text = print_module(lower(small_spec(DRAFTS[1])).graphs["verify"])
    generator = random.Random(0)
    alphabet = 'ax%@{}[]()=,:.#" \n019-'
    codes: list[str] = []
    for _ in range(60):
        at = generator.randrange(len(text))
        cut = generator.choice([0, 1, 30])
        damaged = text[:at] + generator.choice(alphabet) + text[at + cut :]
        try:
            parse_module(damaged if generator.random() < 0.5 else damaged[: at + 50])
        except DiagnosticError as problem:
            codes.append(problem.diagnostics[0].code)
    assert set(codes) <= {"SPC300", "SPC301", "SPC302"}
    assert len(codes) > 30
