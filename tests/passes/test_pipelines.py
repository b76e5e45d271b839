"""The pipelines: names as the language has them, order checked before anything runs, options through the spec."""

from __future__ import annotations

import pytest

from specc.diagnostics import DiagnosticError
from specc.driver import lower_spec, run_passes
from specc.passes import AVAILABLE, default_pipeline, pipeline_of
from specc.passes.page_caches import PageCaches
from specc.program import BUFFERED, INDEX_SAFE, LAYER_MAJOR, NPU_LEGAL, TREE_MASKED
from specc.spec import LoadedSpec, loads
from specc.spec.names import PASS_NAMES

TEXT = """
specc: 1
name: small
target:
  family: llama
  config: {num_hidden_layers: 2, hidden_size: 16, num_attention_heads: 2, intermediate_size: 32, vocab_size: 31}
draft: {method: prompt_lookup, tree: dynamic, top_k: 2, num_steps: 2, num_speculative_tokens: 4}
runtime: {max_sequence_length: 32, dtype: float64}
"""


def spec(more: str = "", runtime: str = "max_sequence_length: 32") -> LoadedSpec:
    return loads(TEXT.replace("max_sequence_length: 32", runtime) + more)


def test_every_pass_has_a_name_of_the_language() -> None:
    assert set(AVAILABLE) <= set(PASS_NAMES)


@pytest.mark.parametrize("name", sorted(set(PASS_NAMES) - set(AVAILABLE)))
def test_passes_of_later_versions_are_refused_with_a_code(name: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        pipeline_of(spec(f"passes: [{name}]\n").spec)
    assert [item.code for item in caught.value.diagnostics] == ["SPC251"]


def test_deferral_stands_in_the_default_pipeline_only_where_the_spec_defers() -> None:
    names = [
        [item.name for item in default_pipeline(spec(text).spec).passes]
        for text in ("", "commit: {update: deferred}\n")
    ]
    assert "fuse-deferred-state-update" not in names[0]
    assert [name for name in names[1] if name != "fuse-deferred-state-update"] == names[0]


def test_paged_caches_come_from_their_key_and_need_buffers() -> None:
    """In the default pipeline, in one of the spec's own, and refused where nothing gives the caches their memory."""
    layout = "kv_layout: paged, kv_block_size: 32, max_sequence_length: 32"
    own = "passes: [rewrite-negative-indices, insert-tree-masks, layer-major{}]\n"
    for text in ("", own.format(", plan-buffers")):
        for target, last in (("reference", "page-caches"), ("triton", "fuse-linear")):
            passes = pipeline_of(spec(text, layout).spec, target=target).passes
            assert passes[-1].name == last
            (page,) = [item for item in passes if isinstance(item, PageCaches)]
            assert page.page == 32
    assert "page-caches" not in [item.name for item in default_pipeline(spec("").spec).passes]
    with pytest.raises(DiagnosticError) as caught:
        pipeline_of(spec(own.format(""), layout).spec)
    assert "SPC250" in caught.value.diagnostics[0].render()
    assert "`page-caches` requires BUFFERED" in caught.value.diagnostics[0].render()


def test_a_wrong_order_is_refused_and_the_remedy_names_the_pass() -> None:
    with pytest.raises(DiagnosticError) as caught:
        pipeline_of(spec("passes: [layer-major, rewrite-negative-indices, insert-tree-masks]\n").spec)
    text = caught.value.diagnostics[0].render()
    assert "SPC250" in text
    assert "put `rewrite-negative-indices` before it" in text


def test_a_chosen_pipeline_runs_and_establishes_what_its_passes_promise() -> None:
    loaded = spec("passes: [rewrite-negative-indices, {insert-tree-masks: {}}, layer-major]\n")
    program = run_passes(loaded, lower_spec(loaded)).program
    assert {INDEX_SAFE, TREE_MASKED, LAYER_MAJOR} <= program.properties
    assert BUFFERED not in program.properties


def test_an_unknown_option_is_refused_with_those_the_pass_has() -> None:
    with pytest.raises(DiagnosticError) as caught:
        pipeline_of(spec("passes: [{rewrite-negative-indices: {mask_pading: true}}]\n").spec)
    assert "SPC252" in caught.value.diagnostics[0].render()
    assert "mask_padding" in caught.value.diagnostics[0].render()


@pytest.mark.parametrize("target", ["ascend", "onnx", "mlir"])
@pytest.mark.parametrize(
    "passes", ["", "passes: [rewrite-negative-indices, insert-tree-masks, layer-major, plan-buffers, fuse-linear]\n"]
)
def test_targets_of_values_go_without_buffers_and_end_in_their_form(target: str, passes: str) -> None:
    names = [item.name for item in pipeline_of(spec(passes).spec, target=target).passes]
    assert names[-1] == "legalize-ascend"
    assert not {"plan-buffers", "fuse-linear"} & set(names)
    loaded = spec(passes)
    result = run_passes(loaded, lower_spec(loaded), target=target)
    assert NPU_LEGAL in result.program.properties
    assert BUFFERED not in result.program.properties
    assert any("no plan-buffers" in note.message for note in result.notes("legalize-ascend"))


def test_a_list_with_its_own_options_of_the_last_pass_keeps_them() -> None:
    text = "passes: [rewrite-negative-indices, insert-tree-masks, layer-major, {legalize-ascend: {prefill_chunk: 4}}]\n"
    loaded = spec(text)
    program = run_passes(loaded, lower_spec(loaded), target="ascend").program
    assert program.attributes["prefill_chunk"] == 4


def test_a_list_too_short_for_the_target_is_refused_with_a_remedy() -> None:
    with pytest.raises(DiagnosticError) as caught:
        pipeline_of(spec("passes: [rewrite-negative-indices]\n").spec, target="ascend")
    assert {item.code for item in caught.value.diagnostics} == {"SPC250"}
