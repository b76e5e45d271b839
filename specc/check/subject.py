"""One variation, compiled: the program after lowering and after every pass, the generated module, weights, oracles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from specc import driver
from specc.check.expected import Expected
from specc.check.machines import Generated, Interpreted, load_module
from specc.check.masks import SeenMasks
from specc.check.oracle import PlainDecoding
from specc.check.plain_bigram import PlainBigram
from specc.check.plain_head import PlainHead
from specc.check.single import Single, narrowed, rounded, single_bound
from specc.check.variations import Variation, changed
from specc.check.weights import PREFIX, Value, logical_weights, program_weights
from specc.ir.verifier import verify
from specc.manager import PassContext, Pipeline, check_properties
from specc.models.bigram import NEXT_LOG_PROB, NEXT_TOKEN
from specc.passes import pipeline_of
from specc.program import INDEX_SAFE, TREE_MASKED, DecodeProgram
from specc.spec import LoadedSpec, Spec, from_mapping, to_mapping

REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Stage:
    """The program after one pass (or "lower")."""

    name: str
    program: DecodeProgram


def stages_of(variation: Variation, naive: DecodeProgram, checked: bool, target: str = REFERENCE) -> list[Stage]:
    """The program after lowering and after every pass that changed it. `checked`: verify IR and properties too."""
    pipeline = pipeline_of(variation.loaded.spec, target=target)
    pipeline.check_order()
    stages = [Stage("lower", naive)]
    program, ctx = naive, PassContext(verify=False, spans=driver.spans_of(variation.loaded))
    for item in pipeline.passes:
        if checked:
            result = Pipeline((item,)).run(program, ctx)
            program, changed = result.program, result.records[0].changed
            verify(program, after=item.name)
            check_properties(program, item.establishes, item.name)
        else:
            outcome = item.run(program, ctx)
            changed = outcome.changed
            kept = program.properties & item.preserves if changed else program.properties
            program = replace(outcome.program, properties=kept | item.establishes)
        if changed:
            stages.append(Stage(item.name, program))
    return stages


@dataclass
class Subject:
    """A compiled variation. Raises DiagnosticError while compiling; what is not asked for is not made.

    Modules of other targets than the reference are generated from the same spec in float32 and run on `device`;
    programs and oracles stay in float64 (see `single`).
    """

    variation: Variation
    seed: int
    checked: bool = False
    target: str = REFERENCE
    device: str = "cpu"
    deferred_twin: Subject | None = None
    chain_twin: Subject | None = None
    _machines: dict[str, Interpreted] = field(default_factory=dict)

    @property
    def spec(self) -> Spec:
        """The variation's spec."""
        return self.variation.loaded.spec

    @property
    def vocabulary(self) -> int:
        """V."""
        return self.spec.target.geometry.vocab_size

    @property
    def single(self) -> bool:
        """Whether the module computes in float32."""
        return self.target != REFERENCE

    @property
    def bound(self) -> float:
        """How far the module may be off beyond what `compare` allows, relative."""
        return single_bound(self.spec.target.geometry.recurrent) if self.single else 0.0

    def as_computed(self, value: Tensor) -> Tensor:
        """Float64 values as the module will see them."""
        made = rounded(value) if self.single else value
        assert isinstance(made, Tensor)
        return made

    @cached_property
    def compiled(self) -> LoadedSpec:
        """The spec that the module is generated from: in float32 where the target does not compute in float64."""
        if not self.single:
            return self.variation.loaded
        mapping = to_mapping(self.spec)
        mapping.pop("backend", None)
        return from_mapping(changed(mapping, {"runtime.dtype": "float32", "runtime.state_dtype": "float32"}))

    @cached_property
    def final(self) -> DecodeProgram:
        """The program that the module is generated from."""
        if not self.single:
            return self.program
        naive = driver.lower_spec(self.compiled, self.target)
        return driver.run_passes(self.compiled, naive, target=self.target, verify=False).program

    @cached_property
    def naive(self) -> DecodeProgram:
        """The program before all passes."""
        return driver.lower_spec(self.variation.loaded)

    @cached_property
    def stages(self) -> list[Stage]:
        """The naive program, then the program after every pass that changed it."""
        return stages_of(self.variation, self.naive, self.checked, self.target)

    @property
    def program(self) -> DecodeProgram:
        """The program after all passes, in float64."""
        return self.stages[-1].program

    @cached_property
    def weights(self) -> Mapping[str, Value]:
        """Weights by the naive program's names."""
        drawn = logical_weights(self.spec, self.seed)
        return {name: rounded(drawn[name]) if self.single else drawn[name] for name in self.naive.weights}

    @cached_property
    def all_weights(self) -> Mapping[str, Value]:
        """Weights that no program reads included (the head's t2d)."""
        return logical_weights(self.spec, self.seed)

    @cached_property
    def source(self) -> str:
        """The generated module's text."""
        return driver.generate(self.compiled, self.final, self.target)

    @cached_property
    def generated(self) -> Generated:
        """The generated module."""
        return self.generate(self.final, "generated module")

    def generate(self, program: DecodeProgram, name: str) -> Generated:
        """A module generated from any program over this subject's weights."""
        source = self.source if program is self.final else driver.generate(self.compiled, program, self.target)
        module = load_module(source, f"specc_checked_{self.variation.key[:16]}")
        drawn = program_weights(program.weights, self.naive, self.weights)
        slots = {name: slot for name, slot in program.slots.items() if slot.alias is None}
        if not self.single:
            return Generated(name, module, slots, module.Weights(**drawn))
        weights = module.Weights(**{name: narrowed(value, self.device) for name, value in drawn.items()})
        return Single(name, module, slots, weights, device=self.device)

    def with_seed(self, seed: int) -> Subject:
        """The same subject with other weights; nothing is compiled again. Twins get them too, but not their twins."""
        made = replace(self, seed=seed, deferred_twin=None, chain_twin=None, _machines={})
        kept = ("naive", "stages", "compiled", "final", "source")
        made.__dict__.update({name: self.__dict__[name] for name in kept if name in self.__dict__})
        return made

    def interpreted(self, stage: Stage, strict: bool = False) -> Interpreted:
        """A stage in the interpreter; `strict` where its indices are claimed to be safe."""
        key = f"{stage.name}:{strict}"
        if key not in self._machines:
            weights = program_weights(stage.program.weights, self.naive, self.weights)
            safe = strict and INDEX_SAFE in stage.program.properties
            name = "naive program" if stage.name == "lower" else f"program after {stage.name}"
            hooks = (SeenMasks(),) if strict and TREE_MASKED in stage.program.properties else ()
            self._machines[key] = Interpreted(name, stage.program, weights, strict=safe, poison=safe, hooks=hooks)
        return self._machines[key]

    @cached_property
    def naive_machine(self) -> Interpreted:
        """The naive program in the interpreter."""
        return self.interpreted(Stage("lower", self.naive))

    @cached_property
    def plain(self) -> PlainDecoding:
        """The target on whole texts."""
        return PlainDecoding(self.spec.target.geometry, self.weights)

    @cached_property
    def drafter(self) -> PlainDecoding | None:
        """The draft model on whole texts; None for other methods."""
        geometry = self.spec.draft_geometry
        return None if geometry is None else PlainDecoding(geometry, self.weights, PREFIX, self.spec.draft.window)

    @cached_property
    def head(self) -> PlainHead | None:
        """The EAGLE-3 head on whole texts; None for other methods."""
        if self.spec.draft.method != "eagle3":
            return None
        return PlainHead(self.spec, self.plain, self.weights)

    @cached_property
    def bigram(self) -> PlainBigram | None:
        """The bigram drafter; None for other methods."""
        if self.spec.draft.method != "bigram":
            return None
        tables = [self.weights[PREFIX + name] for name in (NEXT_TOKEN, NEXT_LOG_PROB)]
        return PlainBigram.of(*(table for table in tables if isinstance(table, Tensor)))

    @cached_property
    def expected(self) -> Expected:
        """The acceptance rule."""
        return Expected(self.spec)
