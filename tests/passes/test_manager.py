"""The pipeline: order, promises, honesty of `changed`, dumps, options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import pytest
import torch

from specc import manager
from specc.diagnostics import DiagnosticError, Span
from specc.ir.build import GraphBuilder, fake
from specc.ir.dims import BATCH
from specc.ir.parser import parse_program
from specc.ir.port import Port
from specc.ir.printer import print_program
from specc.manager import (
    ALL_PROPERTIES,
    Note,
    Pass,
    PassContext,
    PassResult,
    Pipeline,
    predicate,
)
from specc.pass_options import from_options, to_options
from specc.program import INDEX_SAFE, LAYER_MAJOR, TREE_MASKED, DecodeProgram, Slot

aten = torch.ops.aten


def program(step: int = 1) -> DecodeProgram:
    b = GraphBuilder(("verify",))
    length = b.placeholder("length", fake((BATCH,), torch.int64), Port("slot", "length"))
    module = b.output([b.call(aten.add.Tensor, length, step)], [Port("slot", "length")])
    return DecodeProgram("p", {"length": Slot("length", (BATCH,), torch.int64, "committed", "")}, {}, {"flush": module})


@dataclass(frozen=True, slots=True)
class Nothing(Pass):
    """Returns the program as it is, and says what it is told to."""

    name: ClassVar[str] = "nothing"
    preserves: ClassVar[frozenset[str]] = ALL_PROPERTIES
    lie: bool = False

    def run(self, program: DecodeProgram, ctx: PassContext) -> PassResult:
        return PassResult(program, self.lie, (Note(self.name, "flush", "nothing to do", fired=False),))


@dataclass(frozen=True, slots=True)
class AddMore(Pass):
    """Changes the program; establishes INDEX_SAFE; loses everything else."""

    name: ClassVar[str] = "add-more"
    establishes: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE})
    step: int = 2
    silent: bool = False
    mode: Literal["fast", "slow"] = "fast"
    names: tuple[str, ...] = ()
    limit: float | None = None

    def run(self, given: DecodeProgram, ctx: PassContext) -> PassResult:
        return PassResult(given.with_graphs(flush=program(self.step).graphs["flush"]), not self.silent)


@dataclass(frozen=True, slots=True)
class NeedsSafe(Nothing):
    """Requires INDEX_SAFE and TREE_MASKED."""

    name: ClassVar[str] = "needs-safe"
    requires: ClassVar[frozenset[str]] = frozenset({INDEX_SAFE, TREE_MASKED})


@dataclass(frozen=True, slots=True)
class Masks(Nothing):
    """Says that it establishes TREE_MASKED."""

    name: ClassVar[str] = "masks"
    establishes: ClassVar[frozenset[str]] = frozenset({TREE_MASKED})


@dataclass(frozen=True, slots=True)
class Breaks(Pass):
    """Returns a graph whose recorded type is wrong."""

    name: ClassVar[str] = "breaks"

    def run(self, given: DecodeProgram, ctx: PassContext) -> PassResult:
        made = program(3)
        for node in made.graphs["flush"].graph.nodes:
            if node.op == "call_function":
                node.meta["val"] = fake((BATCH, 2), torch.int64)
        return PassResult(made, True)


@pytest.fixture(autouse=True)
def predicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Properties of these tests: INDEX_SAFE always holds, TREE_MASKED needs a slot `mask`."""
    monkeypatch.setattr(manager, "PREDICATES", {})
    predicate(INDEX_SAFE)(lambda given: [])
    predicate(TREE_MASKED)(lambda given: [] if "mask" in given.slots else ["no slot `mask`"])


def codes(caught: pytest.ExceptionInfo[DiagnosticError]) -> list[str]:
    return [item.code for item in caught.value.diagnostics]


def test_a_pipeline_runs_in_order_and_records_what_happened() -> None:
    result = Pipeline((AddMore(step=5), Nothing())).run(program())
    assert [(record.name, record.changed) for record in result.records] == [("add-more", True), ("nothing", False)]
    assert result.program.properties == {INDEX_SAFE}
    assert result.notes("nothing")[0].message == "nothing to do"
    assert result.records[0].fingerprint == result.records[1].fingerprint


def test_what_a_pass_does_not_preserve_is_gone_only_if_it_changed_something() -> None:
    mask = Slot("mask", (BATCH,), torch.bool, "control", "")
    given = replace(program(), slots={**program().slots, "mask": mask}, properties=frozenset({TREE_MASKED}))
    assert Pipeline((AddMore(),)).run(given).program.properties == {INDEX_SAFE}
    assert Pipeline((AddMore(step=1, silent=True),)).run(given).program.properties == {TREE_MASKED, INDEX_SAFE}


def test_a_wrong_order_is_refused_before_anything_runs_and_names_who_lost_the_property() -> None:
    given = replace(program(), properties=frozenset({TREE_MASKED}))
    with pytest.raises(DiagnosticError) as caught:
        Pipeline((Breaks(), AddMore(), NeedsSafe())).run(given)
    assert codes(caught) == ["SPC250"]
    assert "requires TREE_MASKED, but `breaks` loses it" in caught.value.diagnostics[0].message


def test_a_missing_pass_is_refused_with_every_missing_property() -> None:
    with pytest.raises(DiagnosticError) as caught:
        Pipeline((NeedsSafe(), AddMore())).check_order()
    assert codes(caught) == ["SPC250", "SPC250"]
    assert "put `add-more` before it" in caught.value.diagnostics[0].help


def test_a_list_of_passes_is_blamed_at_its_place_and_told_what_to_add() -> None:
    place = Span("demo.yaml", 9, 1, 7, "passes: [add-more]")
    with pytest.raises(DiagnosticError) as caught:
        Pipeline((NeedsSafe(),)).check_order(span=place, available=(AddMore,))
    finding = caught.value.diagnostics[0]
    assert finding.span == place
    assert finding.help == "add `add-more` before it, or drop this one"


def test_a_false_promise_is_found_on_the_result() -> None:
    with pytest.raises(DiagnosticError) as caught:
        Pipeline((Masks(),)).run(program())
    assert codes(caught) == ["SPC910"]
    assert "no slot `mask`" in caught.value.diagnostics[0].notes


def test_properties_that_survive_to_the_end_are_checked_there() -> None:
    @dataclass(frozen=True, slots=True)
    class Drops(Pass):
        name: ClassVar[str] = "drops"
        preserves: ClassVar[frozenset[str]] = ALL_PROPERTIES

        def run(self, given: DecodeProgram, ctx: PassContext) -> PassResult:
            return PassResult(replace(given, slots={"length": given.slots["length"]}), True)

    mask = Slot("mask", (BATCH,), torch.bool, "control", "")
    given = replace(program(), slots={**program().slots, "mask": mask})
    assert Pipeline((Masks(),)).run(given).program.properties == {TREE_MASKED}
    with pytest.raises(DiagnosticError) as caught:
        Pipeline((Masks(), Drops())).run(given)
    assert codes(caught) == ["SPC910"]


def test_a_property_without_a_predicate_is_an_error() -> None:
    @dataclass(frozen=True, slots=True)
    class Unchecked(Nothing):
        establishes: ClassVar[frozenset[str]] = frozenset({LAYER_MAJOR})

    with pytest.raises(ValueError, match="LAYER_MAJOR has no predicate"):
        Pipeline((Unchecked(),)).run(program())


@pytest.mark.parametrize("item", [Nothing(lie=True), AddMore(silent=True)])
def test_a_pass_that_misreports_whether_it_changed_anything_is_found(item: Pass) -> None:
    with pytest.raises(DiagnosticError) as caught:
        Pipeline((item,)).run(program())
    assert codes(caught) == ["SPC911"]


def test_the_verifier_names_the_pass_that_broke_the_program() -> None:
    with pytest.raises(DiagnosticError) as caught:
        Pipeline((Nothing(), Breaks())).run(program())
    assert "SPC312" in codes(caught)
    assert "found after pass `breaks`" in caught.value.diagnostics[0].notes
    assert Pipeline((Breaks(),)).run(program(), PassContext(verify=False)).records[0].changed


@pytest.mark.parametrize("honest", [False, True])
def test_a_pass_that_edits_its_input_in_place_is_found(honest: bool) -> None:
    @dataclass(frozen=True, slots=True)
    class InPlace(Pass):
        name: ClassVar[str] = "in-place"

        def run(self, given: DecodeProgram, ctx: PassContext) -> PassResult:
            for node in given.graphs["flush"].graph.nodes:
                if node.op == "call_function":
                    node.args = (node.args[0], 77)
            return PassResult(given, honest)

    with pytest.raises(DiagnosticError) as caught:
        Pipeline((InPlace(),)).run(program())
    assert codes(caught) == ["SPC912" if honest else "SPC911"]


def test_a_dump_leaves_none_of_an_earlier_one(tmp_path: Path) -> None:
    """A longer pipeline's later stages would look like this one's; files of others stay."""
    (tmp_path / "notes.ir").write_text("mine", encoding="utf-8")
    Pipeline((AddMore(), Nothing())).run(program(), PassContext(dump=tmp_path))
    Pipeline((Nothing(),)).run(program(), PassContext(dump=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00-lower.ir", "01-nothing.ir", "notes.ir"]


def test_dumps_are_numbered_readable_and_complete(tmp_path: Path) -> None:
    result = Pipeline((AddMore(), Nothing())).run(program(), PassContext(dump=tmp_path / "ir"))
    names = sorted(path.name for path in (tmp_path / "ir").iterdir())
    assert names == ["00-lower.ir", "01-add-more.ir", "02-nothing.ir"]
    last = (tmp_path / "ir" / "02-nothing.ir").read_text()
    assert last == print_program(result.program)
    assert parse_program(last).properties == {INDEX_SAFE}


def test_until_stops_after_a_pass_and_knows_the_passes() -> None:
    pipeline = Pipeline((AddMore(), Nothing()))
    assert [record.name for record in pipeline.run(program(), until="add-more").records] == ["add-more"]
    assert pipeline.run(program(), until="lower").records == ()
    with pytest.raises(DiagnosticError) as caught:
        pipeline.run(program(), until="other")
    assert codes(caught) == ["SPC251"]


AVAILABLE: dict[str, type[Pass]] = {"add-more": AddMore, "nothing": Nothing}


def test_options_go_to_a_pass_and_back() -> None:
    options = {"step": 4, "silent": True, "mode": "slow", "names": ["a", "b"], "limit": 2}
    made = from_options("add-more", options, AVAILABLE)
    assert made == AddMore(step=4, silent=True, mode="slow", names=("a", "b"), limit=2)
    assert to_options(made) == options
    assert from_options("add-more", to_options(AddMore()), AVAILABLE) == AddMore()


@pytest.mark.parametrize(
    "options",
    [
        *({"step": True}, {"step": 1.5}, {"step": "4"}, {"silent": 1}, {"mode": "medium"}, {"names": "ab"}),
        *({"names": [1]}, {"limit": "no"}, {"limit": True}, {"speed": 3}),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(DiagnosticError) as caught:
        from_options("add-more", options, AVAILABLE)
    assert codes(caught) == ["SPC252"]


def test_an_unknown_pass_gets_a_suggestion() -> None:
    with pytest.raises(DiagnosticError) as caught:
        from_options("add-mor", {}, AVAILABLE)
    assert codes(caught) == ["SPC251"]
    assert caught.value.diagnostics[0].help == "did you mean `add-more`?"
