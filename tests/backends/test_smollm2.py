"""The generated module on SmolLM2-135M-Instruct against transformers with the weights of the same folder.

All 20 prompts of 128 tokens are `python -m specc.bench.parity tests/data/parity_prompts.jsonl`; here fewer, for CI.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from specc.bench.parity import BOUND, SPECS, compare
from specc.bench.peer import load_peer, module_logits, peer_logits, relative_error
from specc.runtime.cache import is_complete, model_folder
from specc.runtime.generate import Request
from specc.runtime.prompts import Prompt, load_prompts
from specc.runtime.session import Session, open_session, run_prompts
from specc.spec import load

MODEL = "smollm2-135m-instruct"
PROMPTS = load_prompts(Path(__file__).resolve().parents[1] / "data" / "parity_prompts.jsonl")
FEW = (PROMPTS[0], PROMPTS[5], PROMPTS[8], PROMPTS[19])
TOKENS = 48

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.skipif(not is_complete(model_folder(MODEL)), reason=f"needs: specc fetch {MODEL}"),
]


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    """Prompt lookup with a tree, without stop tokens."""
    found = open_session(load(SPECS / "smollm2-prompt-lookup-tree.yaml"), MODEL, ignore_eos=True)
    yield found
    found.decoder.close()


@pytest.fixture(scope="module")
def peer(session: Session) -> Any:
    return load_peer(session.model)


def request(session: Session, prompt: Prompt) -> Request:
    return Request(0, prompt.name, tuple(prompt.first_ids(session.tokenizer)))


@pytest.mark.parametrize("prompt", FEW, ids=[prompt.name for prompt in FEW])
def test_texts_and_logits_are_those_of_transformers(session: Session, peer: Any, prompt: Prompt) -> None:
    found = compare(session, peer, request(session, prompt), TOKENS)
    assert found["plain_equal"]
    assert found["speculative_equal"]
    assert found["relative_error"] <= BOUND


def test_prefill_logits_of_all_prompts_are_those_of_transformers(session: Session, peer: Any) -> None:
    errors = {}
    for prompt in PROMPTS:
        ids = request(session, prompt).ids
        ours = module_logits(session.module, session.decoder, ids, 1)[1]
        errors[prompt.name] = relative_error(ours, peer_logits(peer, ids, len(ids) - 1))
    assert len(errors) == 20
    assert max(errors.values()) <= BOUND, errors


def test_a_wrong_weight_would_be_seen(session: Session, peer: Any) -> None:
    """The bound is tight enough to see one layer's norm off by a tenth of a percent."""
    ids = request(session, PROMPTS[0]).ids
    weights = session.decoder.weights
    layers = weights.input_layernorm
    changed = weights._replace(input_layernorm=(layers[0] * 1.001, *layers[1:]))
    with torch.no_grad():
        state, lengths = session.module.init_state(1), torch.tensor([len(ids)])
        ours = session.module.prefill(changed, state, torch.tensor([list(ids)]), lengths)[1]
    assert relative_error(ours, peer_logits(peer, ids, len(ids) - 1)) > BOUND


def test_ragged_batches_are_lossless_and_equal_their_rows(session: Session) -> None:
    prompts = PROMPTS[:4]
    result = run_prompts(session, prompts, 24, verify_lossless=True)
    assert result.lossless is not None
    assert (result.lossless.tokens, result.lossless.differences) == (96, [])
    alone = run_prompts(session, prompts[2:3], 24)
    assert alone.batches[0].results[0].tokens == result.batches[0].results[2].tokens
