"""The Gated DeltaNet judge of the parity tests against flash-linear-attention itself, where that is at hand.

flash-linear-attention is neither installed nor part of the project, because transformers would switch to its GPU
kernels. Unzip its wheels (`pip download --no-deps fla-core flash-linear-attention`) into a folder and set SPECC_FLA to
the folder that then holds `fla/`: two of its files, the naive recurrence and the layer, are loaded by path. What they
import beside torch (kernels, caches, norms, einops) is stood in for by a few lines of torch.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specc.ir.ops.delta import delta_rule
from tests.backends import fla_reference as fla
from tests.backends.hf_reference import computing_in_float64
from tests.backends.recurrent_models import DELTANETS, write_model

ROOT = os.environ.get("SPECC_FLA", "")
pytestmark = pytest.mark.skipif(
    not ROOT, reason="set SPECC_FLA to a folder with flash-linear-attention's unzipped `fla/` to compare with its code"
)
RULE = "fla/ops/gated_delta_rule/naive.py"
LAYER = "fla/layers/gated_deltanet.py"


def rearrange(value: Tensor, pattern: str, **sizes: int) -> Tensor:
    """The patterns of `einops.rearrange` that the two files use."""
    if pattern == "... (h d) -> ... h d":
        return value.unflatten(-1, (-1, sizes["d"]))
    if pattern == "b t h d -> b t (h d)":
        return value.flatten(-2)
    if pattern == "b h (n c) d -> b h n c d":
        return value.unflatten(2, (-1, sizes["c"]))
    assert pattern == "b h n c d -> b h (n c) d", pattern
    return value.flatten(2, 3)


class RMSNorm(nn.Module):
    """Both norms of the layer: with a gate, times silu of it."""

    def __init__(self, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden_size)), eps

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        normed = F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        return normed if gate is None else normed * F.silu(gate)


class ShortConvolution(nn.Conv1d):
    """Its parameters; the layer convolves q, k and v at once with `causal_conv1d`."""

    def __init__(self, hidden_size: int, kernel_size: int, bias: bool, activation: str) -> None:
        super().__init__(hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias)
        self.backend, self.activation = "torch", activation


def causal_conv1d(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, backend: str) -> tuple[Tensor, None]:
    """x [B,T,D], weight [D,W] -> [B,T,D]."""
    assert (activation, backend) == ("silu", "torch")
    padded = F.pad(x.transpose(1, 2), (weight.shape[1] - 1, 0))
    return F.silu(F.conv1d(padded, weight[:, None], bias, groups=len(weight))).transpose(1, 2), None


def loaded(path: str, name: str, monkeypatch: pytest.MonkeyPatch, **stand_ins: dict[str, Any]) -> ModuleType:
    """One file of flash-linear-attention, its imports of `stand_ins` (dots as `__`) and einops answered from here."""
    for key, members in {"einops": {"rearrange": rearrange}, **stand_ins}.items():
        module = ModuleType(key.replace("__", "."))
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location(name, Path(ROOT) / path)
    assert spec is not None, path
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def naive(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return loaded(RULE, "fla_naive", monkeypatch)


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours.double() - theirs.double()).abs().max() / theirs.double().abs().max())


def inputs(length: int, seed: int) -> dict[str, Tensor]:
    """B = 2, H = 3, K = 8, V = 6; slow to fast decays; keys repeat, beta up to 2."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(2, length, 3, *shape, generator=generator, dtype=torch.float64)

    q, k, v = normal(8), normal(8), normal(6)
    k[:, 1::4] = k[:, ::4][:, : k[:, 1::4].shape[1]]
    decay = -torch.exp(torch.empty(2, length, 3, dtype=torch.float64).uniform_(-7, 1.5, generator=generator))
    return {"q": q, "k": k, "v": v, "g": decay, "beta": 2 * torch.sigmoid(normal())}


def unit(x: Tensor) -> Tensor:
    return x / torch.sqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(("wide", "bound"), [(True, 1e-10), (False, 1e-5)])
@pytest.mark.parametrize("length", [1, 7, 100])
def test_the_recurrence(naive: ModuleType, length: int, wide: bool, bound: float) -> None:
    """Its recurrence, its chunks (float64 only), the judge's matrix form and the compiler's op agree."""
    data = inputs(length, length)
    dtype = torch.float64 if wide else torch.float32
    scaled = {**data, "q": unit(data["q"]), "k": unit(data["k"])}
    given = {name: value.to(dtype) for name, value in scaled.items()}
    if wide:
        with computing_in_float64(naive):
            theirs, state = naive.naive_recurrent_gated_delta_rule(**given, output_final_state=True)
            chunks, _ = naive.naive_chunk_gated_delta_rule(**given, chunk_size=16)
    else:
        theirs, state = naive.naive_recurrent_gated_delta_rule(**given, output_final_state=True)
        chunks = theirs
    assert theirs.dtype == dtype
    q, k, v = ((scaled[name] * (8**-0.5 if name == "q" else 1)).transpose(1, 2).flatten(0, 1) for name in "qkv")
    alpha, beta = (x.transpose(1, 2).flatten(0, 1) for x in (scaled["g"].exp(), scaled["beta"]))
    judged, final = fla.gated_delta_rule(q, k, v, alpha, beta)
    errors = {
        "judge": relative(judged.unflatten(0, (2, 3)).transpose(1, 2), theirs),
        "judge's state": relative(final.unflatten(0, (2, 3)), state.mT),
        "chunks": relative(chunks, theirs),
    }
    empty = torch.zeros(2, 3, 6, 8, dtype=dtype)
    narrow = {name: value.to(dtype) for name, value in data.items()}
    out, _, after = delta_rule(empty, *(narrow[name] for name in ("q", "k", "v", "g", "beta")))
    errors |= {"op": relative(out, theirs), "op's state": relative(after, state.mT)}
    assert max(errors.values()) <= bound, errors


def gated_rule(naive: ModuleType) -> Any:
    """What the layer calls, its flags read as its kernel documents them, on the naive recurrence."""

    def rule(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, A_log: Tensor, dt_bias: Tensor,
        use_qk_l2norm_in_kernel: bool, use_gate_in_kernel: bool, use_beta_sigmoid_in_kernel: bool,
        allow_neg_eigval: bool, state_v_first: bool, **_: Any,
    ) -> tuple[Tensor, None]:  # fmt: skip
        assert use_qk_l2norm_in_kernel
        assert use_gate_in_kernel
        assert use_beta_sigmoid_in_kernel
        shared = v.shape[2] // q.shape[2]
        decay = -A_log.exp() * F.softplus(g + dt_bias)
        rate = (2 if allow_neg_eigval else 1) * beta.sigmoid()
        q, k = (unit(x).repeat_interleave(shared, dim=2) for x in (q, k))
        with computing_in_float64(naive):
            return naive.naive_recurrent_gated_delta_rule(q=q, k=k, v=v, beta=rate, g=decay)

    return rule


@pytest.mark.parametrize("name", DELTANETS)
def test_the_layer(naive: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its layer takes the judge's parameters under the same names and gives the same output in float64."""
    rule = gated_rule(naive)
    same = {"unpad_hidden_states": lambda hidden_states, cu_seqlens, **_: (hidden_states, None, cu_seqlens)}
    same |= {"repad_hidden_states": lambda hidden_states, **_: hidden_states}
    same |= {"get_layer_cache": lambda **_: None, "update_layer_cache": lambda **_: None}
    modules = {"FusedRMSNormGated": RMSNorm, "RMSNorm": RMSNorm, "ShortConvolution": ShortConvolution}
    layer_file = loaded(
        LAYER, "fla_layer", monkeypatch,
        fla={}, fla__layers={}, fla__layers__utils=same, fla__modules=modules,
        fla__modules__convolution={"causal_conv1d": causal_conv1d}, fla__ops={},
        fla__ops__gated_delta_rule=dict.fromkeys(
            ("chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule"), rule
        ),
    )  # fmt: skip
    write_model(DELTANETS[name], tmp_path)
    judge = fla.load(tmp_path)
    config = judge.config
    names = "hidden_size expand_v head_dim num_heads num_v_heads use_gate use_short_conv allow_neg_eigval conv_size"
    keys = {key: getattr(config, key) for key in (*names.split(), "conv_bias", "norm_eps")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises against models without convolutions
        theirs = layer_file.GatedDeltaNet(**keys).double().eval()
    x = torch.randn(2, 40, config.hidden_size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for block in judge.model.layers:
        theirs.load_state_dict(block.attn.state_dict())
        with torch.no_grad():
            expected, ours = theirs(x)[0], block.attn(x)
        error = relative(ours, expected)
        assert error <= 1e-10
