"""The training loop of a head: AdamW on the unrolled loss, by steps or by time, resumable, a log in JSON lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
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
from specc.train.draft.batches import Batch, Plan, Text, make_batch
from specc.train.draft.head import EagleHead
from specc.train.draft.parallel import World
from specc.train.draft.teacher import Teacher
from specc.train.draft.unroll import UnrolledLoss, row_weights
from specc.train.schedule import TrainConfig

HOST_AHEAD = 4
"""Steps that the host may be ahead of the device: the clock drives the schedule."""

Report = Callable[[dict[str, Any]], None]
Evaluate = Callable[[], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """How a head is trained. `train` holds steps, minutes, batch x sequence (positions of a step) and the rate.

    `unroll` steps of the training-time test, step s with weight `decay`^s. `loop_tokens`: how far texts that repeat
    themselves are read behind the first repetition (None: to their end). `keep_bytes`: how much of what the target
    computed is kept on the device for later epochs. `identity` names run and data: checkpoints of another are refused.
    """

    train: TrainConfig
    unroll: int = 4
    decay: float = 0.8
    loop_tokens: int | None = None
    keep_bytes: int = 0
    identity: str = ""


@dataclass(slots=True)
class State:
    """Where a run stands: steps done, positions computed, and seconds of training they took."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def optimiser(head: EagleHead, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; only matrices decay."""
    decayed = [parameter for parameter in head.parameters() if parameter.dim() == 2]
    free = [parameter for parameter in head.parameters() if parameter.dim() != 2]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": free, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.betas, fused=decayed[0].is_cuda)


class DraftTrainer:
    """One run in one folder, in every process of `world`. `run` goes on where an interrupted run stopped."""

    def __init__(
        self,
        head: EagleHead,
        teacher: Teacher,
        texts: Sequence[Text],
        config: DraftConfig,
        folder: Path,
        world: World,
    ) -> None:
        self.head, self.teacher, self.texts = head.to(world.device), teacher, texts
        self.config, self.folder, self.world = config, folder, world
        train = config.train
        self.state = State()
        self.plan = Plan.of(texts, train.batch * train.sequence, train.seed, world.size)
        self.optimiser = optimiser(self.head, train)
        self.loss = world.wrapped(UnrolledLoss(self.head, config.unroll))
        scale = torch.tensor([config.decay**step for step in range(config.unroll)])
        self.scale = (scale / scale.sum()).to(world.device)

    def batch(self, group: int) -> Batch:
        """This process's texts of a group."""
        chosen = self.plan.groups[group][self.world.rank :: self.world.size]
        return make_batch([self.texts[i] for i in chosen]).to(self.world.device)

    def train_step(self) -> tuple[Tensor, Tensor, float]:
        """One update; the mean losses of the steps [unroll], the gradient norm before clipping, and the rate."""
        train, world = self.config.train, self.world
        rate = train.rate(self.state.step, self.state.seconds)
        for part in self.optimiser.param_groups:
            part["lr"] = rate
        group = self.plan.group(self.state.step)
        batch = self.batch(group)
        lesson = self.teacher.lesson(batch, group)
        weight = row_weights(batch.rows, lesson.mass, batch.ids.shape[1] - 1, self.config.unroll).sum(1)
        # Gradients are averaged over the processes, the loss is a mean over all rows of all of them.
        weight = world.total(weight).clamp_min(1e-6)
        with torch.autocast(world.device.type, dtype=torch.bfloat16, enabled=world.device.type == "cuda"):
            sums = self.loss(lesson.features, batch.ids, batch.rows, lesson.law, lesson.mass)
        self.optimiser.zero_grad(set_to_none=True)
        (sums / weight * self.scale).sum().mul(world.size).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), train.clip)
        self.optimiser.step()
        self.state.step += 1
        self.state.tokens += batch.tokens * world.size
        return world.total(sums.detach()) / weight, norm.detach(), rate

    def run(self, evaluate: Evaluate, report: Report = lambda record: None) -> State:
        """Train until `config` says that it is over; every log record goes to `report`."""
        resumed = self.resume()
        train = self.config.train
        if not resumed and self.world.first:
            self.log(report, {"step": 0, "held_out": evaluate()})
        self.world.wait()
        started = time.monotonic() - self.state.seconds
        saved = time.monotonic()
        while train.progress(self.state.step, self.state.seconds) < 1.0:
            losses, norm, rate = self.train_step()
            step = self.state.step
            if self.world.device.type == "cuda" and step % HOST_AHEAD == 0:
                torch.cuda.synchronize()
            self.state.seconds = self.world.agreed(time.monotonic() - started)
            over = train.progress(step, self.state.seconds) >= 1.0
            if self.world.first and (step % train.log_every == 0 or over):
                self.log(report, self._record(losses.tolist(), float(norm), rate))
            paused = time.monotonic()
            if over or step % train.checkpoint_every == 0 or paused - saved > 120:
                saved = paused
                if self.world.first:
                    self.save()
            if step % train.evaluate_every == 0 and not over and self.world.first:
                self.log(report, {"step": step, "held_out": evaluate()})
            started += time.monotonic() - paused
        self.world.wait()
        return self.state

    def _record(self, losses: list[float], norm: float, rate: float) -> dict[str, Any]:
        seconds = max(self.state.seconds, 1e-9)
        return {
            "step": self.state.step,
            "tokens": self.state.tokens,
            "epoch": round(self.state.step / len(self.plan.groups), 3),
            "loss": [round(loss, 4) for loss in losses],
            "norm": round(norm, 4),
            "rate": round(rate, 7),
            "seconds": round(self.state.seconds, 2),
            "tokens_per_second": round(self.state.tokens / seconds),
        }

    def log(self, report: Report, record: dict[str, Any]) -> None:
        """Append a line to the log."""
        append_log(self.folder, record)
        report(record)

    def save(self) -> None:
        """Write the checkpoint under a temporary name and rename it: a killed run leaves the one before."""
        content = {
            "identity": self.config.identity,
            "step": self.state.step,
            "tokens": self.state.tokens,
            "seconds": self.state.seconds,
            "head": self.head.state_dict(),
            "optimiser": self.optimiser.state_dict(),
        }
        write_checkpoint(self.folder, content)

    def resume(self) -> bool:
        """Load the checkpoint, if there is one, and cut the log back to it. SPC473 for that of another run."""
        if self.world.first:
            remove_unfinished(self.folder)
        if not (self.folder / CHECKPOINT).is_file():
            if self.world.first:
                (self.folder / LOG).unlink(missing_ok=True)
            return False
        read_checkpoint(self.folder, self.world.device, self._restore)
        if self.world.first:
            self._cut_log()
        return True

    def _restore(self, content: Mapping[str, Any]) -> None:
        if content["identity"] != self.config.identity:
            raise ValueError("it was trained with another target, other texts or other options")
        self.head.load_state_dict(content["head"])
        self.optimiser.load_state_dict(content["optimiser"])
        self.state = State(int(content["step"]), int(content["tokens"]), float(content["seconds"]))

    def _cut_log(self) -> None:
        """Drop the lines of steps that the checkpoint does not hold."""
        cut_log(self.folder, lambda record: bool(record["step"] <= self.state.step))
