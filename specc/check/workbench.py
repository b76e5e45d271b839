"""The compiled variations of one spec: each compiled once, when an example first asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from specc.check.reduce import ASCEND_HEAD_DIM, HEAD_DIM, PAGE, TRITON_PAGE, reduced_mapping
from specc.check.subject import REFERENCE, Subject
from specc.check.variations import MAX_VARIATIONS, Variation, as_chain, changed, other_update, variations
from specc.diagnostics import SpecError
from specc.spec import LoadedSpec, fingerprint, from_mapping, to_mapping

EXAMPLES_PER_VARIATION = 20


def enough_variations(max_examples: int, recurrent: bool = False) -> int:
    """How many variations share this many examples; recurrent targets have schedules and commits to vary besides."""
    share = EXAMPLES_PER_VARIATION // 2 if recurrent else EXAMPLES_PER_VARIATION
    return max(3, min(MAX_VARIATIONS, max_examples // share))


@dataclass
class Workbench:
    """Variations by number, subjects as they are compiled. `on_compile` is told the name of each."""

    variations: list[Variation]
    seed: int = 0
    on_compile: Callable[[str], None] | None = None
    target: str = REFERENCE
    device: str = "cpu"
    _subjects: dict[int, Subject] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        loaded: LoadedSpec,
        seed: int = 0,
        limit: int = MAX_VARIATIONS,
        target: str = REFERENCE,
        device: str = "cpu",
    ) -> Workbench:
        """The reduced spec and what is around it. Raises SpecError if the reduction is not a legal spec."""
        head_dim = ASCEND_HEAD_DIM if target == "ascend" else HEAD_DIM
        mapping = reduced_mapping(loaded, head_dim, TRITON_PAGE if target == "triton" else PAGE)
        found = variations(from_mapping(mapping), mapping, limit)
        return cls(found, seed, target=target, device=device)

    @classmethod
    def around(cls, subject: Subject) -> Workbench:
        """One subject that is compiled already."""
        bench = cls([subject.variation], subject.seed, target=subject.target, device=subject.device)
        bench._subjects[0] = subject
        return bench

    @property
    def vocabulary(self) -> int:
        """V, the same in all variations."""
        return self.variations[0].loaded.spec.target.geometry.vocab_size

    @property
    def subjects(self) -> Mapping[int, Subject]:
        """The subjects compiled so far, by number."""
        return dict(self._subjects)

    @property
    def compiled(self) -> list[str]:
        """Names of the variations compiled so far."""
        return [self.variations[number].name for number in sorted(self._subjects)]

    def subject(self, number: int) -> Subject:
        """The compiled variation; the spec itself is verified after every pass, too."""
        if number not in self._subjects:
            if self.on_compile is not None:
                self.on_compile(self.variations[number].name)
            checked = number == 0
            subject = Subject(self.variations[number], self.seed, checked, target=self.target, device=self.device)
            self._subjects[number] = subject
            subject.deferred_twin = self._twin(number, other_update(to_mapping(subject.spec)))
            subject.chain_twin = None if subject.spec.is_chain else self._twin(number, _chain(subject))
        return self._subjects[number]

    def reseeded(self, number: int, seed: int) -> Subject:
        """The compiled variation with other weights, and its twins with them."""
        subject = self.subject(number)
        made = subject.with_seed(seed)
        made.deferred_twin = subject.deferred_twin and subject.deferred_twin.with_seed(seed)
        made.chain_twin = subject.chain_twin and subject.chain_twin.with_seed(seed)
        return made

    def _twin(self, number: int, changes: Mapping[str, Any] | None) -> Subject | None:
        """The variation that equals this one after `changes`, if there is one."""
        if changes is None:
            return None
        mapping = to_mapping(self.variations[number].loaded.spec)
        mapping.pop("backend", None)
        try:
            key = fingerprint(from_mapping(changed(mapping, changes)).spec)
        except SpecError:
            return None
        place = next((i for i, one in enumerate(self.variations) if one.key == key), None)
        return None if place is None else self.subject(place)


def _chain(subject: Subject) -> Mapping[str, Any] | None:
    """How the chain twin of a tree differs from it."""
    return as_chain(subject.spec.depth) if subject.spec.draft.method != "none" else None
