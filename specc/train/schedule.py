"""What the training loop reads from one step to the next: sizes, learning rate, batches."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Hyperparameters. Training ends after `steps`, or after `minutes` of training time if that comes first."""

    steps: int
    minutes: float | None = None
    batch: int = 64
    sequence: int = 1024
    learning_rate: float = 3e-3
    final_share: float = 0.02
    warmup_steps: int = 200
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    seed: int = 0
    log_every: int = 20
    evaluate_every: int = 1000
    checkpoint_every: int = 1000
    compile: bool = True

    def progress(self, step: int, seconds: float) -> float:
        """How much of the run is over, 0 to 1: by steps or by time, whichever is further."""
        by_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return min(1.0, max(step / self.steps, by_time))

    def rate(self, step: int, seconds: float) -> float:
        """Linear warm-up, then half a cosine down to `final_share` of the peak."""
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        cosine = 0.5 * (1 + math.cos(math.pi * self.progress(step, seconds)))
        return self.learning_rate * warm * (self.final_share + (1 - self.final_share) * cosine)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Which windows of the training stream make up each step: every epoch cuts at another offset and shuffles.

    A pure function of the step, so that a resumed run reads what the interrupted one would have read.
    """

    length: int
    batch: int
    sequence: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return max(1, ((self.length - 1) // self.sequence - 1) // self.batch)

    def epoch_starts(self, epoch: int) -> npt.NDArray[np.int64]:
        """First positions of the windows of an epoch, shuffled."""
        random = np.random.default_rng([self.seed, epoch])
        offset = int(random.integers(self.sequence))
        count = (self.length - 1 - offset) // self.sequence
        return offset + self.sequence * random.permutation(count)

    def starts(self, step: int) -> npt.NDArray[np.int64]:
        """First positions of one step's windows, `batch` of them. ValueError if the stream is shorter than a step."""
        epoch, place = divmod(step, self.steps_per_epoch)
        found = self.epoch_starts(epoch)[place * self.batch : (place + 1) * self.batch]
        if found.size < self.batch:
            raise ValueError(f"{self.length} tokens are too few for a batch of {self.batch} x {self.sequence}")
        return found
