"""The device's recurrent operator in whole modules: float64 = eager operators = GE graph, in place, faults noticed."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import pytest
import torch

from specc.backends.ascend.harness import counts
from specc.check.ascend.bounds import difference, half_bound, scale, state_roundings, unit_roundoff
from specc.check.ascend.half import Half, reduced_half
from specc.check.ascend.ladder import walked
from specc.check.ascend.steps import Executed, Steps, eagerly
from specc.check.ascend.walk import CHUNK, LONGEST, Trio, Walk
from specc.check.drafts import as_bag, planted
from specc.check.findings import CheckFailure
from specc.check.machines import State
from specc.check.subject import Subject
from specc.check.variations import Variation, changed
from specc.models.geometry import Geometry
from specc.spec import LoadedSpec, from_mapping, load, to_mapping
from tests.backends.ascend.chain_specs import SPECS, chain, hybrid, plain

OPERATOR = "RecurrentGatedDeltaRule"


def trio_of(loaded: LoadedSpec, batch: int, *, graph: bool = True, dtype: str = "bfloat16") -> Trio:
    half = Half(reduced_half(loaded, dtype))
    return Trio(half, Steps(half, batch, eagerly), Steps(half, batch, Executed) if graph else None)


def operators(trio: Trio) -> dict[str, int]:
    """Recurrent operators in every GE graph that ran; none is compiled twice, none copies a state or a pool."""
    assert trio.graph is not None
    found = {}
    for step, made in trio.graph.executed().items():
        assert made.lowered is not None
        assert made.lowered.recompiles == 0, step
        assert counts.copies(made.lowered.graph) == [], step
        assert all(update.clean for update in counts.updates(made.lowered.graph)), step
        found[step] = Counter(op.type for op in made.lowered.graph.op)[OPERATOR]
    return found


def compared(trio: Trio, examples: int) -> None:
    assert walked(trio, examples, 0, lambda what, done, total: None) is None
    assert trio.seen.errors["logits, GE graph"] <= 1e-2


def test_chains_agree_in_all_machines_and_states_are_never_copied() -> None:
    trio = trio_of(chain(), 2)
    compared(trio, 3)
    layers = trio.half.loaded.spec.target.geometry.num_hidden_layers
    assert operators(trio) == {"prompted": 0, "step": layers, "planted": layers}
    assert trio.seen.accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 4])
def test_hybrids_agree(batch: int) -> None:
    trio = trio_of(hybrid(), batch)
    compared(trio, 2)
    assert operators(trio) == {"prompted": 0, "step": 2, "planted": 2, "commit": 0}
    assert trio.seen.accepted > 0


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_types_keep_bfloat16_states_by_matmuls(dtype: str) -> None:
    trio = trio_of(chain(), 2, dtype=dtype)
    compared(trio, 2)
    assert set(operators(trio).values()) == {0}
    assert {state.dtype for state in trio.eager.state.state} == {torch.bfloat16}


@pytest.mark.slow
def test_plain_decoding_updates_the_committed_states_themselves() -> None:
    trio = trio_of(plain(), 2)
    compared(trio, 2)
    assert operators(trio)["plain"] == trio.half.loaded.spec.target.geometry.num_hidden_layers
    assert "state_pool" not in trio.half.program.slots


def mixed(trio: Trio) -> None:
    """A prompt, a plain step, drafted steps, plain steps, more of the prompt: each goes on from the committed row."""
    keys = torch.arange(1, trio.eager.batch + 1)
    for machine in trio.machines:
        machine.fresh(keys)
    walk = Walk(tuple((3, 5, 4 * row) for row in range(trio.eager.batch)), ((1, 99),), 0)
    state = trio._prefill(walk, {**trio.half.oracle.start(trio.eager.batch), "rng": keys.clone()})
    first = trio.eager.state.root_token.tolist()
    state = one_plain_step(trio, state)
    then = trio.eager.state.root_token.tolist()
    texts = [[*prompt, *roots] for prompt, *roots in zip(walk.prompts, first, then, strict=True)]
    total = 0
    for seed in range(1, 4):
        state, emitted, together = trio._step("step", state, planted(trio.half.exact, texts, seed, 99), seed)
        assert together
        total += len(emitted[0])
        texts = [text + tokens for text, tokens in zip(texts, emitted, strict=True)]
    assert total > 8  # around the ring
    for _ in range(3):
        state = one_plain_step(trio, state)
    part = {
        "input_ids": torch.tensor([[4, 7, 1, *[0] * (LONGEST - 3)]] * trio.eager.batch)[:, :CHUNK],
        "lengths": torch.tensor([3, 0])[: trio.eager.batch],
    }
    for machine in trio.machines:
        machine.prompt(part["input_ids"], part["lengths"])
    trio._rows("more of the prompt", trio.half.oracle.step("prefill", state, part)[0])


def one_plain_step(trio: Trio, state: State) -> State:
    state, _ = trio.half.oracle.step("decode", state, {})
    for machine in trio.machines:
        assert isinstance(machine, Steps)
        machine.run("plain")
        # The oracle's own token: between two likely ones rounding may choose.
        machine.state.root_token.copy_(state["root_token"])
    trio._rows("plain", state)
    return state


@pytest.mark.slow
def test_plain_steps_and_prompts_go_on_from_the_committed_row_of_a_pool() -> None:
    trio = trio_of(chain(), 2)
    mixed(trio)
    assert operators(trio)["plain"] == trio.half.loaded.spec.target.geometry.num_hidden_layers


COMMIT = "place = state.state_row + accepted.emitted"
NORM = "unit_rows(torch.cat(parts, 1), torch.float32, heads, 0).to(v.dtype)"
FAULTS = {
    "a commit that leaves the row where it was": (COMMIT, "place = state.state_row + 0 * accepted.emitted"),
    "a commit one row short": (COMMIT, f"{COMMIT} - 1"),
    "a ring that does not close": ("past_the_end = place >= 8", "past_the_end = place >= 99"),
    "no token carries the committed state on": ("tokens > nodes", "tokens > 99"),
    "a prompt that reads the first row": (
        "npu_pool_read(state_2, state.state_row)",
        "npu_pool_read(state_2, state.state_row * 0)",
    ),
    "a plain step in the first row": (
        "npu_chain_slots(state.state_row, 8, 1)",
        "npu_chain_slots(state.state_row * 0, 8, 1)",
    ),
    "a prompt that fills no row": ("pool_after = npu_pool_fill(state_2, state_after)", "pool_after = state_2.clone()"),
    "keys that are not normed": (NORM, "torch.cat(parts, 1)"),
    "no decay": ("g=g.reshape(-1, v.shape[2])", "g=g.reshape(-1, v.shape[2]) * 0"),
}


@cache
def sound() -> Half:
    """The module without a fault: what it is made of, and the float64 one beside it, serve all faults."""
    return Half(reduced_half(chain(), "bfloat16"))


def with_source(source: str) -> Trio:
    half = Half(sound().loaded)
    half.__dict__.update({name: getattr(sound(), name) for name in ("naive", "program", "exact", "_rounded")})
    half.__dict__["source"] = source
    return Trio(half, Steps(half, 2, eagerly), None)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str) -> None:
    old, new = FAULTS[fault]
    assert old in sound().source, old
    # What the operator's CPU kernel leaves undefined it refuses.
    with pytest.raises((CheckFailure, RuntimeError, IndexError, ValueError)):
        mixed(with_source(sound().source.replace(old, new)))


def test_without_a_fault_the_same_steps_agree() -> None:
    mixed(with_source(sound().source))


def test_bfloat16_states_widen_the_bound_of_recurrent_layers_only() -> None:
    geometry = sound().loaded.spec.target.geometry
    for dtype in (torch.float16, torch.bfloat16):
        wide, narrow = half_bound(geometry, dtype), half_bound(geometry, dtype, False, torch.bfloat16)
        assert narrow**2 == pytest.approx(wide**2 + state_part(geometry) ** 2)
    attention = reduced_half(load(SPECS / "smollm2-plain.yaml"), "bfloat16").spec.target.geometry
    assert half_bound(attention, torch.bfloat16, False, torch.bfloat16) == half_bound(attention, torch.bfloat16)


def state_part(geometry: Geometry) -> float:
    """What rounding states, and nothing else, may do by the model of bounds.py."""
    return scale(geometry) * unit_roundoff(torch.bfloat16) * math.sqrt(state_roundings(geometry, torch.bfloat16))


@pytest.mark.slow
def test_rounding_only_the_states_stays_within_its_share_of_the_bound() -> None:
    """The reference in float32 with bfloat16 states against the same with float32 states."""
    exact, found = sound().exact, []
    for dtype in ("bfloat16", "float32"):
        changes = {"runtime.dtype": "float32", "runtime.state_dtype": dtype}
        subject = Subject(Variation(dtype, from_mapping(changed(to_mapping(sound().loaded.spec), changes))), 0)
        machine, part = subject.generated, {"lengths": torch.tensor([4, 3])}
        state = {**machine.start(2), "rng": torch.tensor([1, 2])}
        state, prompt = machine.step(
            "prefill", state, {"input_ids": torch.tensor([[3, 5, 8, 1], [4, 4, 9, 0]]), **part}
        )
        state |= {"root_token": torch.tensor([5, 6]), "remaining": torch.full((2,), 99), "finished": torch.zeros(2) > 0}
        seen, texts = [prompt["logits"]], [[3, 5, 8, 1, 5], [4, 4, 9, 6]]
        for seed in (1, 2):
            bag = as_bag(exact, planted(exact, texts, seed, 99), seed)
            state, verified = machine.step("verify", state, bag)
            state, accepted = machine.step("accept", state, {**bag, **verified})
            state, _ = machine.step("commit", state, {**bag, **verified, **accepted})
            seen.append(verified["logits"])
        found.append([*seen, state["state"]])
    errors = [difference(narrow, wide) for narrow, wide in zip(*found, strict=True)]
    assert errors[0] == 0.0  # a prompt's own rule is in float32
    assert 0.0 < max(errors) <= state_part(sound().loaded.spec.target.geometry)
