"""The model card: README.md beside the weights, written from the result and the corpus facts."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specc.output import write_text

CARD = """\
# {title}

A small Gated DeltaNet language model, trained from scratch by `specc train target` as a real recurrent target for
speculative decoding. It continues Python code, English prose of the 19th century and grade-school word problems in
the manner of its training text. It is no assistant and knows nothing: do not rely on what it says.

Layout: the checkpoint names and config keys of flash-linear-attention's `GatedDeltaNet` (`model_type:
gated_deltanet`), {parameters:,} parameters, {layers} layers, hidden size {hidden}, {heads} heads of {head_dim},
convolutions of {conv}, MLP {mlp}, vocabulary {vocab} (own byte-level BPE, tied embeddings), stored as bfloat16.

## Held-out text

Whole files that were not trained on, taken by the hash of their names. Bits per byte of the stored (rounded) weights
in float32, windows of 1,024 tokens that overlap by half, beside interpolated modified Kneser-Ney {order}-grams scored
on the same held-out tokens: one counted on all the training tokens, and one per domain counted on that domain alone
(so it is told the domain, which the neural model is not).

{scores}

Of the held-out text's runs of 13 words, this share also stands in the training text: {overlap}.

## Training

{steps:,} steps of {batch} x {sequence} tokens = {tokens:,} tokens, {epochs:.1f} times the {train_tokens:,} training
tokens, in {minutes:.1f} minutes on one {device}: {rate:,} tokens/s (compilation and evaluation not counted). AdamW
(betas {betas}, weight decay {weight_decay} on matrices, clipping at {clip}), {warmup} warm-up steps to {peak:g},
half a cosine to {final:g} of that, bfloat16 matrix products with a float32 residual stream, seed {seed}, torch {torch}.
The log is `training_log.jsonl`.
{notes}
## Data

{train_bytes:,} bytes of training text. Exact copies are dropped, and so is every text that shares a run of 13 words
with a prompt or reference answer of {prompts}.

{sources}

## Again

Put the sources into a folder DATA as the recipe's `origin` entries say, then

    specc train target --data recipe.json --root DATA --out OUT --prepare-only
    specc train target --data recipe.json --root DATA --out OUT --device {command_device} {command}

The corpus and the split are the same on every machine; the weights depend on the device and on how many steps it
makes in that time. `--config tiny --steps 30` runs on a CPU in seconds.

## Limits

Small, English and Python only, trained on little text many times over; arithmetic is mostly wrong. Contexts beyond
1,024 tokens were never trained on. Outputs may repeat training text verbatim, whose licences are named above.
"""


def write_card(folder: Path, result: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write README.md, whole or not at all."""
    write_text(folder / "README.md", card_text(result, facts))


def card_text(result: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """The card; `result` is result.json, `facts` corpus.json."""
    config, training = result["config"], result["training"]
    per_step = training["batch"] * training["sequence"]
    recipe = facts["recipe"]
    return CARD.format(
        title=recipe["name"],
        parameters=result["parameters"],
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_heads"],
        head_dim=config["head_dim"],
        conv=config["conv_size"],
        mlp=config["intermediate_size"],
        vocab=config["vocab_size"],
        order=result["ngram"]["order"],
        scores=score_table(result),
        overlap=", ".join(f"{name} {share:.1%}" for name, share in facts["held_out_overlap"].items()),
        steps=result["steps"],
        batch=training["batch"],
        sequence=training["sequence"],
        tokens=result["steps"] * per_step,
        epochs=result["tokens"] / facts["train_tokens"],
        train_tokens=facts["train_tokens"],
        **run_fields(result),
        train_bytes=facts["train_bytes"],
        prompts=", ".join(f"`{name}`" for name in recipe["test_prompts"]) or "no test set",
        sources=source_table(facts),
        notes=f"\n{textwrap.fill(recipe['notes'], 118)}\n" if recipe["notes"] else "",
        command_device="cpu" if result["device"].startswith("CPU") else "cuda",
        command=command_options(training),
    )


def run_fields(result: Mapping[str, Any]) -> dict[str, Any]:
    """What every card says of a training run, under the names of its places."""
    training = result["training"]
    return {
        "minutes": result["seconds"] / 60,
        "device": result["device"],
        "rate": result["tokens_per_second"],
        "betas": "/".join(map(str, training["betas"])),
        "weight_decay": training["weight_decay"],
        "clip": training["clip"],
        "warmup": training["warmup_steps"],
        "peak": training["learning_rate"],
        "final": training["final_share"],
        "seed": training["seed"],
        "torch": result["torch"],
    }


def command_options(training: Mapping[str, Any]) -> str:
    """The options that repeat a training."""
    names = ("steps", "minutes", "batch", "sequence", "learning_rate", "seed")
    given = [(name, training[name]) for name in names if training[name] is not None]
    return " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in given)


def score_table(result: Mapping[str, Any]) -> str:
    """Model and baselines by domain."""
    lines = [
        "| domain | held-out bytes | tokens | perplexity per token | bits per byte | n-gram | n-gram of the domain "
        "| below the n-gram by | below the domain's by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, score in result["held_out"].items():
        ours = score["bits_per_byte"]
        whole, alone = (result["ngram"][kind][name]["bits_per_byte"] for kind in ("held_out", "by_domain"))
        lines.append(
            f"| {name} | {score['bytes']:,} | {score['tokens']:,} | {score['perplexity']:.2f} "
            f"| {ours:.4f} | {whole:.4f} | {alone:.4f} | {1 - ours / whole:.1%} | {1 - ours / alone:.1%} |"
        )
    return "\n".join(lines)


def source_table(facts: Mapping[str, Any]) -> str:
    """The sources with licence, version, what they gave and what was dropped."""
    lines = [
        "| source | domain | licence | version | documents | bytes | copies dropped | dropped for test prompts |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for source in facts["recipe"]["sources"]:
        count = facts["counts"][source["name"]]
        lines.append(
            f"| {source['name']} | {source['domain']} | {source['licence']} | {source['version']} "
            f"| {count['documents']:,} | {count['bytes']:,} | {count['copies']} | {count['contaminated']} |"
        )
    return "\n".join(lines)
