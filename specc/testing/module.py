"""Check a generated module that you already have: `check_module(module)`.

    import my_module
    from specc.testing.module import check_module

    def test_my_module():
        check_module(my_module, max_examples=30)

The module is compared with the naive program of its own SPEC in the interpreter, with plain decoding of whole texts,
and with itself (rows alone, prompts split), with random weights of its own geometry. It must compute in float64, so
that rounding decides nothing: compile the same spec with `--set runtime.dtype=float64`, and with fewer layers if it is
large.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specc.check import Report, Workbench, run
from specc.check.machines import Generated
from specc.check.subject import Subject
from specc.check.variations import Variation
from specc.check.weights import program_weights
from specc.ir.dims import BATCH
from specc.program import Slot
from specc.spec import LoadedSpec, from_mapping

AGAINST = ("oracle", "naive", "twins")


def module_spec(module: Any) -> LoadedSpec:
    """The spec in a module's SPEC. Raises ValueError unless it computes in float64."""
    mapping = {key: value for key, value in module.SPEC.items() if key != "backend"}
    loaded = from_mapping(mapping)
    if loaded.spec.runtime.dtype != "float64":
        dtype = loaded.spec.runtime.dtype
        raise ValueError(f"the module computes in {dtype}: compile its spec with --set runtime.dtype=float64")
    return loaded


def module_subject(module: Any, loaded: LoadedSpec, seed: int = 0) -> Subject:
    """What checks run on: the module with random weights, its spec's naive program, plain decoding."""
    subject = Subject(Variation("the module", loaded), seed)
    layouts = {layout.name: layout for layout in module.WEIGHTS}
    weights = module.Weights(**program_weights(layouts, subject.naive, subject.weights))
    slots = {
        name: Slot(name, _shape(layout.shape), layout.dtype, "control", "", layout.fill, layout.batch_dim)
        for name, layout in module.SLOTS.items()
    }
    subject.__dict__["generated"] = Generated("module", module, slots, weights)
    return subject


def _shape(sizes: Iterable[int]) -> tuple[int, ...]:
    """A slot's shape, -n standing for n times the batch."""
    return tuple(-size * BATCH if size < 0 else size for size in sizes)


def module_report(
    module: Any, max_examples: int = 50, invariants: Iterable[str] | None = None, seed: int = 0
) -> Report:
    """Like `specc.check.run`, for one module."""
    loaded = module_spec(module)
    subject = module_subject(module, loaded, seed)
    bench = Workbench.around(subject)
    return run(loaded, max_examples, invariants, seed, judge=False, bench=bench, against=AGAINST, once=False)


def check_module(module: Any, max_examples: int = 50, invariants: Iterable[str] | None = None, seed: int = 0) -> None:
    """Raise AssertionError with the counterexample drawn as a tree, if an invariant does not hold for `module`."""
    report = module_report(module, max_examples, invariants, seed)
    if not report.ok:
        raise AssertionError(report.as_text("the module's spec"))
