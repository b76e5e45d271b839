"""The training loop: AdamW, one pass per step, checkpoints that a killed run goes on from, a log in JSON lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specc.train.checkpoint import (
    CHECKPOINT,
    LOG,
    append_log,
    cut_log,
    read_checkpoint,
    remove_unfinished,
    write_checkpoint,
)
from specc.train.dataset import Dataset
from specc.train.evaluate import Score, neural_bits, scores
from specc.train.export import rounded
from specc.train.gated_delta import GatedDeltaModel
from specc.train.schedule import Sampler, TrainConfig
from specc.train.step import GradientStep

Report = Callable[[dict[str, Any]], None]


@dataclass(slots=True)
class State:
    """Where a run stands: steps done and seconds of training they took."""

    step: int = 0
    seconds: float = 0.0


def optimiser(model: GatedDeltaModel, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; only matrices decay, and not the embeddings (norms, A_log, dt_bias and filters do not)."""
    decayed: list[torch.nn.Parameter] = []
    free: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (decayed if parameter.dim() == 2 and "embeddings" not in name else free).append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": free, "weight_decay": 0.0}]
    fused = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=fused)


class Trainer:
    """One run in one folder. `run` trains to the end; called again on the same folder it goes on where it stopped."""

    def __init__(
        self, model: GatedDeltaModel, data: Dataset, config: TrainConfig, folder: Path, device: torch.device
    ) -> None:
        self.model = model.to(device)
        self.data, self.config, self.folder, self.device = data, config, folder, device
        self.state = State()
        self.scores: dict[str, Score] = {}
        self.sampler = Sampler(data.train.size, config.batch, config.sequence, config.seed)
        self.optimiser = optimiser(model, config)
        self.stream = torch.from_numpy(data.train.astype("int32")).to(device)
        self.offsets = torch.arange(config.sequence + 1, device=device)
        self.starts = self.sampler.epoch_starts(0)
        self.epoch = 0
        self.gradients = GradientStep(self.model, device, config.compile)

    def batch(self, step: int) -> Tensor:
        """Token ids [batch, sequence + 1] of a step."""
        starts = torch.from_numpy(self._starts(step)).to(self.device)
        return self.stream[starts[:, None] + self.offsets].long()

    def _starts(self, step: int) -> Any:
        """`Sampler.starts`, with the epoch's permutation kept."""
        epoch, place = divmod(step, self.sampler.steps_per_epoch)
        if epoch != self.epoch:
            self.starts, self.epoch = self.sampler.epoch_starts(epoch), epoch
        found = self.starts[place * self.config.batch : (place + 1) * self.config.batch]
        return found if found.size == self.config.batch else self.sampler.starts(step)

    def train_step(self) -> tuple[Tensor, Tensor, float]:
        """One update; returns the loss, the gradient norm before clipping (both on the device) and the rate."""
        rate = self.config.rate(self.state.step, self.state.seconds)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        loss = self.gradients(self.batch(self.state.step))
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip)
        self.optimiser.step()
        self.state.step += 1
        return loss, norm, rate

    def run(self, report: Report = lambda record: None) -> State:
        """Train until `config` says that it is over; `report` sees every log record."""
        self.resume()
        config = self.config
        if config.progress(self.state.step, self.state.seconds) < 1.0:
            self.warm_up()
        started = time.monotonic() - self.state.seconds
        while config.progress(self.state.step, self.state.seconds) < 1.0:
            loss, norm, rate = self.train_step()
            step = self.state.step
            self._wait_for_device(step)
            self.state.seconds = time.monotonic() - started
            over = config.progress(step, self.state.seconds) >= 1.0
            if step % config.log_every == 0 or over:
                self.log(report, self._record(float(loss), float(norm), rate))
            paused = time.monotonic()
            if step % config.checkpoint_every == 0 or over:
                self.save()
            if step % config.evaluate_every == 0 or over:
                self.log(report, self.evaluation())
            started += time.monotonic() - paused
        if not self.scores:
            # The run had ended already, or was stopped between its last step and the evaluation.
            self.log(report, self.evaluation())
        return self.state

    def warm_up(self) -> None:
        """Compile before the clock starts."""
        if self.device.type == "cuda":
            self.gradients(self.batch(self.state.step))
            torch.cuda.synchronize()

    def _wait_for_device(self, step: int) -> None:
        """Keep the host at most a few steps ahead, so that the clock that drives the schedule is true."""
        if self.device.type == "cuda" and step % 4 == 0:
            torch.cuda.synchronize()

    def _record(self, loss: float, norm: float, rate: float) -> dict[str, Any]:
        tokens = self.state.step * self.config.batch * self.config.sequence
        return {
            "step": self.state.step,
            "tokens": tokens,
            "loss": round(loss, 5),
            "rate": round(rate, 7),
            "norm": round(norm, 4),
            "seconds": round(self.state.seconds, 2),
            "tokens_per_second": round(tokens / max(self.state.seconds, 1e-9)),
        }

    def evaluation(self) -> dict[str, Any]:
        """Held-out scores by domain, of the weights as they would be stored (and not compiled: any shape)."""
        bits = neural_bits(rounded(self.model), self.data.held_out, self.device)
        self.scores = scores(self.data.held_out, bits)
        return {"step": self.state.step, "held_out": {name: score.to_json() for name, score in self.scores.items()}}

    def log(self, report: Report, record: dict[str, Any]) -> None:
        """Append a line to the log."""
        append_log(self.folder, record)
        report(record)

    def save(self) -> None:
        """Write the checkpoint under a temporary name and rename it: a killed run leaves the one before."""
        content = {
            "step": self.state.step,
            "seconds": self.state.seconds,
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        write_checkpoint(self.folder, content)

    def resume(self) -> bool:
        """Load the checkpoint, if there is one, and cut the log back to it."""
        remove_unfinished(self.folder)
        if not (self.folder / CHECKPOINT).is_file():
            (self.folder / LOG).unlink(missing_ok=True)
            return False
        read_checkpoint(self.folder, self.device, self._restore)
        self._cut_log()
        return True

    def _restore(self, content: Mapping[str, Any]) -> None:
        self.model.load_state_dict(content["model"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.state = State(int(content["step"]), float(content["seconds"]))

    def _cut_log(self) -> None:
        """Drop the lines of steps that the checkpoint does not hold."""
        over = self.config.progress(self.state.step, self.state.seconds) >= 1.0
        last = self.state.step - over  # the evaluation of a finished run is done again
        cut_log(self.folder, lambda r: bool(r["step"] <= (last if "held_out" in r else self.state.step)))
