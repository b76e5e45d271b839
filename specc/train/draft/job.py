"""`specc train draft`: text, vocabulary, head, training, export and card; each goes on where it stopped."""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc import __version__
from specc.diagnostics import DiagnosticError, error
from specc.models.checkpoint import load_checkpoint
from specc.models.families import checkpoint_geometry
from specc.models.geometry import EagleGeometry
from specc.models.weights import weight_table
from specc.output import make_folder, write_json, write_text
from specc.runtime.model_folder import check_target
from specc.spec import LoadedSpec
from specc.train.checkpoint import CHECKPOINT, LOG
from specc.train.draft.batches import Plan, Text, make_batch, split, usable
from specc.train.draft.bigram import build_bigram, write_bigram
from specc.train.draft.card import card_text
from specc.train.draft.evaluate import Trial, agreement, compiled_acceptance
from specc.train.draft.export import export_head, head_config, round_to_stored
from specc.train.draft.head import EagleHead
from specc.train.draft.initialise import initialise, initialise_fc
from specc.train.draft.loop import DraftConfig, DraftTrainer
from specc.train.draft.parallel import World, opened
from specc.train.draft.store import StoreIndex, Texts, read_index, read_store
from specc.train.draft.targets import FrozenTarget, load_target, target_fingerprint
from specc.train.draft.teacher import Teacher
from specc.train.draft.vocabulary import coverage, draft_vocabulary, token_counts
from specc.train.target import device_name

HELD_OUT_EVERY = 50
MOST_HELD_OUT = 256
FIT_BATCHES, FIT_TEXTS = 8, 8
KEPT_SHARE = 0.4
KEPT_ON_CPU = 2 << 30
TEXTS, HEAD, RECIPE = "texts", "head", "recipe.json"

Say = Callable[[str], None]
WriteTexts = Callable[[FrozenTarget, str, Path, Say], object]
"""Fills a folder with the continuations of a target with this fingerprint; goes on where it was interrupted."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to train. `texts`: a store to use instead of OUT/texts; `write_texts` makes that one (None: it must be
    there). `trial`: how the compiled module is tried at the end, or None."""

    loaded: LoadedSpec
    model: Path
    out: Path
    config: DraftConfig
    device: str = "cpu"
    texts: Path | None = None
    write_texts: WriteTexts | None = None
    trial: Trial | None = None


@dataclass(frozen=True, slots=True)
class Material:
    """Texts and what follows from them: training and held-out texts, draft vocabulary, and facts for the recipe."""

    train: list[Text]
    held_out: list[Text]
    draft_ids: Tensor
    facts: dict[str, Any]


def prepare(job: Job, world: World, say: Say) -> tuple[FrozenTarget, str]:
    """The frozen target and its fingerprint; afterwards the training text is there."""
    if job.device == "cuda" and not torch.cuda.is_available():
        message = "this machine has no CUDA device that torch can use"
        raise DiagnosticError([error("SPC474", message, help="train with --device cpu")])
    check_target(job.loaded, job.model)
    if world.first:
        make_folder(job.out)
    # A recurrent state gathers the rounding of a whole text, and such targets are small here: they stay in float32.
    half = world.device.type == "cuda" and not job.loaded.spec.target.geometry.recurrent
    target = load_target(job.model, world.device, torch.bfloat16 if half else torch.float32)
    fingerprint = target_fingerprint(job.model)
    wanted = job.write_texts is not None and job.texts is None and not (job.out / CHECKPOINT).is_file()
    if job.write_texts is not None and wanted and world.first:
        job.write_texts(target, fingerprint, job.out / TEXTS, say)
        gc.collect()  # what generation captured and cached makes way for training
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
    world.wait()
    return target, fingerprint


def train_draft(job: Job, say: Say) -> dict[str, Any]:
    """Train a head, or go on with a run that was interrupted; OUT/head is the result. Returns recipe.json's content."""
    eagle = _trainable(job.loaded)
    with opened(job.device) as world:
        return _trained(job, eagle, world, say if world.first else (lambda text: None))


def _trained(job: Job, eagle: EagleGeometry, world: World, quiet: Say) -> dict[str, Any]:
    """`train_draft` of one process of a group. What refers to the group (the trainer) ends with this function."""
    target, fingerprint = prepare(job, world, quiet)
    material = _material(job, eagle, fingerprint)
    head, teacher, origin = _head(job, eagle, target, material, world)
    config = replace(job.config, keep_bytes=teacher.room, identity=_identity(job, fingerprint, material))
    trainer = DraftTrainer(head, teacher, material.train, config, job.out, world)
    if not trainer.plan.groups:
        raise _too_little("there are fewer training texts than processes")
    quiet(f"training a head of {sum(p.numel() for p in head.parameters()):,} parameters on "
          f"{world.size} x {device_name(world.device)}")  # fmt: skip

    def evaluate() -> dict[str, Any]:
        texts, depth = material.held_out[:MOST_HELD_OUT], max(job.loaded.spec.depth, config.unroll)
        return agreement(head, teacher, texts, depth, config.train.batch * config.train.sequence).to_json()

    trainer.run(evaluate, lambda record: quiet(log_line(record)))
    if not world.first:
        return {}
    round_to_stored(head)
    result = _recipe(job, eagle, fingerprint, material, trainer, origin) | {"held_out": evaluate()}
    return _export(job, trainer, material, result, quiet)


def count_bigram(job: Job, say: Say) -> dict[str, Any]:
    """Make OUT/head a bigram drafter of the same training text. Returns what was counted. SPC475 for another spec."""
    geometry = job.loaded.spec.bigram_geometry
    if geometry is None:
        raise _no_head(job.loaded, "no table to count", "a spec with `method: bigram` has one")
    with opened(job.device) as world:
        _, fingerprint = prepare(job, world, say)
        index, texts = _store(job, fingerprint)
        made = build_bigram(texts, geometry.vocab_size, geometry.candidates_per_token)
        facts = {"target": {"name": job.model.resolve().name, "fingerprint": fingerprint}, "counts": index.counts}
        if world.first:
            write_bigram(job.out / HEAD, made, facts)
    return made.facts


def _no_head(loaded: LoadedSpec, what: str, help_text: str) -> DiagnosticError:
    message = f"`draft.method: {loaded.spec.draft.method}` has {what}"
    return DiagnosticError([error("SPC475", message, loaded.source.span("draft", "method"), help=help_text)])


def _trainable(loaded: LoadedSpec) -> EagleGeometry:
    """The head's geometry; SPC475 where there is none, or one that is not trained here."""
    eagle = loaded.spec.eagle_geometry
    if loaded.spec.draft.method != "eagle3" or eagle is None:
        raise _no_head(loaded, "no head to train", "a spec with `method: eagle3` has one")
    if eagle.hidden_size != eagle.target_hidden_size:
        message = f"a head of width {eagle.hidden_size} on a target of width {eagle.target_hidden_size} is not trained"
        span = loaded.source.span("draft", "config")
        help_text = "leave draft.config.hidden_size out: such a head reads the target's embeddings"
        raise DiagnosticError([error("SPC475", message, span, help=help_text)])
    return eagle


def _too_little(reason: str) -> DiagnosticError:
    help_text = "generate more: raise --tokens or --text-seconds, or give another folder with --texts"
    return DiagnosticError([error("SPC476", f"too little training text: {reason}", help=help_text)])


def _store(job: Job, fingerprint: str) -> tuple[StoreIndex, Texts]:
    """The training text. SPC478 where there is none, SPC476 for that of another target."""
    folder = job.texts or job.out / TEXTS
    index = read_index(folder)
    if index.target != fingerprint:
        raise _too_little(f"{folder} was written by another target")
    return index, read_store(folder)


def _material(job: Job, eagle: EagleGeometry, fingerprint: str) -> Material:
    """Read and split the texts, and choose the draft vocabulary. SPC476 for too little text, or another target's."""
    index, store = _store(job, fingerprint)
    whole = ((ids.numpy(), prompt) for ids, prompt in store)
    texts = usable(whole, job.config.train.sequence, job.config.loop_tokens)
    if len(texts) < 2:
        raise _too_little(f"there are {len(texts)} usable texts")
    train, held_out = split(texts, HELD_OUT_EVERY)
    counts, unseen = (_emitted(part, eagle.vocab_size) for part in (train, held_out))
    draft_ids = draft_vocabulary(counts, eagle.draft_vocab_size)
    facts = {
        "texts": len(texts),
        "tokens": sum(len(text.ids) for text in texts),
        "continuation_tokens": int(counts.sum() + unseen.sum()),
        "held_out_texts": len(held_out),
        "vocabulary_covers": round(coverage(counts, draft_ids), 4),
        "vocabulary_covers_held_out": round(coverage(unseen, draft_ids), 4),
        "digest": _digest(train),
        "counts": index.counts,
        "dropped": index.dropped,
    }
    return Material(train, held_out, draft_ids, facts)


def _emitted(texts: Sequence[Text], vocab_size: int) -> Tensor:
    """Counts of the target's own tokens."""
    return token_counts(torch.cat([torch.from_numpy(text.ids[text.prompt :]) for text in texts]), vocab_size)


def _digest(texts: Sequence[Text]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        digest.update(text.prompt.to_bytes(4, "little") + text.ids.tobytes())
    return digest.hexdigest()


def _head(
    job: Job, eagle: EagleGeometry, target: FrozenTarget, material: Material, world: World
) -> tuple[EagleHead, Teacher, dict[str, Any]]:
    """The head as the target gives it, its teacher, and where its tensors come from."""
    draft = job.loaded.spec.draft
    shown = draft.aux_features
    geometry = checkpoint_geometry(job.model)
    head = EagleHead(eagle, target.embedding.cpu().float())
    weights = load_checkpoint(job.model, weight_table(geometry), geometry, torch.float32)
    taken = initialise(head, weights, geometry, material.draft_ids, job.config.train.seed)
    head = head.to(world.device)
    fit = []
    for group in Plan.of(material.train, FIT_TEXTS * job.config.train.sequence, 1).groups[:FIT_BATCHES]:
        texts = [material.train[i] for i in group]
        shortest = min(len(text.ids) for text in texts)
        fit.append(make_batch(texts).ids[:, :shortest].to(world.device))
    fc = initialise_fc(head, target, fit, shown, geometry.num_hidden_layers - 1)
    room = KEPT_ON_CPU
    if world.device.type == "cuda":
        room = int(KEPT_SHARE * torch.cuda.mem_get_info(world.device)[0])
    teacher = Teacher(target, shown, material.draft_ids.to(world.device), room)
    return head, teacher, {"from_target": taken, "fc": fc}


def _identity(job: Job, fingerprint: str, material: Material) -> str:
    """What a checkpoint belongs to: everything but how long to train."""
    train = {k: v for k, v in asdict(job.config.train).items() if k not in ("steps", "minutes")}
    draft = job.loaded.spec.draft
    parts = [fingerprint, material.facts["digest"], train, job.config.unroll, job.config.decay, _head_options(draft)]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _head_options(draft: Any) -> dict[str, Any]:
    """The part of a spec's draft section that the head's weights depend on."""
    config = None if draft.config is None else draft.config.model_dump(mode="json")
    of = draft.aux_hidden_state_of
    of = list(of) if isinstance(of, tuple) else of
    return {"aux_hidden_state_layer_ids": list(draft.aux_hidden_state_layer_ids), "aux_hidden_state_of": of,
            "config": config}  # fmt: skip


def _recipe(
    job: Job, eagle: EagleGeometry, fingerprint: str, material: Material, trainer: DraftTrainer, origin: dict[str, Any]
) -> dict[str, Any]:
    """Everything that made the head."""
    state, train = trainer.state, asdict(job.config.train)
    return {
        "specc": __version__,
        "torch": torch.__version__,
        "device": device_name(trainer.world.device),
        "processes": trainer.world.size,
        "spec": job.loaded.spec.name,
        "draft": _head_options(job.loaded.spec.draft),
        "target": {"name": job.model.resolve().name, "fingerprint": fingerprint},
        "text": material.facts,
        "initialised": origin,
        "training": {
            **train,
            "unroll": job.config.unroll,
            "decay": job.config.decay,
            "loop_tokens": job.config.loop_tokens,
        },
        "parameters": sum(parameter.numel() for parameter in trainer.head.parameters()),
        "steps": state.step,
        "tokens": state.tokens,
        "epochs": round(state.step / len(trainer.plan.groups), 2),
        "seconds": round(state.seconds, 1),
        "tokens_per_second": round(state.tokens / max(state.seconds, 1e-9)),
    }


def _export(job: Job, trainer: DraftTrainer, material: Material, result: dict[str, Any], say: Say) -> dict[str, Any]:
    """Write OUT/head, try it in the compiled module, and write recipe, log and card beside it."""
    folder, draft = job.out / HEAD, job.loaded.spec.draft
    config = head_config(trainer.head.geometry, draft.aux_hidden_state_layer_ids, draft.aux_hidden_state_of or "output")
    result["sha256"] = export_head(trainer.head, folder, config)
    held_out = result["held_out"]
    say(f"held-out top-1 by step {held_out['top1']}, chains of that depth emit {held_out['chain_length']} per step")
    _write(job, folder, result)
    if job.trial is not None:
        say("decoding held-out prompts with the compiled module")
        result["compiled"] = compiled_acceptance(job.loaded, job.model, folder, material.held_out, job.trial)
        _write(job, folder, result)
    return result


def _write(job: Job, folder: Path, result: dict[str, Any]) -> None:
    write_json(folder / RECIPE, result)
    if (job.out / LOG).is_file():
        write_text(folder / LOG, (job.out / LOG).read_text("utf-8"))
    write_text(folder / "README.md", card_text(f"{job.loaded.spec.name}: draft head", result))


def log_line(record: dict[str, Any]) -> str:
    """A log record for people."""
    if "held_out" in record:
        found = record["held_out"]
        return f"step {record['step']}: held-out top-1 by step {found['top1']}, chain length {found['chain_length']}"
    return (
        f"step {record['step']}: loss {record['loss']}, norm {record['norm']:.2f}, rate {record['rate']:.2e}, "
        f"epoch {record['epoch']:.2f}, {record['seconds']:.0f} s, {record['tokens_per_second']:,} tokens/s"
    )
