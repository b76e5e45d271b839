"""Each semantic rule on both sides of its border: what is refused has a legal neighbour."""

from __future__ import annotations

import pytest

from specc.codes.entry import SPEC_START
from specc.diagnostics import SpecError
from specc.spec import loads

EAGLE = SPEC_START + "draft: {method: eagle3, "
BIGRAM = SPEC_START + "draft: {method: bigram, "
LOOKUP = SPEC_START + "draft: {method: prompt_lookup, "
SAMPLED = "sampling: {temperature: 1.0}\n"
MODEL = (
    SPEC_START + "draft: {method: draft_model, config: {num_hidden_layers: 1, hidden_size: 32, num_attention_heads: 2,"
    " intermediate_size: 64, vocab_size: 256, max_position_embeddings: 128}}\n"
)
HYBRID = (
    "specc: 1\nname: demo\ntarget: {family: qwen3_next, config: {num_hidden_layers: 4, hidden_size: 64, "
    "num_attention_heads: 4, intermediate_size: 64, vocab_size: 256}}\n"
)
MIXED = "draft: {method: eagle3, aux_hidden_state_layer_ids: [3, 2], aux_hidden_state_of: KINDS}\n"
READOUT = "draft: {method: eagle3, aux_hidden_state_layer_ids: LAYERS, aux_hidden_state_of: readout}\n"


def codes(text: str) -> list[str]:
    """The codes of the errors; empty if the spec loads."""
    try:
        loads(text)
    except SpecError as problem:
        return [item.code for item in problem.diagnostics]
    return []


@pytest.mark.parametrize(
    ("legal", "refused", "code"),
    [
        (EAGLE + "tree: dynamic, top_k: 3, num_steps: 2, num_speculative_tokens: 12}\n",
         EAGLE + "tree: dynamic, top_k: 3, num_steps: 2, num_speculative_tokens: 13}\n", "SPC110"),
        (EAGLE + "tree: dynamic, top_k: 1, num_steps: 4, num_speculative_tokens: 4}\n",
         EAGLE + "tree: dynamic, top_k: 1, num_steps: 4, num_speculative_tokens: 5}\n", "SPC110"),
        (LOOKUP + "tree: dynamic, top_k: 3, num_steps: 2, num_speculative_tokens: 6}\n",
         LOOKUP + "tree: dynamic, top_k: 3, num_steps: 2, num_speculative_tokens: 7}\n", "SPC110"),
        (LOOKUP + "tree: chain, top_k: 1}\n", LOOKUP + "tree: chain, top_k: 2}\n", "SPC111"),
        (LOOKUP + "num_steps: 3, num_speculative_tokens: 3}\n",
         LOOKUP + "num_steps: 3, num_speculative_tokens: 4}\n", "SPC112"),
        (EAGLE + "tree: static, choices: [[0], [1], [1, 0]]}\n",
         EAGLE + "tree: static, choices: [[0], [1, 0]]}\n", "SPC114"),
        (EAGLE + "tree: static, choices: [[0], [1], [2], [3]]}\n",
         EAGLE + "tree: static, choices: [[0], [1], [3], [2]]}\n", "SPC115"),
        (EAGLE + "tree: static, choices: [[0], [0, 0], [0, 0, 0]]}\n",
         EAGLE + "tree: static, choices: [[0], [0, 0], [0, 0]]}\n", "SPC116"),
        (EAGLE + "tree: static, num_steps: 2, choices: [[0], [0, 0]]}\n",
         EAGLE + "tree: static, num_steps: 1, choices: [[0], [0, 0]]}\n", "SPC117"),
        (EAGLE + "tree: static, num_speculative_tokens: 2, choices: [[0], [1]]}\n",
         EAGLE + "tree: static, num_speculative_tokens: 1, choices: [[0], [1]]}\n", "SPC118"),
        (EAGLE + "tree: static, top_k: 2, choices: [[0], [1]]}\n",
         EAGLE + "tree: static, top_k: 1, choices: [[0], [1]]}\n", "SPC119"),
        (LOOKUP + "ngram: {min: 3, max: 3}}\n", LOOKUP + "ngram: {min: 4, max: 3}}\n", "SPC124"),
        (EAGLE + "prune: {min_path_log_prob: -1}}\n", EAGLE + "prune: {}}\n", "SPC125"),
        (EAGLE + "tree: dynamic, top_k: 8, config: {draft_vocab_size: 8}}\n",
         EAGLE + "tree: dynamic, top_k: 9, config: {draft_vocab_size: 8}}\n", "SPC126"),
        (EAGLE + "config: {draft_vocab_size: 256}}\n", EAGLE + "config: {draft_vocab_size: 257}}\n", "SPC121"),
        (BIGRAM + "tree: dynamic, top_k: 8}\n", BIGRAM + "tree: dynamic, top_k: 9}\n", "SPC126"),
        (BIGRAM + "config: {vocab_size: 256}}\n", BIGRAM + "config: {vocab_size: 255}}\n", "SPC121"),
        (BIGRAM + "config: {candidates_per_token: 256}}\n",
         BIGRAM + "config: {candidates_per_token: 257}}\n", "SPC121"),
        (BIGRAM + "tree: dynamic}\naccept: {method: rejection, rule: target_only}\n" + SAMPLED,
         BIGRAM + "tree: dynamic}\naccept: {method: rejection, rule: true_q}\n" + SAMPLED, "SPC132"),
        (BIGRAM + "prune: {min_path_log_prob: -1}}\n", BIGRAM + "window: 4}\n", "SPC100"),
        (BIGRAM + "tree: static, choices: [[0], [7]]}\n",
         BIGRAM + "tree: static, choices: [[0], [8]]}\n", "SPC126"),
        (MODEL, MODEL.replace("vocab_size: 256, max_position_embeddings: 128", "vocab_size: 255"), "SPC121"),
        (EAGLE + "aux_hidden_state_layer_ids: [0, 1], aux_hidden_state_of: input}\n",
         EAGLE + "aux_hidden_state_layer_ids: [0, 2], aux_hidden_state_of: input}\n", "SPC122"),
        (EAGLE + "aux_hidden_state_layer_ids: [1], aux_hidden_state_of: output}\n",
         EAGLE + "aux_hidden_state_of: output}\n", "SPC123"),
        (EAGLE + "aux_hidden_state_layer_ids: [1], aux_hidden_state_of: output}\n",
         EAGLE + "aux_hidden_state_layer_ids: [1], aux_hidden_state_of: readout}\n", "SPC129"),
        (EAGLE + "aux_hidden_state_layer_ids: [0, 1], aux_hidden_state_of: [input, output]}\n",
         EAGLE + "aux_hidden_state_layer_ids: [0, 1], aux_hidden_state_of: [input]}\n", "SPC138"),
        (EAGLE + "aux_hidden_state_layer_ids: [0], aux_hidden_state_of: [input]}\n",
         EAGLE + "aux_hidden_state_layer_ids: [0], aux_hidden_state_of: [input, output]}\n", "SPC138"),
        (EAGLE + "aux_hidden_state_layer_ids: [1, 1], aux_hidden_state_of: [input, output]}\n",
         EAGLE + "aux_hidden_state_layer_ids: [1, 1], aux_hidden_state_of: [input, input]}\n", "SPC122"),
        (HYBRID + MIXED.replace("KINDS", "[output, readout]"), HYBRID + MIXED.replace("KINDS", "[readout, output]"),
         "SPC129"),
        (HYBRID + READOUT.replace("LAYERS", "[0, 2]"), HYBRID + READOUT.replace("LAYERS", "[0, 3]"), "SPC129"),
        (SPEC_START + "accept: {stop_tokens: [255]}\n", SPEC_START + "accept: {stop_tokens: [256]}\n", "SPC135"),
        (MODEL + "runtime: {max_sequence_length: 123}\n",
         MODEL + "runtime: {max_sequence_length: 124}\n", "SPC151"),
        (SPEC_START + "accept: {method: typical, lossless: false}\n" + SAMPLED,
         SPEC_START + "accept: {method: typical}\n" + SAMPLED, "SPC130"),
        (EAGLE + "tree: static, choices: [[0], [1]]}\naccept: {method: rejection, rule: true_q}\n" + SAMPLED,
         EAGLE + "tree: dynamic}\naccept: {method: rejection, rule: true_q}\n" + SAMPLED, "SPC131"),
        (EAGLE + "tree: chain}\naccept: {method: rejection, rule: true_q}\n" + SAMPLED,
         EAGLE + "tree: chain, prune: {min_path_log_prob: -3}}\naccept: {method: rejection, rule: true_q}\n"
         + SAMPLED, "SPC131"),
        (EAGLE + "tree: dynamic, top_k: 1}\naccept: {method: rejection, rule: true_q}\n" + SAMPLED,
         EAGLE + "tree: dynamic, top_k: 2}\naccept: {method: rejection, rule: true_q}\n" + SAMPLED, "SPC131"),
        (LOOKUP + "tree: chain}\naccept: {method: rejection, rule: target_only}\n" + SAMPLED,
         LOOKUP + "tree: chain}\naccept: {method: rejection, rule: true_q}\n" + SAMPLED, "SPC132"),
        (EAGLE + "tree: dynamic, top_k: 1}\ncommit: {kv: length}\n",
         EAGLE + "tree: dynamic, top_k: 2}\ncommit: {kv: length}\n", "SPC140"),
        (EAGLE + "tree: static, choices: [[0], [0, 0]]}\ncommit: {kv: length}\n",
         EAGLE + "tree: static, choices: [[0], [1]]}\ncommit: {kv: length}\n", "SPC140"),
        (LOOKUP + "tree: chain}\ncommit: {kv: path_index, update: deferred}\n",
         LOOKUP + "tree: chain}\ncommit: {kv: length, update: deferred}\n", "SPC141"),
        (HYBRID + "commit: {kv: path_index, state: factors, update: deferred, window: 8}\n",
         HYBRID + "commit: {kv: path_index, state: replay, update: deferred}\n", "SPC142"),
        (HYBRID + "verify: {recurrence: hybrid}\ncommit: {state: snapshots}\n",
         HYBRID + "verify: {recurrence: hybrid}\ncommit: {window: 2}\n", "SPC100"),
        (LOOKUP + "num_speculative_tokens: 15}\nbackend: {ascend: {}}\n",
         LOOKUP + "num_speculative_tokens: 16}\nbackend: {ascend: {}}\n", "SPC160"),
        (SPEC_START + "runtime: {kv_layout: paged, kv_block_size: 384}\nbackend: {ascend: {}}\n",
         SPEC_START + "runtime: {kv_layout: paged, kv_block_size: 640}\nbackend: {ascend: {}}\n", "SPC162"),
    ],
)  # fmt: skip
def test_border(legal: str, refused: str, code: str) -> None:
    assert codes(legal) == []
    assert codes(refused) == [code]


@pytest.mark.parametrize(
    "choices", ["[[0], [1], [0, 0]]", "[[0], [0, 0]]", "[[0], [1], [2], [3]]", "[[0], [0, 0], [0, 0, 0]]"]
)
def test_trees_of_public_bug_reports_are_legal(choices: str) -> None:
    assert codes(EAGLE + f"tree: static, choices: {choices}}}\n") == []


def test_inapplicable_key_that_says_its_default_is_legal() -> None:
    assert codes(SPEC_START + "draft: {method: none, num_speculative_tokens: 0, top_k: 1, window: 0}\n") == []
    assert codes(SPEC_START + "draft: {method: none, num_speculative_tokens: 2}\n") == ["SPC100"]


def test_warnings_do_not_refuse() -> None:
    loaded = loads(EAGLE + "tree: dynamic, num_steps: 9, num_speculative_tokens: 6}\nsampling: {top_p: 0.5}\n")
    assert [item.code for item in loaded.warnings] == ["SPC127", "SPC137"]
    assert {item.severity for item in loaded.warnings} == {"warning"}


def test_all_errors_come_in_source_order() -> None:
    text = EAGLE + "tree: chain, top_k: 2}\naccept: {stop_tokens: [300]}\nverify: {attention: x}\nname2: 1\n"
    with pytest.raises(SpecError) as caught:
        loads("nam: x\n" + text)
    lines = [item.span.line for item in caught.value.diagnostics if item.span is not None]
    assert [item.code for item in caught.value.diagnostics] == ["SPC020", "SPC111", "SPC135", "SPC023", "SPC020"]
    assert lines == sorted(lines)


def test_a_broken_section_does_not_hide_the_others() -> None:
    text = SPEC_START.replace("vocab_size: 256", "vocab_size: many") + "draft: {method: prompt_lookup, top_k: 2}\n"
    assert codes(text) == ["SPC022", "SPC111"]
