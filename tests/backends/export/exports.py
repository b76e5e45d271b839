"""Small exports of specs, driven by the checks of `specc check`: every step runs in onnxruntime or IREE.

The checks compare each step with the naive program in the interpreter (float64) and with plain decoding of whole texts,
as they do for a module; only the step functions are the exported files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from specc.backends.export.export import Export, export_program, sizes_of
from specc.backends.export.run import open_export
from specc.check.example import AGAINST, Example, step_plans
from specc.check.findings import CheckFailure, Checks
from specc.check.machines import Generated
from specc.check.reduce import VOCABULARY, reduced_mapping
from specc.check.session import Session
from specc.check.single import Single, narrowed
from specc.check.subject import Subject
from specc.check.tally import Tally
from specc.check.variations import Variation
from specc.check.weights import program_weights
from specc.driver import module_info
from specc.spec import LoadedSpec, from_mapping, load

SPECS = Path(__file__).parents[3] / "specs"
NAMES = tuple(sorted(path.stem for path in SPECS.glob("*.yaml")))
CHUNK = 5
MAX_NODES, MAX_STEPS = 5, 3
NAIVE = AGAINST.index("naive")
BITWISE = frozenset({"I14", "I24"})
"""A verify leaves the committed state, and a finished row, bit for bit: with a commit pending, what `flush` makes of it
before and what `verify` itself has made of it after are equal. IREE contracts products and sums differently in the two
graphs (seen: one unit in the last place of float32), so this holds in the module and in onnxruntime only."""


def small(name: str) -> LoadedSpec:
    """A shipped spec, reduced as `specc check` does it and with a smaller tree."""
    mapping = reduced_mapping(load(SPECS / f"{name}.yaml", []))
    draft = mapping["draft"]
    if draft["tree"] == "static":
        choices = [path for path in draft["choices"] if len(path) <= MAX_STEPS][:MAX_NODES]
        draft |= {"choices": choices, "num_speculative_tokens": len(choices)}
        draft["num_steps"] = max(len(path) for path in choices)
    elif draft["method"] != "none":
        draft["num_speculative_tokens"] = min(draft["num_speculative_tokens"], MAX_NODES)
        draft["num_steps"] = min(draft["num_steps"], MAX_STEPS)
        if draft["tree"] == "chain":
            draft["num_speculative_tokens"] = draft["num_steps"]
    return from_mapping(mapping)


@dataclass
class Exported(Subject):
    """A subject whose module runs an export with `batch` rows."""

    batch: int = 1

    @cached_property
    def export(self) -> Export:
        """The files."""
        info = module_info(self.compiled, self.target)
        return export_program(self.target, self.final, info, self.source, sizes_of(self.final, self.batch, CHUNK))

    @cached_property
    def module(self) -> Any:
        """The module over the files."""
        return open_export(self.export.files, self.export.manifest)

    @cached_property
    def generated(self) -> Generated:
        """The export behind the interface of the checks."""
        drawn = program_weights(self.final.weights, self.naive, self.weights)
        weights = self.module.Weights(**{name: narrowed(value, "cpu") for name, value in drawn.items()})
        slots = {name: slot for name, slot in self.final.slots.items() if slot.alias is None}
        return Single(f"{self.target} export", self.module, slots, weights)

    def with_seed(self, seed: int) -> Exported:
        """The same files with other weights."""
        made = super().with_seed(seed)
        assert isinstance(made, Exported)
        made.__dict__.update({name: self.__dict__[name] for name in ("export", "module") if name in self.__dict__})
        return made


@cache
def exported(name: str, target: str, batch: int) -> Exported:
    """The export of a shipped spec, made once."""
    made = Exported(Variation(name, small(name)), 1, target=target, batch=batch)
    assert made.module is not None  # exported here, so that subjects with other weights share the files
    return made


@st.composite
def sessions(draw: st.DrawFn, rows: int) -> Example:
    """Examples of exactly `rows` rows, the exported batch; rows without a request among them."""
    token = st.integers(0, VOCABULARY - 1)
    sizes = [draw(st.sampled_from((1, 2, 5, 9) if row == 0 else (1, 3, 7, 0))) for row in range(rows)]
    prompts = tuple(tuple(draw(st.lists(token, min_size=size, max_size=size))) for size in sizes)
    limits = tuple(draw(st.sampled_from((64, 64, 9, 4))) for _ in range(rows))
    steps = draw(st.lists(step_plans(rows), min_size=2, max_size=4))
    return Example(0, prompts, draw(st.sampled_from((9, 4))), limits, tuple(steps), NAIVE)


def checks_of(target: str) -> Checks:
    """All invariants that a runtime can keep."""
    made = Checks()
    return Checks(made.selected - BITWISE) if target == "mlir" else made


def run(subject: Exported, example: Example) -> str | None:
    """Run an example; what was found, or None. A finding counts if it stands with two sets of weights: see `single`."""
    found = None
    for seed in (subject.seed, subject.seed + 1):
        try:
            Session(subject.with_seed(seed), example, checks_of(subject.target), Tally()).run()
        except CheckFailure as failure:
            found = str(failure)
        else:
            return None
    return found
