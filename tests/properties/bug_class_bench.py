"""Tiny compiled specs for the tests of known bug classes, and a running batch of a generated module.

Each module is compiled once. A fault is an edit of its text: every test takes one (`edit`, by default none), so that
`test_…_is_seen` can run the same test on a module with a planted fault and expect it to fail.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from random import Random
from typing import Any

import torch
from torch import Tensor

from specc import driver
from specc.check.machines import load_module
from specc.check.oracle import PlainDecoding
from specc.check.weights import PREFIX, Value, logical_weights, program_weights
from specc.spec import loads
from specc.spec.model import Spec
from specc.testing.draft_tree import DraftTree, make_tree
from specc.testing.oracles import greedy_accept
from specc.testing.planted import PlantedShape, plant_tree
from specc.testing.tensors import acceptances, tree_tensors, trees_of

torch.set_num_threads(1)
VOCABULARY = 17
LENGTH = 40
SIZES = (
    "num_hidden_layers: 2, hidden_size: 16, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 4, "
    f"intermediate_size: 24, vocab_size: {VOCABULARY}"
)
DRAFTER = f"method: draft_model, config: {{{SIZES}, max_position_embeddings: 64}}"
DRAFTS = {
    "none": "{method: none}",
    "tree": f"{{{DRAFTER}, tree: dynamic, num_speculative_tokens: 7, num_steps: 3, top_k: 3}}",
    "wide": f"{{{DRAFTER}, tree: dynamic, num_speculative_tokens: 12, num_steps: 2, top_k: 4}}",
    "chain": f"{{{DRAFTER}, tree: chain, num_speculative_tokens: 3}}",
    "lookup": "{method: prompt_lookup, tree: chain, num_speculative_tokens: 4, ngram: {min: 1, max: 3}}",
    "lookup tree": "{method: prompt_lookup, tree: dynamic, num_speculative_tokens: 5, num_steps: 3, top_k: 2, "
    "ngram: {min: 1, max: 3}}",
    "eagle3": "{method: eagle3, tree: dynamic, num_speculative_tokens: 5, num_steps: 3, top_k: 2, "
    "aux_hidden_state_layer_ids: [0, 1], aux_hidden_state_of: output, config: {draft_vocab_size: 11}}",
}
PROMPTS = ((5, 9, 3, 2, 11), (8,), (1, 16, 4), (7, 7, 12, 0))
Edit = Callable[[str], str]
Check = Callable[..., None]


class FaultNotPlanted(LookupError):
    """The text that a planted fault replaces is not in the module: the fault must be brought up to date."""


def unchanged(source: str) -> str:
    """No fault."""
    return source


def swap(old: str, new: str) -> Edit:
    """Replaces text that must be there."""

    def edit(source: str) -> str:
        if old not in source:
            raise FaultNotPlanted(old)
        return source.replace(old, new)

    return edit


def append(text: str) -> Edit:
    """Defines functions of the module anew."""
    return lambda source: source + "\n\n" + text


def spec_text(draft: str, sections: str = "", *, length: int = LENGTH, batch: int = 4, positions: int = 64) -> str:
    """A float64 spec of a two-layer llama. `draft` is a key of DRAFTS or a YAML mapping."""
    return f"""specc: 1
name: tiny
target: {{family: llama, config: {{{SIZES}, max_position_embeddings: {positions}}}}}
draft: {DRAFTS.get(draft, draft)}
runtime: {{max_batch_size: {batch}, max_sequence_length: {length}, dtype: float64}}
{sections}
"""


DEFERRED = "commit: {update: deferred}"
IMMEDIATE = "commit: {update: immediate}"


@dataclass(frozen=True)
class Bench:
    """A generated module with random weights; the draft model is a noisy copy of the target."""

    spec: Spec
    source: str = field(repr=False)
    module: Any = field(repr=False)
    logical: Mapping[str, Value] = field(repr=False)
    weights: Any = field(repr=False)

    @property
    def plain(self) -> PlainDecoding:
        """The target on whole texts, without cache and tree."""
        return plain_decoding()

    @cached_property
    def drafter(self) -> PlainDecoding:
        """The draft model on whole texts."""
        geometry = self.spec.draft_geometry
        assert geometry is not None
        return PlainDecoding(geometry, self.logical, PREFIX)

    def decoder(self) -> Any:
        """A Decoder with these weights."""
        return self.module.Decoder(self.weights)

    def reweighted(self, **changes: Callable[[Tensor], Tensor]) -> Bench:
        """The same module with some tensors changed, each under its logical name."""
        logical = dict(self.logical)
        for name, change in changes.items():
            value = logical[name]
            logical[name] = change(value) if isinstance(value, Tensor) else tuple(change(one) for one in value)
        naive = driver.lower_spec(loads(_texts[self.source]))
        layouts = {layout.name: layout for layout in self.module.WEIGHTS}
        return Bench(
            self.spec,
            self.source,
            self.module,
            logical,
            self.module.Weights(**program_weights(layouts, naive, logical)),
        )


_texts: dict[str, str] = {}


@cache
def _compiled(text: str) -> Bench:
    loaded = loads(text)
    done = driver.compile_spec(loaded, verify=False)
    module = load_module(done.source, f"specc_bug_class_{len(_texts)}")
    _texts[done.source] = text
    drawn = logical_weights(loaded.spec, 0)
    logical = {name: drawn[name] for name in done.naive.weights}
    weights = module.Weights(**program_weights(done.program.weights, done.naive, logical))
    return Bench(loaded.spec, done.source, module, logical, weights)


def compiled(text: str, edit: Edit = unchanged) -> Bench:
    """The module of a spec, compiled once per text, with its source edited."""
    good = _compiled(text)
    if edit is unchanged:
        return good
    module = load_module(edit(good.source), "specc_bug_class_faulty")
    del sys.modules["specc_bug_class_faulty"]
    return Bench(good.spec, good.source, module, good.logical, module.Weights(*good.weights))


def bench(draft: str, sections: str = DEFERRED, edit: Edit = unchanged, **runtime: int) -> Bench:
    """Compiles `spec_text` of these arguments."""
    return compiled(spec_text(draft, sections, **runtime), edit)


@cache
def plain_decoding() -> PlainDecoding:
    """Plain decoding by the target: all specs here have the same one, with the same weights. Answers are cached."""
    plain = bench("none", IMMEDIATE)
    return PlainDecoding(plain.spec.target.geometry, plain.logical)


def made_for(draft: str, edit: Edit = unchanged) -> Bench:
    """Deferred where the draft is a tree."""
    tree = draft in ("tree", "wide", "eagle3", "lookup tree")
    return bench(draft, DEFERRED if tree else IMMEDIATE, edit)


def plain_text(made: Bench, prompt: list[int], count: int) -> list[int]:
    """What plain decoding adds."""
    return made.plain.continuation(prompt, count)


@dataclass
class Batch:
    """A batch under way, through the public step functions. `texts` end with the root token."""

    bench: Bench
    state: Any
    texts: list[list[int]]

    @classmethod
    def start(cls, bench: Bench, prompts: Sequence[Sequence[int]] = PROMPTS, *, remaining: int = 1 << 30) -> Batch:
        """Prefills prompts (an empty one leaves its row unused); row b draws from random stream b."""
        state = bench.module.init_state(len(prompts))
        state = state._replace(
            rng=torch.arange(len(prompts)) + 77, remaining=torch.full_like(state.remaining, remaining)
        )
        made = cls(bench, state, [[] for _ in prompts])
        made.prefill(prompts)
        return made

    def prefill(self, prompts: Sequence[Sequence[int]], padding: int = 0) -> None:
        """Appends one chunk per row."""
        width = max(1, *(len(prompt) for prompt in prompts))
        ids = torch.tensor([[*prompt, *[padding] * (width - len(prompt))] for prompt in prompts])
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        self.state, *_ = self.bench.module.prefill(self.bench.weights, self.state, ids, lengths)
        for row, prompt in enumerate(prompts):
            if prompt:
                self.texts[row] = [*self.texts[row][:-1], *prompt, int(self.state.root_token[row])]

    def draft(self) -> Any:
        """The module's own draft."""
        self.state, draft = self.bench.module.draft(self.bench.weights, self.state)
        return draft

    def as_draft(self, trees: Sequence[DraftTree], **extra: Tensor) -> Any:
        """A planted draft."""
        tokens, parent, valid = tree_tensors(trees)
        values: dict[str, Any] = {"tokens": tokens, "valid": valid, **extra}
        if not self.bench.spec.is_chain:
            values["parent"] = parent
        names = self.bench.module.Draft._fields
        if "log_probs" in names:
            values["log_probs"] = torch.zeros(tokens.shape)
        return self.bench.module.Draft(**values)

    def verify(self, draft: Any) -> Any:
        """Logits at every node."""
        parent = getattr(draft, "parent", None)
        self.state, verified = self.bench.module.verify(
            self.bench.weights, self.state, draft.tokens, parent, draft.valid
        )
        return verified

    def step(self, trees: Sequence[DraftTree] | None = None, **extra: Tensor) -> Any:
        """draft (or these trees), verify, accept, commit; returns what was accepted."""
        draft = self.draft() if trees is None else self.as_draft(trees, **extra)
        verified = self.verify(draft)
        self.state, accepted = self.bench.module.accept(self.state, verified, draft)
        self.state = self.bench.module.commit(self.state, verified, accepted)
        for row, text in enumerate(self.texts):
            text.extend(accepted.emitted_tokens[row, : accepted.emitted[row]].tolist())
        return accepted

    def decode(self) -> Any:
        """One plain step."""
        self.state, decoded = self.bench.module.decode(self.bench.weights, self.state)
        for row, text in enumerate(self.texts):
            if decoded.emitted[row]:
                text.append(int(self.state.root_token[row]))
        return decoded

    def flush(self) -> None:
        """Applies what is pending."""
        self.state = self.bench.module.flush(self.state)

    @property
    def length(self) -> list[int]:
        """Committed tokens per row."""
        return list(self.state.length.tolist())

    def no_drafts(self, row: int) -> DraftTree:
        """Only the root; the rest is padding."""
        return make_tree([self.texts[row][-1]], [-1], self.bench.spec.num_nodes)

    def continuation(self, row: int, count: int) -> list[int]:
        """What plain greedy decoding goes on with."""
        return self.bench.plain.continuation(self.texts[row], count)

    def planted(self, row: int, rng: Random, **chances: float) -> DraftTree:
        """A tree around the plain continuation, with errors and decoys (`specc.testing.planted`)."""
        if not self.texts[row]:
            return make_tree([0], [-1], self.bench.spec.num_nodes)
        spec = self.bench.spec
        width = 1 if spec.is_chain else max(spec.draft.top_k, 2)
        shape = PlantedShape(spec.num_nodes, spec.depth, width, **chances)
        root = self.texts[row][-1]
        return plant_tree([root, *self.continuation(row, spec.depth)], VOCABULARY, shape, rng)

    def branch(self, row: int, depth: int | None = None) -> DraftTree:
        """A tree whose right path is a branch: before every right node stands a wrong sibling."""
        spec = self.bench.spec
        right = self.continuation(row, spec.depth if depth is None else depth)
        tokens, parent, above = [self.texts[row][-1]], [-1], 0
        for token in right:
            if len(tokens) + 2 > spec.num_nodes:
                break
            tokens += [(token + 1) % VOCABULARY, token]
            parent += [above, above]
            above = len(tokens) - 1
        return make_tree(tokens, parent, spec.num_nodes)

    def wrong(self, row: int) -> DraftTree:
        """A full chain whose first token is wrong."""
        spec = self.bench.spec
        right = self.continuation(row, spec.depth)
        tokens = [self.texts[row][-1], (right[0] + 1) % VOCABULARY, *right[1:]]
        return make_tree(tokens, list(range(-1, len(tokens) - 1)), spec.num_nodes)

    def right(self, row: int, count: int | None = None) -> DraftTree:
        """A chain of the plain continuation."""
        spec = self.bench.spec
        tokens = [self.texts[row][-1], *self.continuation(row, spec.depth if count is None else count)]
        return make_tree(tokens, list(range(-1, len(tokens) - 1)), spec.num_nodes)

    def check_plain(self, prompts: Sequence[Sequence[int]]) -> None:
        """Every row's text is what plain greedy decoding of the whole text gives."""
        for text, prompt in zip(self.texts, prompts, strict=True):
            if prompt:
                count = len(text) - len(prompt)
                assert text == [*prompt, *self.bench.plain.continuation(prompt, count)]


def check_caches(batch: Batch) -> None:
    """Committed K and V rows of every row are those of its text in one pass (I8, I27)."""
    batch.flush()
    for row, text in enumerate(batch.texts):
        count = int(batch.state.length[row])
        assert count == max(len(text) - 1, 0)
        if count:
            whole = batch.bench.plain.forward([text[:-1]])
            for name, wanted in (("k_cache", whole.keys), ("v_cache", whole.values)):
                for layer, rows in enumerate(wanted):
                    got = getattr(batch.state, name)[layer, row, :count]
                    assert torch.allclose(got, rows[0], rtol=1e-9, atol=1e-9), (name, layer, row)


def check_accepted(draft: Any, verified: Any, accepted: Any, spec: Spec, rows: Sequence[int]) -> None:
    """Greedy acceptance of these live rows is the plain walk (`specc.testing.greedy_accept`)."""
    trees = trees_of(draft.tokens, getattr(draft, "parent", None), draft.valid)
    got = acceptances(accepted.path, accepted.accept_length, accepted.bonus, accepted.stopped)
    for row in rows:
        argmax = verified.logits[row].argmax(-1).tolist()
        assert got[row] == greedy_accept(trees[row], argmax, spec.depth, spec.accept.stop_tokens)


def drafts_by_turns(made: Bench) -> Batch:
    """Two rows, one of them without drafts, by turns: each does what it does alone (I13), and the text is plain."""
    prompts = PROMPTS[:2]
    both = Batch.start(made, prompts)
    alone = [Batch.start(made, prompts[row : row + 1]) for row in range(2)]
    for number in range(6):
        trees = [both.branch(row) if (row + number) % 2 else both.no_drafts(row) for row in range(2)]
        together = both.step(trees)
        for row in range(2):
            single = alone[row].step(trees[row : row + 1])
            assert [one[0].tolist() for one in single] == [one[row].tolist() for one in together]
    assert both.texts == [one.texts[0] for one in alone]
    both.check_plain(prompts)
    return both
