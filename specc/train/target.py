"""`specc train target`: corpus, baseline, training, export and model card, each done once per output folder."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specc import __version__
from specc.diagnostics import DiagnosticError, error
from specc.output import make_folder, write_text
from specc.train.card import write_card
from specc.train.checkpoint import LOG
from specc.train.dataset import Dataset, domain_stream, load_dataset, prepare
from specc.train.evaluate import scores
from specc.train.export import export
from specc.train.gated_delta import GatedDeltaModel, configs
from specc.train.loop import Trainer
from specc.train.ngram import KEY_BITS, domain_bits, train_kneser_ney
from specc.train.recipe import Recipe
from specc.train.schedule import TrainConfig

BASELINE = "ngram.json"
RESULT = "result.json"
ORDER = 5
VOCABULARIES = {"small": 4096, "tiny": 512}

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What to train: `corpus` is a prepared folder to use instead of preparing `recipe` in `out`."""

    out: Path
    config: str
    recipe: Recipe
    root: Path
    corpus: Path | None
    training: TrainConfig
    device: str


def prepare_data(job: Job, say: Say) -> tuple[Dataset, dict[str, Any]]:
    """The tokenised corpus and the baseline's held-out scores; made unless they are there."""
    make_folder(job.out)
    folder = job.corpus or job.out / "corpus"
    if job.corpus is not None:
        data = load_dataset(folder)
    else:
        if not folder.is_dir():
            say(f"preparing the corpus `{job.recipe.name}` in {folder}")
        data = prepare(job.recipe, job.root, folder, VOCABULARIES[job.config])
    path = folder / BASELINE
    if not path.is_file():
        say("counting the n-gram baseline")
        write_text(path, _json(baseline(data)))
    return data, json.loads(path.read_text("utf-8"))


def baseline(data: Dataset) -> dict[str, Any]:
    """Held-out scores of the modified Kneser-Ney model: a 5-gram, or as long as fits large vocabularies.

    `held_out`: counted once on everything, as the neural model is trained. `by_domain`: each domain scored by a model
    of that domain's text alone, which is told more than the neural model is.
    """
    order = min(ORDER, KEY_BITS // (data.vocab_size - 1).bit_length())
    whole = domain_bits(train_kneser_ney(data.train, data.vocab_size, order), data.held_out)
    alone = np.zeros_like(whole)
    for domain in range(alone.size):
        model = train_kneser_ney(domain_stream(data, domain), data.vocab_size, order)
        alone[domain] = domain_bits(model, data.held_out)[domain]
    found = {"held_out": scores(data.held_out, whole), "by_domain": scores(data.held_out, alone)}
    return {"order": order} | {kind: {n: s.to_json() for n, s in part.items()} for kind, part in found.items()}


def train_target(job: Job, say: Say) -> dict[str, Any]:
    """Train, or go on with a run that was interrupted; write OUT/model. Returns the result that the card shows."""
    data, ngram = prepare_data(job, say)
    device = _device(job.device)
    if data.train.size <= job.training.batch * (job.training.sequence + 1) * 2:
        message = f"{data.train.size} training tokens are too few for one batch"
        raise DiagnosticError([error("SPC471", message, help="add sources to the recipe, or lower --batch")])
    model = GatedDeltaModel(configs(data.vocab_size)[job.config], job.training.seed)
    trainer = Trainer(model, data, job.training, job.out, device)
    say(f"training {sum(p.numel() for p in model.parameters()):,} parameters on {device_name(device)}")
    state = trainer.run(lambda record: say(_line(record)))
    tokens = state.step * job.training.batch * job.training.sequence
    result = {
        "specc": __version__,
        "torch": torch.__version__,
        "device": device_name(device),
        "parameters": sum(p.numel() for p in model.parameters()),
        "config": model.config.to_json(),
        "training": asdict(job.training),
        "steps": state.step,
        "tokens": tokens,
        "seconds": round(state.seconds, 1),
        "tokens_per_second": round(tokens / max(state.seconds, 1e-9)),
        "held_out": {name: score.to_json() for name, score in trainer.scores.items()},
        "ngram": ngram,
    }
    folder = job.out / "model"
    result["sha256"] = export(trainer.model, data.folder / "tokenizer.json", folder)
    write_text(folder / RESULT, _json(result))
    write_text(folder / LOG, (job.out / LOG).read_text("utf-8"))
    write_card(folder, result, data.facts)
    return result


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        message = "this machine has no CUDA device that torch can use"
        raise DiagnosticError([error("SPC474", message, help="train with --device cpu")])
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """What the results were made on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def _line(record: dict[str, Any]) -> str:
    """A log record for people."""
    if "held_out" in record:
        found = ", ".join(f"{name} {score['bits_per_byte']:.4f}" for name, score in record["held_out"].items())
        return f"step {record['step']}: held-out bits per byte: {found}"
    return (
        f"step {record['step']}: loss {record['loss']:.4f}, norm {record['norm']:.2f}, rate {record['rate']:.2e}, "
        f"{record['seconds']:.0f} s, {record['tokens_per_second']:,} tokens/s"
    )


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=1, default=_plain) + "\n"


def _plain(value: object) -> object:
    """numpy's numbers in JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"no JSON for {type(value).__name__}")
