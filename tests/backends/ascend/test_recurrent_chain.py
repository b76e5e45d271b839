"""The device's recurrent operator in whole modules: float64 = eager operators = GE graph, in place, faults noticed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from specc.backends.ascend.harness import counts
from specc.check.ascend.half import Half, reduced_half
from specc.check.ascend.ladder import walked
from specc.check.ascend.steps import Executed, Steps, eagerly
from specc.check.ascend.walk import Trio, Walk
from specc.check.drafts import planted
from specc.check.findings import CheckFailure
from specc.check.machines import State
from specc.spec import LoadedSpec
from tests.backends.ascend.chain_specs import chain, hybrid, plain

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
        "input_ids": torch.tensor([[4, 7, 1]] * trio.eager.batch),
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


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str) -> None:
    trio = trio_of(chain(), 2, graph=False)
    old, new = FAULTS[fault]
    assert old in trio.half.source, old
    broken = Half(trio.half.loaded)
    broken.__dict__["source"] = trio.half.source.replace(old, new)
    broken.__dict__["program"] = trio.half.program
    worse = replace(trio, half=broken, eager=Steps(broken, 2, eagerly))
    # What the operator's CPU kernel leaves undefined it refuses.
    with pytest.raises((CheckFailure, RuntimeError, IndexError, ValueError)):
        mixed(worse)


def test_without_a_fault_the_same_steps_agree() -> None:
    mixed(trio_of(chain(), 2, graph=False))
