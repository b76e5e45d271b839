"""The training-time test of EAGLE-3 heads: against a loop over roots, and against the compiled draft stage."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.lower.drafts.state import head_geometry, head_weight_table
from specc.models.checkpoint import stored_tensors
from specc.models.geometry import EagleGeometry, RopeScaling
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from specc.train.draft.gated_delta_decode import GatedDeltaTarget
from specc.train.draft.head import EagleHead, rotate
from specc.train.draft.unroll import UnrolledLoss, row_weights, unroll
from tests.unit.decoding_fixtures import (
    Decoding,
    head_weights,
    plain_forward,
    prefixed,
    small_spec,
    target_weights,
)

PROMPTS = [[3, 1, 4, 1, 5, 9], [2, 7], [6, 5, 3]]
EAGLE: dict[str, Any] = {
    "method": "eagle3",
    "aux_hidden_state_layer_ids": [0, 1],
    "aux_hidden_state_of": "output",
    "tree": "chain",
    "num_speculative_tokens": 5,
}


def geometry(**changes: Any) -> EagleGeometry:
    sizes: dict[str, Any] = {
        "target_hidden_size": 16,
        "feature_sizes": (12, 12),
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "vocab_size": 31,
        "draft_vocab_size": 17,
        "max_position_embeddings": 64,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-5,
        "attention_bias": True,
        "mlp_bias": True,
    }
    return EagleGeometry(**(sizes | changes))


def random_head(g: EagleGeometry, seed: int = 0) -> EagleHead:
    """A float64 head whose every weight matters."""
    generator = torch.Generator().manual_seed(seed)
    head = EagleHead(g, torch.randn(g.vocab_size, g.hidden_size, generator=generator, dtype=torch.float64)).double()
    with torch.no_grad():
        for parameter in head.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.2 * noise if parameter.dim() == 1 else noise / parameter.shape[-1] ** 0.5)
    return head


def by_roots(head: EagleHead, features: torch.Tensor, ids: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """One text, one root after the other, one row after the other: what drafting along the text would do."""
    g, layer = head.geometry, head.midlayer
    outputs = torch.full((steps, len(ids) - 1, g.hidden_size), torch.nan, dtype=torch.float64)
    for root in range(len(ids) - 1):
        residual = head.fc(features[: root + 1])
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for row in range(min(root + steps, len(ids) - 1)):
            feature = residual[row] if row <= root else outputs[row - root - 1, row - 1]
            x = torch.cat((layer.input_layernorm(head.embedding[ids[row + 1]]), layer.hidden_norm(feature)))
            rotary = head.rotary(torch.tensor([row]))
            attention = layer.self_attn
            q, k, v = (
                p(x).unflatten(-1, (-1, g.head_dim)) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            q, k = (rotate(part[None, None], rotary)[0, 0] for part in (q, k))
            keys.append(k)
            values.append(v)
            heads = []
            for number in range(g.num_attention_heads):
                group = number // (g.num_attention_heads // g.num_key_value_heads)
                scores = torch.stack([q[number] @ key[group] for key in keys]) * g.head_dim**-0.5
                heads.append(scores.softmax(0) @ torch.stack([value[group] for value in values]))
            middle = feature + attention.o_proj(torch.cat(heads))
            out = middle + layer.mlp(layer.post_attention_layernorm(middle))
            if row >= root:
                outputs[row - root, row] = out
    return list(outputs)


@given(st.integers(0, 2**20), st.integers(2, 9), st.integers(1, 5), st.sampled_from([1, 2, 4]))
@settings(max_examples=15, deadline=None)
def test_unrolling_is_the_loop_over_roots(seed: int, length: int, steps: int, groups: int) -> None:
    g = geometry(num_key_value_heads=groups)
    head = random_head(g, seed)
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(2, length, 24, generator=generator, dtype=torch.float64)
    ids = torch.randint(31, (2, length), generator=generator)
    found = unroll(head, features, ids, steps)
    for row in range(2):
        for step, expected in enumerate(by_roots(head, features[row], ids[row], steps)):
            torch.testing.assert_close(found[step][row, step:], expected[step:], rtol=1e-9, atol=1e-9)
            assert found[step].isfinite().all()


@pytest.mark.parametrize("draft_vocabulary", [31, 17])
@pytest.mark.parametrize("scaling", [None, {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0,
                                            "high_freq_factor": 4.0, "original_max_position_embeddings": 8}],
                         ids=["plain", "llama3"])  # fmt: skip
def test_every_depth_of_a_drafted_chain_has_the_log_probabilities_of_its_step(
    draft_vocabulary: int, scaling: dict[str, Any] | None
) -> None:
    config = {"draft_vocab_size": draft_vocabulary} | ({"rope_scaling": scaling} if scaling else {})
    spec = small_spec(EAGLE | {"config": config})
    target, weights = target_weights(spec), head_weights(spec)
    eagle = spec.eagle_geometry
    assert eagle is not None
    assert eagle.rope_scaling == (None if scaling is None else RopeScaling(4.0, 1.0, 4.0, 8))
    head = EagleHead(eagle, target["embed_tokens"]).double()
    stored = stored_tensors(weights, head_weight_table(eagle))
    head.load_state_dict({name: tensor for name, tensor in stored.items() if name != "embed_tokens.weight"})
    decoding = Decoding.start(spec, {**target, **prefixed(weights)}, PROMPTS)
    for _ in range(3):
        texts = [list(text) for text in decoding.texts]
        draft_result = decoding.run("draft")
        for row, text in enumerate(texts):
            chain = draft_result["tokens"][row].tolist()
            assert chain[0] == text[-1]
            ids = torch.tensor([text + chain[1:]])
            outputs = plain_forward(target, spec.target.geometry, ids[0, :-1].tolist())[1]
            features = torch.cat([outputs[0], outputs[1]], -1)[None]
            features = torch.nn.functional.pad(features, (0, 0, 0, 1))
            for step, out in enumerate(unroll(head, features, ids, len(chain) - 1)):
                law = head.logits(out[0, len(text) - 2 + step]).log_softmax(-1)
                best = int(law.argmax())
                assert int(head.target_ids[best]) == chain[step + 1]
                torch.testing.assert_close(
                    law[best].float(), draft_result["log_probs"][row, step + 1], rtol=1e-5, atol=1e-6
                )
        decoding.step(draft_result)


DELTA = {
    "num_hidden_layers": 3, "hidden_size": 16, "num_heads": 2, "head_dim": 8, "expand_v": 1.5, "conv_size": 4,
    "intermediate_size": 24, "vocab_size": 31, "max_position_embeddings": 256,
}  # fmt: skip


@pytest.mark.parametrize("of", ["readout", "output", "input", ["readout", "output"], ["input", "readout"]])
def test_a_head_on_a_recurrent_target_sees_the_features_of_the_compiled_program(of: str | list[str]) -> None:
    """The frozen target in float32 gives the features, the program is float64: errors are those of float32."""
    config = {"draft_vocab_size": 17, "num_attention_heads": 2, "head_dim": 8}
    draft = EAGLE | {"config": config, "aux_hidden_state_layer_ids": [0, 2], "aux_hidden_state_of": of}
    spec = small_spec(draft, target={"family": "gated_deltanet", "config": DELTA})
    geometry, eagle = spec.target.geometry, spec.eagle_geometry
    assert eagle is not None
    weights = random_weights(weight_table(geometry), geometry, 0, torch.float64)
    table = head_weight_table(eagle)
    own = random_weights(table, head_geometry(eagle), 3, torch.float64, include_optional=True)
    head = EagleHead(eagle, weights["embed_tokens"]).double()
    stored = stored_tensors(own, table)
    head.load_state_dict({name: tensor for name, tensor in stored.items() if name != "embed_tokens.weight"})
    single = {k: tuple(x.float() for x in v) if isinstance(v, tuple) else v.float() for k, v in weights.items()}
    target = GatedDeltaTarget(geometry, single, torch.float32)
    decoding = Decoding.start(spec, {**weights, **prefixed(own)}, PROMPTS)
    for _ in range(2):
        texts = [list(text) for text in decoding.texts]
        drafted = decoding.run("draft")
        for row, text in enumerate(texts):
            chain = drafted["tokens"][row].tolist()
            ids = torch.tensor([text + chain[1:]])
            features, _ = target.states(ids, spec.draft.aux_features)
            for step, out in enumerate(unroll(head, features.double(), ids, len(chain) - 1)):
                law = head.logits(out[0, len(text) - 2 + step]).log_softmax(-1)
                best = int((head.target_ids == chain[step + 1]).nonzero())
                torch.testing.assert_close(law[best].float(), drafted["log_probs"][row, step + 1], rtol=2e-4, atol=2e-4)
        decoding.step(drafted)


def test_the_loss_counts_rows_with_a_root_and_has_gradients_through_the_chain() -> None:
    g = geometry()
    head = random_head(g)
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(2, 6, 24, generator=generator, dtype=torch.float64)
    ids = torch.randint(31, (2, 6), generator=generator)
    rows, mass = torch.tensor([0, 1, 4, 6, 8]), torch.tensor([0.5, 1.0, 0.25, 1.0, 0.9])
    law = torch.randn(5, 17, generator=generator).softmax(-1)
    sums = UnrolledLoss(head, 3)(features, ids, rows, law, mass)
    with torch.no_grad():
        outputs = [out.flatten(0, 1) for out in unroll(head, features, ids, 3)]
        laws = [head.logits(out).float().log_softmax(-1) for out in outputs]
    for step, (found, output) in enumerate(zip(sums.detach(), laws, strict=True)):
        expected = 0.0
        for number, row in enumerate(rows.tolist()):
            if row % 5 >= step:
                expected -= float(mass[number] * (law[number] * output[row]).sum())
        assert float(found) == pytest.approx(expected, rel=1e-5)
    assert row_weights(rows, mass, 5, 3).count_nonzero(1).tolist() == [5, 4, 2]
    sums[2].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())


def test_half_precision_products_give_the_loss_of_single_precision() -> None:
    """As on a GPU: matrix products in bfloat16 by autocast, weights, norms, residual stream and loss in float32."""
    g = geometry(head_dim=8, draft_vocab_size=31)
    head = random_head(g).float()
    generator = torch.Generator().manual_seed(1)
    features, ids = torch.randn(3, 40, 24, generator=generator), torch.randint(31, (3, 40), generator=generator)
    rows = torch.arange(5, 110)
    law, mass = (3 * torch.randn(105, 31, generator=generator)).softmax(-1), torch.ones(105)
    loss = UnrolledLoss(head, 4)
    whole = loss(features, ids, rows, law, mass)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = loss(features.bfloat16(), ids, rows, law, mass)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, whole, rtol=1e-2, atol=0.0)
    half.sum().backward()
    assert all(
        p.grad is not None and p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in head.parameters()
    )
