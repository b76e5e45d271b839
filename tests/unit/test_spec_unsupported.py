"""Compile-time refusals: a legal spec is loaded, and what can't be compiled yet is said with its place."""

from __future__ import annotations

import pytest

from specc.codes.entry import SPEC_START
from specc.spec import loads, unsupported

DELTANET = (
    "specc: 1\nname: t\ntarget:\n  family: gated_deltanet\n"
    "  config: {num_hidden_layers: 2, hidden_size: 64, num_heads: 2, head_dim: 32, vocab_size: 256}\n"
)


def refusals(text: str, target: str = "reference") -> list[tuple[str, int | None]]:
    found = unsupported(loads(text), target)
    return [(item.code, None if item.span is None else item.span.line) for item in found]


def test_a_plain_transformer_compiles_for_the_reference() -> None:
    assert refusals(SPEC_START) == []


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        (SPEC_START, "cuda", [("SPC200", None)]),
        (SPEC_START, "ascend", []),
        (SPEC_START + "backend: {ascend: {}}\n", "ascend", []),
        (SPEC_START, "triton", []),
        (SPEC_START + "backend: {triton: {}}\n", "triton", []),
        (DELTANET, "reference", []),
        (DELTANET.replace("{num", "{use_short_conv: false, num"), "reference", []),
        (DELTANET + "runtime: {dtype: float64}\n", "reference", []),
        (DELTANET + "runtime: {state_dtype: bfloat16}\n", "reference", []),
        (DELTANET + "runtime: {dtype: bfloat16, state_dtype: bfloat16}\n", "ascend", []),
        (DELTANET + "runtime: {state_dtype: bfloat16}\n", "onnx", [("SPC204", 6)]),
        (SPEC_START + "runtime: {kv_layout: paged, kv_block_size: 7}\n", "reference", []),
        (SPEC_START + "runtime: {kv_layout: paged, kv_block_size: 16}\n", "triton", []),
        (SPEC_START + "runtime: {kv_layout: paged, kv_block_size: 8}\n", "triton", [("SPC203", 5)]),
        (SPEC_START + "runtime: {kv_layout: paged, kv_block_size: 48}\n", "triton", [("SPC203", 5)]),
        (SPEC_START + "runtime: {kv_layout: paged, dtype: bfloat16}\n", "ascend", [("SPC203", 5)]),
        (SPEC_START + "runtime: {kv_layout: paged, dtype: float64}\n", "onnx", [("SPC203", 5)]),
        (SPEC_START + "runtime: {kv_layout: paged, dtype: float64}\n", "mlir", [("SPC203", 5), ("SPC204", 5)]),
        (SPEC_START + "runtime: {dtype: float64}\n", "reference", []),
        (SPEC_START + "runtime: {dtype: bfloat16}\n", "triton", []),
        (SPEC_START + "runtime: {dtype: float64}\n", "triton", [("SPC204", 5)]),
        (DELTANET + "runtime: {dtype: float16}\n", "triton", []),
        (DELTANET + "runtime: {state_dtype: bfloat16}\n", "triton", [("SPC204", 6)]),
    ],
)
def test_refusals(text: str, target: str, expected: list[tuple[str, int | None]]) -> None:
    assert refusals(text, target) == expected


def test_ascend_contracts_are_checked_for_its_target_without_its_section() -> None:
    text = SPEC_START + "draft: {method: prompt_lookup, num_speculative_tokens: 16}\n"
    assert [code for code, _ in refusals(text, "ascend")] == ["SPC160"]
    assert refusals(text, "reference") == []


def test_a_refusal_of_pages_says_what_is_missing() -> None:
    text = SPEC_START + "runtime: {kv_layout: paged, kv_block_size: 48}\n"
    (finding,) = unsupported(loads(text), "triton")
    assert "powers of two from 16 on" in finding.render()
    assert "write `kv_block_size: 64`" in finding.render()
    for target, missing in (("onnx", "no op that appends rows"), ("ascend", "no pass makes of a block table")):
        (finding,) = unsupported(loads(text.replace("48", "128")), target)
        assert missing in finding.render()
        assert "take the target reference or triton" in finding.render()


def test_a_refusal_says_what_there_is() -> None:
    (finding,) = unsupported(loads(DELTANET + "runtime: {state_dtype: bfloat16}\n"), "triton")
    assert "recurrent states in bfloat16" in finding.render()
    assert "write `state_dtype: float32`; ascend, reference keep bfloat16 states" in finding.render()
