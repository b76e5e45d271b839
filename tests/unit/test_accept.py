"""The accept graphs against the plain-Python walks: greedy, typical, stop tokens, limits, finished rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specc.ir.interpreter import Event
from specc.lower.accept import lower_accept
from specc.lower.config import AcceptConfig, DraftConfig
from specc.lower.context import LowerContext
from specc.lower.transformer import ModelInfo
from specc.models.geometry import transformer_geometry
from specc.testing import Acceptance, DraftTree, finish, greedy_accept, make_tree, typical_walk
from specc.testing.oracles import typical_threshold
from tests.unit.accept_fixtures import LONGEST, accept_graph, run_accept
from tests.unit.decoding_fixtures import SIZES

NODES, VOCABULARY = 7, 6
GEOMETRY = transformer_geometry("llama", SIZES)
GREEDY = accept_graph(AcceptConfig("greedy", stop_tokens=(3, 5)), NODES, VOCABULARY)
COLD = accept_graph(AcceptConfig("rejection", stop_tokens=(3, 5)), NODES, VOCABULARY)
CHAIN = accept_graph(AcceptConfig("greedy", stop_tokens=(3, 5)), NODES, VOCABULARY, chain=True)
TYPICAL = accept_graph(AcceptConfig("typical", epsilon=0.25, alpha=0.6), NODES, VOCABULARY)


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    """A topological tree with distinct siblings and padding at the end."""
    count = draw(st.integers(1, NODES))
    tokens, parent = [draw(st.integers(0, VOCABULARY - 1))], [-1]
    for node in range(1, count):
        above = draw(st.integers(0, node - 1))
        taken = {tokens[i] for i in range(1, node) if parent[i] == above}
        free = [token for token in range(VOCABULARY) if token not in taken]
        if free:
            tokens.append(draw(st.sampled_from(free)))
            parent.append(above)
        else:
            break
    return make_tree(tokens, parent, NODES)


Batches = st.lists(trees(), min_size=1, max_size=3)


def planted_choices(tree: DraftTree, draw: st.DataObject) -> list[int]:
    """A target argmax per node, often the token of one of its children."""
    choice = []
    for node in range(NODES):
        below = [tree.tokens[i] for i in tree.children(node)]
        options = st.integers(0, VOCABULARY - 1)
        choice.append(draw.draw(st.one_of(st.sampled_from(below), options) if below else options))
    return choice


def check(found: dict[str, torch.Tensor], row: int, tree: DraftTree, expected: Acceptance) -> None:
    """One row of the results is this acceptance."""
    emitted = expected.emitted(tree)
    assert found["path"][row].tolist() == list(expected.path)
    assert found["accept_length"][row] == expected.accept_length
    assert found["bonus"][row] == expected.bonus
    assert found["stopped"][row] == expected.stopped
    assert found["emitted"][row] == len(emitted)
    assert found["emitted_tokens"][row].tolist() == emitted + [0] * (NODES - len(emitted))


@pytest.mark.parametrize("module", [GREEDY, COLD], ids=["greedy", "rejection at temperature 0"])
@given(batch=Batches, data=st.data())
def test_the_greedy_walk_with_stops_and_limits(
    module: torch.fx.GraphModule, batch: list[DraftTree], data: st.DataObject
) -> None:
    choices = [planted_choices(tree, data) for tree in batch]
    left = [data.draw(st.integers(1, 8)) for _ in batch]
    room = [data.draw(st.integers(1, 8)) for _ in batch]
    logits = torch.nn.functional.one_hot(torch.tensor(choices), VOCABULARY).double()
    state = {"remaining": torch.tensor(left), "length": LONGEST - torch.tensor(room)}
    found = run_accept(module, batch, logits, state=state)
    for row, tree in enumerate(batch):
        expected = greedy_accept(tree, choices[row], NODES - 1, (3, 5), min(left[row], room[row]))
        check(found, row, tree, expected)


@given(st.integers(1, NODES), st.data())
def test_a_chain_is_the_tree_of_that_chain(count: int, data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=count, max_size=count))
    tree = make_tree(tokens, list(range(-1, count - 1)), NODES)
    choices = planted_choices(tree, data)
    logits = torch.nn.functional.one_hot(torch.tensor([choices]), VOCABULARY).double()
    chain, forced = run_accept(CHAIN, [tree], logits), run_accept(GREEDY, [tree], logits)
    for name, value in chain.items():
        assert torch.equal(value, forced[name]), name
    check(chain, 0, tree, greedy_accept(tree, choices, NODES - 1, (3, 5)))


@given(Batches, st.integers(0, 2**31))
def test_typical_acceptance_is_the_reference_walk(batch: list[DraftTree], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(len(batch), NODES, VOCABULARY, generator=generator, dtype=torch.float64)
    found = run_accept(TYPICAL, batch, logits)
    for row, tree in enumerate(batch):
        probs = logits[row].softmax(-1).tolist()
        nodes = typical_walk(tree, probs, 0.25, 0.6)
        last = nodes[-1] if nodes else 0
        expected = finish(tree, nodes, int(logits[row, last].argmax()), NODES - 1)
        check(found, row, tree, expected)


def test_typical_acceptance_accepts_above_and_rejects_at_the_threshold() -> None:
    # p = 1/4 each: the entropy is log 4, so with alpha = 1 the bar is 1/4 = p up to rounding.
    probs = [0.25] * 4
    assert typical_threshold(probs, 0.9, 1.0) == pytest.approx(0.25)
    tree = make_tree([0, 1], [-1, 0])
    for alpha, length in ((0.99, 1), (1.01, 0)):
        module = accept_graph(AcceptConfig("typical", epsilon=0.9, alpha=alpha), 2, 4)
        assert run_accept(module, [tree], torch.zeros(1, 2, 4).double())["accept_length"].tolist() == [length]
    # Here the bar is epsilon = 1/4 exactly, and equality does not pass.
    module = accept_graph(AcceptConfig("typical", epsilon=0.25, alpha=9.0), 2, 4)
    assert run_accept(module, [tree], torch.zeros(1, 2, 4).double())["accept_length"].tolist() == [0]


@pytest.mark.parametrize(("finished", "remaining", "length"), [(True, 9, 10), (False, 0, 10), (False, 9, LONGEST)])
def test_a_row_without_room_emits_nothing(finished: bool, remaining: int, length: int) -> None:
    tree = make_tree([1, 2, 4], [-1, 0, 1], NODES)
    logits = torch.nn.functional.one_hot(torch.tensor([[2, 4, 1, 0, 0, 0, 0]] * 2), VOCABULARY).double()
    state = {
        "finished": torch.tensor([finished, False]),
        "remaining": torch.tensor([remaining, 9]),
        "length": torch.tensor([length, 10]),
    }
    found = run_accept(GREEDY, [tree] * 2, logits, state=state)
    for name in ("path", "accept_length", "bonus", "emitted_tokens", "emitted"):
        assert found[name][0].eq(0).all(), name
    assert found["stopped"].tolist() == [not finished, False]
    assert found["emitted"].tolist() == [0, 3]


def test_padding_nodes_are_never_accepted() -> None:
    # Padding holds token 0 below the root, and the target wants token 0.
    tree = make_tree([1, 2], [-1, 0], NODES)
    logits = torch.zeros(1, NODES, VOCABULARY).double()
    logits[..., 0] = 5.0
    for module in (GREEDY, TYPICAL):
        assert run_accept(module, [tree], logits)["accept_length"].tolist() == [0]


def test_a_batch_is_its_rows_under_sampling() -> None:
    accept = AcceptConfig("rejection", temperature=0.9, top_k=4, top_p=0.95)
    module = accept_graph(accept, NODES, VOCABULARY)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, NODES, VOCABULARY, generator=generator, dtype=torch.float64)
    tree = make_tree([0, 1, 2, 3, 4, 5, 0], [-1, 0, 0, 1, 1, 2, 5])
    keys, lengths = torch.arange(8) * 7 - 20, torch.arange(8) + 3
    together = run_accept(module, [tree] * 8, logits, state={"rng": keys, "length": lengths})
    for row in range(8):
        own = {"rng": keys[row : row + 1], "length": lengths[row : row + 1]}
        alone = run_accept(module, [tree], logits[row : row + 1], state=own)
        for name, value in alone.items():
            assert torch.equal(value[0], together[name][row]), name


def test_true_q_and_drawn_drafts_come_together() -> None:
    accept = AcceptConfig("rejection", "true_q", temperature=1.0)
    assert accept.uses_draft_law
    assert not AcceptConfig("rejection", "true_q", temperature=0.0).uses_draft_law
    ctx = LowerContext({}, {}, ModelInfo(GEOMETRY, "", torch.float64, {}), None, 3, 3, False, 0, 9, torch.float64)
    with pytest.raises(ValueError, match="true_q"):
        lower_accept(ctx, accept, DraftConfig("draft_model"))


def test_nothing_is_left_of_the_law_and_the_answer_is_defined() -> None:
    # The target is certain of token 2; it is drafted, and rounding made u reach p: here u is forced to 1.
    module = accept_graph(AcceptConfig("rejection", temperature=1.0), 2, 4)
    logits = torch.full((1, 2, 4), -1e4, dtype=torch.float64)
    logits[..., 2] = 0.0

    def always_reject(event: Event) -> torch.Tensor | None:
        return torch.ones_like(event.value) if event.node.name.startswith("accept_uniform") else None

    found = run_accept(module, [make_tree([0, 2], [-1, 0])], logits, hooks=[always_reject])
    assert found["accept_length"].tolist() == [0]
    assert found["bonus"].tolist() == [2]


def test_a_token_of_probability_zero_is_not_accepted_at_u_zero() -> None:
    for rule in ("target_only", "true_q"):
        module = accept_graph(AcceptConfig("rejection", rule, temperature=1.0), 2, 4)
        logits = torch.zeros(1, 2, 4, dtype=torch.float64)
        logits[..., 1] = -float("inf")
        q = torch.full((1, 2, 4), 0.25, dtype=torch.float64)

        def zero(event: Event) -> torch.Tensor | None:
            return torch.zeros_like(event.value) if "uniform" in event.node.name else None

        found = run_accept(module, [make_tree([0, 1], [-1, 0])], logits, q_probs=q, hooks=[zero])
        assert found["accept_length"].tolist() == [0]
        assert found["bonus"].tolist() != [1]
