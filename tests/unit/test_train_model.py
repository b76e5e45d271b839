"""The training model against a direct float64 reading of the layer, evaluation windows, schedule, batches, export."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from specc.diagnostics import DiagnosticError
from specc.train.bpe import END_ID
from specc.train.dataset import HeldOut
from specc.train.evaluate import IGNORED, neural_bits, scores, windows
from specc.train.export import export, load_model, rounded
from specc.train.gated_delta import GatedDeltaConfig, GatedDeltaModel, configs
from specc.train.schedule import Sampler, TrainConfig

SMALL = GatedDeltaConfig(
    vocab_size=40, hidden_size=24, num_hidden_layers=2, num_heads=2, head_dim=8, intermediate_size=32
)


def direct_layer(w: dict[str, Tensor], x: Tensor, *, doubled: bool) -> Tensor:
    """One recurrent layer, x [T, D], two heads of 8, position after position, as flash-linear-attention defines it."""
    conv = {}
    for name in "qkv":
        weight = w[f"{name}_conv1d.weight"]
        projected = (x @ w[f"{name}_proj.weight"].T).T[None]
        conv[name] = F.silu(F.conv1d(F.pad(projected, (3, 0)), weight, groups=16)[0].T).view(-1, 2, 8)
    q, k = (conv[name] / (conv[name].square().sum(-1, keepdim=True) + 1e-6).sqrt() for name in "qk")
    g = -w["A_log"].exp() * F.softplus(x @ w["a_proj.weight"].T + w["dt_bias"])
    beta = (x @ w["b_proj.weight"].T).sigmoid() * (2 if doubled else 1)
    rows = []
    state = torch.zeros(2, 8, 8, dtype=x.dtype)
    for t in range(x.shape[0]):
        heads = []
        for h in range(2):
            state[h] = g[t, h].exp() * state[h]
            u = beta[t, h] * (conv["v"][t, h] - state[h] @ k[t, h])
            state[h] = state[h] + torch.outer(u, k[t, h])
            o = state[h] @ q[t, h] * 8**-0.5
            gate = (x[t] @ w["g_proj.weight"].T).view(2, 8)[h]
            heads.append(o * (o.square().mean() + 1e-6).rsqrt() * w["o_norm.weight"] * F.silu(gate))
        rows.append(torch.cat(heads))
    return torch.stack(rows) @ w["o_proj.weight"].T


@pytest.mark.parametrize("doubled", [False, True])
def test_layer_follows_its_definition(doubled: bool) -> None:
    config = GatedDeltaConfig(40, 24, 1, 2, 8, 32, allow_neg_eigval=doubled)
    layer = GatedDeltaModel(config, seed=1).double().model.layers[0].get_submodule("attn")
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if name.endswith("_proj.weight"):
                parameter.mul_(20)
            if name == "o_norm.weight":
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(0))
        x = torch.randn(90, 24, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        expected = direct_layer(dict(layer.named_parameters()), x, doubled=doubled)
        found = layer(x[None])[0]
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-12


def test_initial_values() -> None:
    model = GatedDeltaModel(configs(4096)["small"])
    assert sum(p.numel() for p in model.parameters()) <= 15_000_000
    weights = model.state_dict()
    rates = torch.cat([w.exp() for name, w in weights.items() if name.endswith("A_log")])
    steps = torch.cat([F.softplus(w) for name, w in weights.items() if name.endswith("dt_bias")])
    assert 0 < rates.min() < 4
    assert 12 < rates.max() <= 16
    assert 1e-3 * 0.99 < steps.min() < 1e-2 < steps.max() < 0.1 * 1.01
    residual = weights["model.layers.3.attn.o_proj.weight"].std()
    assert float(residual) == pytest.approx(0.02 / math.sqrt(32), rel=0.05)
    other = GatedDeltaModel(configs(4096)["small"]).state_dict()
    assert all(torch.equal(other[name], w) for name, w in model.state_dict().items())


@given(length=st.integers(0, 200), window=st.integers(2, 60))
def test_windows_predict_every_token_once_with_half_a_window_before_it(length: int, window: int) -> None:
    tokens = np.arange(1, length + 1, dtype=np.uint16)
    predicted = []
    for number, (inputs, targets) in enumerate(windows(tokens, window)):
        assert len(inputs) == len(targets) <= window
        scored = [place for place, target in enumerate(targets) if target != IGNORED]
        assert number == 0 or scored[0] >= window // 2 - 1
        predicted += [targets[place] for place in scored]
        whole = [END_ID, *tokens.tolist(), END_ID]
        start = whole.index(inputs[0])
        assert inputs == whole[start : start + len(inputs)]
    assert predicted == [*range(1, length + 1), END_ID]


def test_bits_are_the_cross_entropy_of_the_documents() -> None:
    model = GatedDeltaModel(SMALL)
    random = np.random.default_rng(0)
    lengths = [3, 17, 40]
    tokens = random.integers(1, 40, sum(lengths)).astype(np.uint16)
    held_out = HeldOut(tokens, np.cumsum([0, *lengths]), np.array([9, 9, 9]), np.array([0, 1, 0]), ("a", "b"))
    expected = np.zeros(2)
    for domain, document in zip([0, 1, 0], held_out.documents(), strict=True):
        ids = torch.tensor([[END_ID, *document.tolist(), END_ID]])
        with torch.no_grad():
            loss = F.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:], reduction="sum")
        expected[domain] += float(loss) / math.log(2)
    bits = neural_bits(model, held_out, torch.device("cpu"), batch=2)
    np.testing.assert_allclose(bits, expected, rtol=1e-5)
    found = scores(held_out, bits)
    assert (found["a"].tokens, found["a"].bytes, found["all"].tokens) == (45, 18, 63)
    assert found["all"].bits_per_byte == pytest.approx(expected.sum() / 27, rel=1e-5)


@given(
    steps=st.integers(1, 300),
    minutes=st.one_of(st.none(), st.floats(0.1, 10)),
    pace=st.floats(0, 30),
    warmup=st.integers(0, 20),
)
def test_rate_rises_then_falls_to_its_end(steps: int, minutes: float | None, pace: float, warmup: int) -> None:
    config = TrainConfig(steps, minutes, warmup_steps=warmup)
    rates = []
    for step in range(steps):
        if config.progress(step, step * pace) >= 1:
            break
        rates.append(config.rate(step, step * pace))
    assert all(0 < rate <= config.learning_rate for rate in rates)
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
    assert config.rate(steps, 0.0) == pytest.approx(
        config.learning_rate * config.final_share * min(1.0, (steps + 1) / max(1, warmup))
    )


@given(length=st.integers(80, 2000), batch=st.integers(1, 4), sequence=st.integers(1, 30), seed=st.integers(0, 99))
def test_an_epoch_reads_no_token_twice(length: int, batch: int, sequence: int, seed: int) -> None:
    sampler = Sampler(length, batch, sequence, seed)
    if (length - 1) // sequence <= batch:
        return
    starts = np.concatenate([sampler.starts(step) for step in range(sampler.steps_per_epoch)])
    assert starts.min() >= 0
    assert starts.max() + sequence + 1 <= length
    assert np.unique(starts[:, None] + np.arange(sequence)).size == starts.size * sequence
    np.testing.assert_array_equal(sampler.starts(0), starts[:batch])
    assert sampler.starts(sampler.steps_per_epoch).size == batch


def test_exported_model_is_the_rounded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr("specc.train.export.MAX_SHARD_BYTES", 8000)
    model = GatedDeltaModel(SMALL)
    export(model, tmp_path / "tokenizer.json", tmp_path / "model")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    assert all(path.stat().st_size < 8000 + 4000 for path in (tmp_path / "model").glob("*.safetensors"))
    loaded, expected = load_model(tmp_path / "model").state_dict(), rounded(model).state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    assert not list((tmp_path / "model").glob(".*"))
    monkeypatch.setattr("specc.train.export.MAX_TOTAL_BYTES", 8000)
    with pytest.raises(ValueError, match="more than 8000"):
        export(model, tmp_path / "tokenizer.json", tmp_path / "model")


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(DiagnosticError, match="is no exported model"):
        load_model(tmp_path)
