"""How a run is shown: text as it is made, numbers per request and in total, and the same as JSON."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, TextIO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from specc.runtime.generate import BatchResult, Request, RequestResult
from specc.runtime.lossless import Difference, LosslessReport
from specc.runtime.metrics import Metrics, request_metrics, run_metrics, stage_seconds
from specc.runtime.session import RunResult, Session, Watcher
from specc.runtime.tokenizer import TextStream, Tokenizer

MAX_SHOWN_DIFFERENCES = 20


def terminal_text(text: str) -> str:
    """Model text for a terminal: control characters escaped, except newlines and tabs."""
    return "".join(char if char in "\n\t" or unicodedata.category(char) != "Cc" else ascii(char)[1:-1] for char in text)


class RunView(Watcher):
    """Prints a run to `out`.

    On a terminal the text of a batch of one request appears as it is made; larger batches show a bar (on the
    terminal of `bars`), and each request's text when the batch ends.
    """

    def __init__(self, tokenizer: Tokenizer, out: TextIO, bars: Progress | None, max_new_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._out = out
        self._bars = bars
        self._limit = max_new_tokens
        self._terminal = out.isatty()
        self._stream: TextStream | None = None

    def batch_begins(self, requests: Sequence[Request]) -> None:
        """A header for a streamed text, else a bar."""
        if self._terminal and len(requests) == 1:
            self._stream = self._tokenizer.stream()
            self._print(f"\n[{requests[0].name}]\n")
        elif self._bars is not None:
            names = ", ".join(request.name for request in requests)
            self._bars.add_task(f"decoding {terminal_text(names)}", total=len(requests) * self._limit)

    def tokens(self, row: int, new: list[int]) -> None:
        """Text that the tokens complete, or the bar's next position."""
        if self._stream is not None:
            self._print(self._stream.push(new))
        elif self._bars is not None:
            self._bars.advance(self._bars.task_ids[-1], len(new))

    def batch_ends(self, batch: BatchResult) -> None:
        """The texts that have not been streamed, and every request's numbers."""
        if self._stream is not None:
            self._print(self._stream.finish() + "\n")
        for result in batch.results:
            if self._stream is None:
                self._print(f"\n[{result.request.name}]\n{self._tokenizer.decode(result.tokens)}\n")
            self._print(f"  -- {request_line(result)}\n")
        self._stream = None
        self._clear()

    def checking(self) -> None:
        """Plain decoding of the same batch begins."""
        if self._bars is not None:
            self._clear()
            self._bars.add_task("comparing with plain decoding", total=None)

    def _clear(self) -> None:
        if self._bars is not None:
            for task in self._bars.task_ids:
                self._bars.remove_task(task)

    def _print(self, text: str) -> None:
        self._out.write(terminal_text(text) if self._terminal else text)
        self._out.flush()


def progress_bars(stream: TextIO) -> Progress | None:
    """Bars for a terminal, None for a pipe."""
    from rich.console import Console

    console = Console(file=stream)
    if not console.is_terminal:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def request_line(result: RequestResult) -> str:
    """One request's numbers."""
    metrics = request_metrics([result], result.seconds)
    prompt = len(result.request.ids)
    return f"{prompt} prompt tokens; {_numbers(metrics)}; ended by {result.finish}"


def _numbers(metrics: Metrics) -> str:
    return (
        f"{metrics.tokens} tokens in {metrics.steps} steps, {metrics.tokens_per_second:.1f} tokens/s, "
        f"acceptance_length {metrics.acceptance_length:.2f}, {metrics.branch_steps} branch steps"
    )


def summary(session: Session, result: RunResult) -> str:
    """The totals of a run, several lines."""
    metrics, stages = run_metrics(result.batches), stage_seconds(result.batches)
    requests = sum(len(batch.results) for batch in result.batches)
    lines = [f"total: {requests} requests, {_numbers(metrics)}"]
    if metrics.depths:
        shares = "  ".join(f"{depth}: {share:.2f}" for depth, share in enumerate(metrics.per_depth_acceptance, 1))
        lines.append(f"  accepted at least as deep as  {shares}; acceptance_rate {metrics.acceptance_rate:.2f}")
    spent = "  ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages.items())
    lines.append(f"  seconds by stage  {spent}")
    if session.drafter:
        kind = "simulated drafter" if session.simulated else "drafter"
        lines.append(f"  {kind}: {session.drafter}")
    if session.note:
        lines.append(f"  {session.note}")
    if result.lossless is not None:
        lines += lossless_lines(result.lossless, metrics)
    if result.interrupted:
        lines.append("interrupted: what stands above is what was produced")
    return "\n".join(lines)


def lossless_lines(report: LosslessReport, metrics: Metrics) -> list[str]:
    """The outcome of the comparison with plain decoding."""
    plain = report.plain_tokens_per_second
    ratio = f", {metrics.tokens_per_second / plain:.2f}x" if plain else ""
    count = len(report.differences)
    lines = [
        f"lossless check: {count} differences from plain decoding in {report.tokens} tokens"
        f" (plain {plain:.1f} tokens/s{ratio})"
    ]
    lines += [_difference_line(item) for item in report.differences[:MAX_SHOWN_DIFFERENCES]]
    if count > MAX_SHOWN_DIFFERENCES:
        lines.append(f"  and {count - MAX_SHOWN_DIFFERENCES} more")
    return lines


def _difference_line(item: Difference) -> str:
    verdict = "within the numerical bound" if item.allowed else "MORE than the numerical bound"
    return (
        f"  {item.name}, token {item.position}: plain {item.plain}, speculative {item.speculative}; "
        f"top-2 margin {item.margin:.3g}, gap {item.gap:.3g}, bound {item.bound:.3g}: {verdict}"
    )


def run_json(session: Session, result: RunResult) -> dict[str, Any]:
    """Everything that a run found, JSON-ready. Keys are only ever added."""
    metrics = run_metrics(result.batches)
    requests = [
        {
            "request": item.request.number,
            "name": item.request.name,
            "prompt_tokens": len(item.request.ids),
            "tokens": item.tokens,
            "text": session.tokenizer.decode(item.tokens),
            "finish": item.finish,
            "metrics": request_metrics([item], item.seconds).as_json(),
        }
        for batch in result.batches
        for item in batch.results
    ]
    report: dict[str, Any] = {
        "spec": session.loaded.spec.name,
        "fingerprint": session.identity.spec,
        "pipeline": session.identity.pipeline,
        "seed": session.identity.seed,
        "drafter": session.drafter or None,
        "simulated_drafter": session.simulated,
        "requests": requests,
        "metrics": metrics.as_json(),
        "stage_seconds": {stage: round(spent, 4) for stage, spent in stage_seconds(result.batches).items()},
        "interrupted": result.interrupted,
        "lossless": None,
    }
    if result.lossless is not None:
        report["lossless"] = {
            "tokens": result.lossless.tokens,
            "differences": [item.as_json() for item in result.lossless.differences],
            "failed": result.lossless.failed,
            "plain_tokens_per_second": round(result.lossless.plain_tokens_per_second, 3),
        }
    return report
