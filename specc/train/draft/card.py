"""The card of a trained head: README.md beside its weights, which says what was measured and what was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specc.train.card import run_fields

CARD = """\
# {title}

An EAGLE-3 draft head for `{target}`, trained by `specc train draft`. It proposes tokens that the target then verifies;
it is of no use without that target (fingerprint {fingerprint}), whose embeddings it reads.

Layout: the tensor names of public EAGLE-3 heads (`fc`, `midlayer`, `norm`, `lm_head`, `d2t`, `t2d`), {parameters:,}
parameters in bfloat16. Features: {features}. Draft vocabulary: {draft_vocab:,} of the
target's tokens, by frequency in the target's own output; it covers {covers:.1%} of what the target emitted on held-out
prompts.

## Measured

Along {rows:,} positions of {held_out_texts} held-out texts (those of every 50th prompt, never trained on; at most 256
texts are read), teacher-forced, with the weights as stored:

{agreement}

Greedy chains of depth {depth} would emit {chain_length:.2f} tokens per verification step there, the bonus included.
{compiled}
These are prompts of the same kinds as the training prompts: figures on other prompts are lower, and speed is another
question, which this card does not answer.

## Training

{steps:,} steps, {tokens:,} positions (padding included), {epochs:.1f} epochs over {texts:,} texts of the target
({continuation:,} tokens of its own) in {minutes:.1f} minutes on {processes} x {device}: {rate:,} positions/s.
Training-time test of {unroll} steps, weights {decay}^s; {loops}
soft cross-entropy with the target's law within the draft vocabulary, each row weighted by the mass that the draft
vocabulary holds. AdamW (betas {betas}, weight decay {weight_decay} on matrices, clipping at {clip}), {warmup} warm-up
steps to {peak:g}, half a cosine down to {final:g} of that, seed {seed}, torch {torch}. The prompt's part of a text
carries no loss. fc at the start: {fc}.
`recipe.json` has all options and fingerprints, `training_log.jsonl` the log.

Texts by source: {counts}. Dropped: {dropped}.
"""

COMPILED = """
Decoded with the compiled `{target}` module on {device}, {prompts} held-out prompts, {tokens:,} tokens, the spec's own
tree: acceptance length {acceptance_length:.2f} (tokens per step, bonus included), acceptance by depth {depths}; of
{checked:,} tokens compared with plain decoding {differences} differ beyond rounding.
"""


def card_text(title: str, result: Mapping[str, Any]) -> str:
    """The card; `result` is recipe.json."""
    training, text, held_out = result["training"], result["text"], result["held_out"]
    config, draft = result["draft"]["config"], result["draft"]
    return CARD.format(
        title=title,
        target=result["target"]["name"],
        fingerprint=result["target"]["fingerprint"],
        parameters=result["parameters"],
        features=features_text(draft["aux_hidden_state_layer_ids"], draft["aux_hidden_state_of"]),
        draft_vocab=config["draft_vocab_size"],
        covers=text["vocabulary_covers_held_out"],
        rows=held_out["rows"],
        held_out_texts=text["held_out_texts"],
        agreement=agreement_table(held_out),
        depth=len(held_out["top1"]),
        chain_length=held_out["chain_length"],
        compiled=compiled_text(result.get("compiled")),
        steps=result["steps"],
        tokens=result["tokens"],
        epochs=result["epochs"],
        texts=text["texts"],
        continuation=text["continuation_tokens"],
        processes=result["processes"],
        **run_fields(result),
        unroll=training["unroll"],
        decay=training["decay"],
        loops=loops_text(training["loop_tokens"]),
        fc=result["initialised"]["fc"],
        counts=_listed(text["counts"]),
        dropped=_dropped(text["dropped"]),
    )


def features_text(layers: Sequence[int], of: str | Sequence[str]) -> str:
    """What the head is fed with."""
    if isinstance(of, str):
        return f"`{of}` of the target's layers {', '.join(map(str, layers))}"
    parts = [f"`{kind}` of layer {layer}" for layer, kind in zip(layers, of, strict=True)]
    return "of the target, " + ", ".join(parts)


def loops_text(tokens: int | None) -> str:
    """How texts that repeat themselves were read, here and in the held-out figures."""
    if tokens is None:
        return "texts that repeat themselves are read to their end;"
    return f"all texts (the held-out ones too) end {tokens} tokens behind the first 8 tokens that they repeat;"


def agreement_table(held_out: Mapping[str, Any]) -> str:
    """Agreement by step."""
    lines = ["| step | first choice | among the first four |", "| --- | --- | --- |"]
    for step, (top1, top4) in enumerate(zip(held_out["top1"], held_out["top4"], strict=True)):
        lines.append(f"| {step} | {top1:.1%} | {top4:.1%} |")
    return "\n".join(lines)


def compiled_text(found: Mapping[str, Any] | None) -> str:
    """What the compiled module reached, if it was tried."""
    if found is None:
        return ""
    return COMPILED.format(
        target=found["target"],
        device=found["device"],
        prompts=found["prompts"],
        tokens=found["tokens"],
        acceptance_length=found["acceptance_length"],
        depths=", ".join(f"{share:.2f}" for share in found["per_depth_acceptance"]),
        checked=found["lossless"]["tokens"],
        differences=found["lossless"]["differences"],
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "not recorded"


def _dropped(dropped: Mapping[str, Mapping[str, int]]) -> str:
    """By source and reason."""
    found = [f"{name}: {_listed(reasons)}" for name, reasons in dropped.items() if reasons]
    return "; ".join(found) or "nothing"
