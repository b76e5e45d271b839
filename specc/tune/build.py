"""Compiled modules of a spec's variants, their decoders, and the warming up of their kernels in parallel processes."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from specc.diagnostics import DiagnosticError
from specc.output import make_folder, write_text
from specc.runtime.module import DecoderLike, import_source
from specc.runtime.perturb import parse_self_perturbed, perturbed_weights
from specc.runtime.session import Session, open_session, with_stop_tokens
from specc.spec import LoadedSpec, fingerprint
from specc.tune.variants import Source, source_of

Warm = tuple[str, Callable[..., None], tuple[Any, ...]]
"""What a process runs: a name, a function of a module, its arguments."""
POLL = 0.05
"""Seconds between two looks at the processes."""


@dataclass(frozen=True, slots=True)
class Workplace:
    """Where variants run: models, target, device; `folder` keeps compiled modules (None: in memory only)."""

    source: Source
    model: str
    draft_model: str | None
    target: str
    device: str
    folder: Path | None = None

    def open(self, loaded: LoadedSpec) -> Session:
        """A session of one variant: everything is checked, compiled and loaded."""
        return open_session(
            loaded,
            self.model,
            self.draft_model,
            target=self.target,
            device=self.device,
            source_of=partial(source_of, folder=self.folder),
        )

    def module(self, loaded: LoadedSpec, session: Session) -> Any:
        """The module of another variant, with the stop tokens of the session."""
        loaded = with_stop_tokens(loaded, session.loaded.spec.accept.stop_tokens)
        name = f"specc_tuned_{loaded.spec.name.replace('-', '_')}_{fingerprint(loaded.spec)[:12]}"
        return import_source(source_of(loaded, self.target, self.folder), name)

    def decoder(self, loaded: LoadedSpec, session: Session) -> tuple[Any, DecoderLike]:
        """A module and its decoder, on the session's weights where their layout is the same."""
        module = self.module(loaded, session)
        return module, module.Decoder(self.weights(module, session), self.device)

    def weights(self, module: Any, session: Session) -> Any:
        """The session's weights as those of another module; loaded anew where its layout differs."""
        if tuple(map(tuple, module.WEIGHTS)) == tuple(map(tuple, session.module.WEIGHTS)):
            return module.Weights(*session.decoder.weights)
        drafter = parse_self_perturbed(self.draft_model or "", session.loaded.spec.sampling.seed)
        if drafter is not None:
            return perturbed_weights(module, session.model, drafter, self.device)
        return module.load_weights(session.model, session.drafter or None, self.device)


def quietly(function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """In a process of its own: a user's mistake ends it without a traceback; the first process reports it."""
    try:
        function(*arguments)
    except DiagnosticError:
        sys.exit(1)


@dataclass(slots=True)
class Warming:
    """Processes that run variants once, so that their kernels lie compiled on disk; at most `workers` at once.

    stamps: job -> a file that is there once the job is done, so that it isn't done again.
    """

    jobs: Sequence[Warm]
    stamps: Mapping[str, Path] = field(default_factory=dict)
    workers: int = field(default_factory=lambda: max(1, min(14, (os.cpu_count() or 1) - 1)))

    def run(self, deadline: float, say: Callable[[str], None]) -> set[str]:
        """The names of the jobs that were done by `deadline` (of time.monotonic); the others are ended."""
        context = multiprocessing.get_context("spawn")
        done = {name for name, path in self.stamps.items() if path.is_file()}
        waiting, running = [job for job in self.jobs if job[0] not in done], dict[str, Any]()
        began = time.monotonic()
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < self.workers:
                name, function, arguments = waiting.pop(0)
                running[name] = context.Process(target=quietly, args=(function, arguments), daemon=True)
                running[name].start()
            for name, process in list(running.items()):
                if process.exitcode is not None:
                    del running[name]
                    if process.exitcode == 0:
                        done.add(name)
                        self._stamp(name)
                    say(f"{name}: {'ready' if name in done else 'failed'} after {time.monotonic() - began:.0f} s")
            time.sleep(POLL)
        for name, process in running.items():
            process.terminate()
            process.join()
            say(f"{name}: not ready in time")
        return done

    def _stamp(self, name: str) -> None:
        if name in self.stamps:
            make_folder(self.stamps[name].parent)
            write_text(self.stamps[name], "")
