"""Parts of draft training: batches, draft vocabulary, teaching, agreement, initial weights, export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.diagnostics import DiagnosticError
from specc.lower.drafts.state import head_weight_table
from specc.models.checkpoint import checkpoint_headers, load_checkpoint
from specc.models.families import checkpoint_geometry
from specc.models.geometry import AuxFeature
from specc.models.weights import weight_table
from specc.runtime.model_folder import check_drafter
from specc.train.draft import export
from specc.train.draft.batches import MULTIPLE, Plan, Text, first_repeat, make_batch, split, usable
from specc.train.draft.evaluate import chain_lengths
from specc.train.draft.export import export_head, head_config, round_to_stored, stored
from specc.train.draft.head import EagleHead
from specc.train.draft.initialise import RIDGE, initialise, initialise_fc
from specc.train.draft.targets import load_target
from specc.train.draft.teacher import Teacher
from specc.train.draft.unroll import unroll
from specc.train.draft.vocabulary import coverage, draft_vocabulary, token_counts, vocabulary_tables
from tests.train.draft_stand import write_model, write_spec

LENGTHS = st.lists(st.tuples(st.integers(1, 90), st.integers(2, 200)), min_size=1, max_size=30)


def texts_of(sizes: list[tuple[int, int]]) -> list[Text]:
    """Texts whose ids say where they are: text 3's token 5 is 3005."""
    return [Text(np.arange(p + c, dtype=np.int32) + 1000 * i, p) for i, (p, c) in enumerate(sizes)]


@given(LENGTHS)
@settings(max_examples=40, deadline=None)
def test_a_batch_counts_exactly_the_rows_that_predict_the_targets_own_tokens(sizes: list[tuple[int, int]]) -> None:
    texts = texts_of(sizes)
    batch = make_batch(texts)
    assert batch.ids.shape[1] % MULTIPLE == 0
    width = batch.ids.shape[1] - 1
    predicted = sorted(int(batch.ids[row // width, row % width + 2]) for row in batch.rows.tolist())
    assert predicted == sorted(int(i) for text in texts for n, i in enumerate(text.ids) if n >= max(text.prompt, 2))


@given(LENGTHS, st.integers(64, 2048), st.integers(0, 5), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_an_epoch_has_every_text_once_within_the_budget(
    sizes: list[tuple[int, int]], budget: int, seed: int, world: int
) -> None:
    texts = texts_of(sizes)
    plan = Plan.of(texts, budget, seed, world)
    count = len(plan.groups)
    seen = [i for group in plan.groups for i in group]
    assert len(seen) == len(set(seen))
    if world == 1:
        assert sorted(seen) == list(range(len(texts)))
    for group in plan.groups:
        assert len(group) >= world
        batch = make_batch([texts[i] for i in group])
        assert batch.tokens <= budget or len(group) == 1
    for epoch in range(2 if count else 0):
        assert sorted(plan.group(epoch * count + place) for place in range(count)) == list(range(count))
    assert plan == Plan.of(texts, budget, seed, world)


def test_long_texts_are_cut_and_those_without_predictions_dropped() -> None:
    ids = torch.arange(10, dtype=torch.int32)
    found = usable([(ids, 4), (ids, 9), (ids, 8), (ids[:3], 1), (ids[:4], 1)], 8)
    assert [(len(text.ids), text.prompt) for text in found] == [(8, 4), (4, 1)]


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 3), st.integers(0, 9))
def test_texts_end_a_little_behind_their_first_repetition(continuation: list[int], prompt: int, kept: int) -> None:
    ids = np.array([9] * prompt + continuation, dtype=np.int32)
    runs = [tuple(continuation[i : i + 8]) for i in range(len(continuation) - 7)]
    end = next((i + 8 for i, run in enumerate(runs) if run in runs[:i]), len(continuation))
    assert first_repeat(ids[prompt:]) == end
    found = usable([(ids, prompt)], 100, kept)
    expected = min(len(ids), prompt + end + kept)
    assert [len(text.ids) for text in found] == ([expected] if expected - max(prompt, 2) >= 2 else [])


@given(st.integers(0, 200), st.integers(1, 60))
def test_held_out_texts_come_from_all_of_the_store(count: int, every: int) -> None:
    texts = texts_of([(1, 2)] * count)
    train, held_out = split(texts, every)
    assert sorted(int(t.ids[0]) for t in train + held_out) == [1000 * i for i in range(count)]
    assert bool(held_out) == (count >= 2 and every >= 2)


@given(st.lists(st.integers(0, 12), max_size=80), st.integers(2, 9))
def test_all_texts_of_a_prompt_are_on_the_same_side(prompts: list[int], every: int) -> None:
    texts = [Text(np.array([prompt, prompt % 3, number], dtype=np.int32), 2) for number, prompt in enumerate(prompts)]
    sides = [{tuple(text.ids[:2].tolist()) for text in side} for side in split(texts, every)]
    assert not sides[0] & sides[1]
    distinct = len(set(prompts))
    assert len(sides[1]) == (0 if distinct < 2 else 1 + (distinct - min(every, distinct)) // every)
    assert sum(map(len, split(texts, every))) == len(texts)


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 10))
def test_the_draft_vocabulary_is_what_the_target_emits_most(tokens: list[int], size: int) -> None:
    counts = token_counts(torch.tensor(tokens, dtype=torch.int64), 10)
    ids = draft_vocabulary(counts, size)
    best = sorted(range(10), key=lambda i: (-tokens.count(i), i))[:size]
    assert ids.tolist() == sorted(best)
    tables = vocabulary_tables(ids, 10)
    assert (torch.arange(size) + tables["d2t"]).tolist() == ids.tolist() == tables["t2d"].nonzero().flatten().tolist()
    expected = sum(token in best for token in tokens) / len(tokens) if tokens else 0.0
    assert coverage(counts, ids) == pytest.approx(expected)


@given(st.integers(1, 4), st.integers(1, 2), st.integers(1, 12), st.integers(0, 2**16))
@settings(max_examples=40, deadline=None)
def test_chain_lengths_are_runs_of_hits_behind_a_root(steps: int, batch: int, rows: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    hits = torch.rand(steps, batch, rows, generator=generator) < 0.6
    counted = torch.rand(steps, batch, rows, generator=generator) < 0.9
    roots = accepted = 0
    for row in range(batch):
        for root in range(rows - steps + 1):
            if all(counted[s, row, root + s] for s in range(steps)):
                roots += 1
                for s in range(steps):
                    if not hits[s, row, root + s]:
                        break
                    accepted += 1
    assert chain_lengths(hits, counted) == (roots, accepted)


MIXED = "gated_deltanet-readout+output"


@pytest.fixture(scope="module", params=["llama-output", "gated_deltanet-readout", "gated_deltanet-output", MIXED])
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Loaded spec, model folder and frozen target."""
    family, of = request.param.split("-")
    folder = tmp_path_factory.mktemp(request.param)
    loaded = write_spec(folder / "spec.yaml", family, of.split("+") if "+" in of else of)
    model = write_model(folder / "model", loaded)
    return loaded, model, load_target(model, "cpu", torch.float32)


def made(stand, draft_ids: torch.Tensor) -> EagleHead:  # type: ignore[no-untyped-def]
    """The stand's initial head."""
    loaded, model, target = stand
    geometry = checkpoint_geometry(model)
    head = EagleHead(loaded.spec.eagle_geometry, target.embedding)
    initialise(head, load_checkpoint(model, weight_table(geometry), geometry, torch.float32), geometry, draft_ids, 0)
    return head


def test_the_law_is_the_targets_within_the_draft_vocabulary(stand) -> None:  # type: ignore[no-untyped-def]
    loaded, _, target = stand
    ids = draft_vocabulary(torch.arange(48), 24)
    draft = loaded.spec.draft
    batch = make_batch(texts_of([(2, 5), (3, 9)]))
    batch = type(batch)(batch.ids % 48, batch.rows)
    teacher = Teacher(target, draft.aux_features, ids, 1 << 20)
    lesson = teacher.lesson(batch, 7)
    _, hidden = target.states(batch.ids, [])
    for number, row in enumerate(batch.rows.tolist()):
        text, place = divmod(row, batch.ids.shape[1] - 1)
        whole = target.logits(hidden[text, place + 1]).softmax(-1)
        assert float(lesson.mass[number]) == pytest.approx(float(whole[ids].sum()), rel=1e-4)
        torch.testing.assert_close(lesson.law[number], whole[ids] / whole[ids].sum(), rtol=1e-4, atol=1e-6)
    kept = teacher.lesson(batch, 7)
    assert kept.features is lesson.features
    assert torch.equal(kept.law, lesson.law)


def test_a_head_begins_as_the_targets_last_layer(stand) -> None:  # type: ignore[no-untyped-def]
    loaded, model, target = stand
    ids = draft_vocabulary(torch.arange(48), 24)
    head, draft = made(stand, ids), loaded.spec.draft
    assert head.target_ids.tolist() == ids.tolist()
    assert torch.equal(head.lm_head.weight, target.embedding[ids])
    geometry = checkpoint_geometry(model)
    weights = load_checkpoint(model, weight_table(geometry), geometry, torch.float32)
    assert torch.equal(head.midlayer.mlp.down_proj.weight, weights["down_proj"][-1])
    assert torch.equal(head.midlayer.hidden_norm.weight, weights["input_layernorm"][-1])
    assert torch.equal(head.norm.weight, weights["norm"])
    if geometry.family == "llama":
        attention = head.midlayer.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            assert torch.equal(getattr(attention, name).weight[:, 32:], weights[name][-1])
            assert 0 < getattr(attention, name).weight[:, :32].abs().max() < 0.2
        assert torch.equal(attention.o_proj.weight, weights["o_proj"][-1])
    texts = [torch.randint(48, (4, 30), generator=torch.Generator().manual_seed(5)) for _ in range(3)]
    initialise_fc(head, target, texts, draft.aux_features, 1)
    x = torch.cat([target.states(ids, draft.aux_features)[0][:, :-1].flatten(0, 1) for ids in texts]).double()
    y = torch.cat([target.states(ids, [AuxFeature(1, "input")])[0][:, 1:].flatten(0, 1) for ids in texts]).double()
    weight = head.fc.weight.detach().double()
    # A minimum of |x W' - y|^2 + ridge |W|^2 for a small ridge: its gradient vanishes there.
    ridge = RIDGE * float((x.T @ x).diagonal().mean())
    gradient = (x @ weight.T - y).T @ x + ridge * weight
    assert float(gradient.abs().max()) < 1e-4 * float((y.T @ x).abs().max())


def test_an_export_holds_the_heads_tensors_in_small_shards(
    stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # type: ignore[no-untyped-def]
    loaded, _, target = stand
    monkeypatch.setattr(export, "MAX_SHARD_BYTES", 20_000)
    head = made(stand, draft_vocabulary(torch.arange(48), 24))
    draft, eagle = loaded.spec.draft, loaded.spec.eagle_geometry
    config = head_config(eagle, draft.aux_hidden_state_layer_ids, draft.aux_hidden_state_of)
    (tmp_path / "model-00001-of-00009.safetensors").write_bytes(b"of another export")
    sums = export_head(head, tmp_path, config)
    files = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(files) > 1
    assert sorted(sums) == ["config.json", *(path.name for path in files)]
    assert all(path.stat().st_size <= 20_000 for path in files)
    assert set(checkpoint_headers(tmp_path)) == set(stored(head))
    table = head_weight_table(eagle)
    back = load_checkpoint(tmp_path, table, loaded.spec.target.geometry, torch.float32)
    again = EagleHead(eagle, target.embedding)
    names = {entry.name: entry.checkpoint_name for entry in table}
    again.load_state_dict({names[name]: tensor for name, tensor in back.items()})
    round_to_stored(head)
    features = torch.randn(1, 9, head.fc.in_features)
    ids = torch.randint(48, (1, 9))
    for ours, theirs in zip(unroll(head, features, ids, 3), unroll(again, features, ids, 3), strict=True):
        assert torch.equal(ours, theirs)


def test_a_head_that_knows_other_features_is_refused(stand, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    loaded, _, _ = stand
    draft, family = loaded.spec.draft, loaded.spec.target.family
    head = made(stand, draft_vocabulary(torch.arange(48), 24))
    export_head(head, tmp_path / "head", head_config(loaded.spec.eagle_geometry, (0, 1), draft.aux_hidden_state_of))
    check_drafter(loaded, tmp_path / "head")
    others = [{"of": "input"}, {"of": draft.aux_hidden_state_of, "aux_hidden_state_layer_ids": [1, 0]}]
    for number, change in enumerate(others):
        other = write_spec(tmp_path / f"{number}.yaml", family, **change)
        with pytest.raises(DiagnosticError) as caught:
            check_drafter(other, tmp_path / "head")
        (found,) = caught.value.diagnostics
        assert found.code == "SPC410"
        assert "of layer 0" in found.message
        assert "draft.aux_hidden_state_layer_ids=[0,1]" in found.help
        assert found.span is not None
