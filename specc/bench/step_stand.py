"""A generated module with random weights and some context, and its steps as CUDA graphs: what `specc bench step` times.

The graphs are captured from the module's own functions (run_decode, run_draft, run_verify, run_accept, run_commit and,
where the module has it, run_step), so that a stage can be timed alone. What the module's `Decoder` captures for itself
is timed too, from the host and with its read-back.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from specc.bench.gpu_timing import REPLAYS, WARM_UPS, Row, Timing, nbytes
from specc.bench.step_apart import Apart
from specc.bench.step_cases import BETWEEN, DRAWN_APART, Case, full_tree, prompt_of, weights_on
from specc.runtime.module import GeneratedModule
from specc.spec import LoadedSpec
from specc.testing.tensors import tree_tensors

BURST = 10
"""Replays between two events, so that starting a graph is hidden behind the one before, as in a decoding loop."""
SMALL = 4 << 20
"""Slots up to this many bytes are put back before every burst: lengths, flags, pending counts, the text."""
PLANTED = 3
"""Drafted nodes on the tree's first path that are made to agree with the target."""
DEFAULT_CHUNK = 256


def take_over(state: Any, made: Any) -> None:
    """Copy what a step made into the state's own tensors; what changed in place is there already."""
    for value, new in zip(state, made, strict=True):
        if new is not value:
            value.copy_(new)


@dataclass(slots=True)
class Stand:
    """Rows with a context, ready for any step. Results of stages are kept for the stages after them."""

    case: Case
    loaded: LoadedSpec
    module: Any
    weights: Any
    state: Any
    prompts: list[list[int]]
    tree: tuple[Tensor, Tensor, Tensor]
    made: Any = None
    verified: Any = None
    draft: Any = None
    accepted: Any = None
    drafted: Any = None
    turned: Any = None

    @property
    def batch(self) -> int:
        """B."""
        return len(self.prompts)

    def plain(self) -> None:
        """One token of every row; the state moves on."""
        made, _ = self.module.run_decode(self.weights, self.state)
        take_over(self.state, made)

    def make_draft(self) -> None:
        """The module's own drafter."""
        _, self.drafted = self.module.run_draft(self.weights, self.state)

    def verify(self) -> None:
        """All N nodes of a tree without padding."""
        tokens, parent, valid = self.tree
        above = None if self.loaded.spec.is_chain else parent
        self.made, self.verified = self.module.run_verify(self.weights, self.state, tokens, above, valid)

    def accept(self) -> None:
        """What the verified tree gives."""
        self.made, self.accepted = self.module.run_accept(self.made, self.verified, self.draft)

    def commit(self) -> None:
        """The accepted nodes; the state moves on."""
        take_over(self.state, self.module.run_commit(self.made, self.verified, self.accepted))

    def step(self) -> None:
        """Draft, verify, accept, commit: as one graph where the module has one."""
        if hasattr(self.module, "run_step"):
            self.module.run_step(self.weights, self.state)
            return
        state, draft = self.module.run_draft(self.weights, self.state)
        above = None if self.loaded.spec.is_chain else draft.parent
        state, verified = self.module.run_verify(self.weights, state, draft.tokens, above, draft.valid)
        state, accepted = self.module.run_accept(state, verified, draft)
        take_over(self.state, self.module.run_commit(state, verified, accepted))

    def between(self) -> None:
        """From the logits of the tree to the next tree, in one graph; the state moves on."""
        self.turned = self.module.run_between(self.weights, self.state, self.verified, self.draft)

    def plant(self) -> None:
        """Make the first drafted nodes of the tree what the target says after their parents, so that some are taken."""
        tokens, parent, valid = self.tree
        for node in range(1, min(PLANTED + 1, tokens.shape[1])):
            self.verify()
            logits = self.verified.logits[:, node - 1]
            tokens[:, node] = logits.argmax(-1)
        fields = {"tokens": tokens, "parent": parent, "valid": valid}
        fields["log_probs"] = torch.zeros_like(tokens, dtype=torch.float32)  # greedy acceptance does not ask
        if "q_probs" in self.module.Draft._fields:  # a drafter that knows nothing
            fields["q_probs"] = torch.full_like(self.verified.logits, 1 / self.verified.logits.shape[-1]).float()
        self.draft = self.module.Draft(**{name: fields[name] for name in self.module.Draft._fields})

    def moving(self) -> list[tuple[Tensor, Tensor]]:
        """The small slots and copies of what they hold."""
        return [(slot, slot.clone()) for slot in self.state if nbytes([slot]) <= SMALL]


def brought_up(
    case: Case, loaded: LoadedSpec, module: GeneratedModule, batch: int, device: torch.device | str,
    change: Callable[[dict[str, Any]], None] | None = None,
) -> Stand:  # fmt: skip
    """Random weights (see `weights_on`), and prompts of `case.context` tokens prefilled, each with a root from the same
    text."""
    spec, rng = loaded.spec, Random(0)
    texts = [prompt_of(spec, case.context + 1, row) for row in range(batch)]
    prompts = [text[:-1] for text in texts]
    weights = weights_on(module, loaded, device, change=change)
    state = prefilled(module, weights, prompts, device)
    roots = torch.tensor([text[-1] for text in texts], device=device)
    state.root_token.copy_(roots)
    if "history" in state._fields:
        state.history[:, case.context] = roots
    tokens, parent, valid = tree_tensors([full_tree(spec, text[-1], rng) for text in texts], device)
    return Stand(case, loaded, module, weights, state, prompts, (tokens, parent, valid))


def prefilled(module: Any, weights: Any, prompts: Sequence[Sequence[int]], device: torch.device | str) -> Any:
    """A state with prompts of one length, chunk by chunk."""
    state = module.init_state(len(prompts), device)
    ids = torch.tensor([list(prompt) for prompt in prompts], device=device)
    chunk = int(getattr(module, "PREFILL_CHUNK", DEFAULT_CHUNK))
    with torch.no_grad():
        for first in range(0, ids.shape[1], chunk):
            part = ids[:, first : first + chunk].contiguous()
            lengths = torch.full((len(prompts),), part.shape[1], device=device)
            state = module.run_prefill(weights, state, part, lengths)[0]
    return state


def captured(function: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """One call as a CUDA graph, after two to warm up."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        function()
        function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def replayed(graph: torch.cuda.CUDAGraph, moving: Sequence[tuple[Tensor, Tensor]], replays: int = REPLAYS) -> Timing:
    """Time of one replay within a burst, the small slots put back before each burst."""
    times = []
    for _ in range(replays + WARM_UPS):
        for slot, kept in moving:
            slot.copy_(kept)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(BURST):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / BURST)
    each = sorted(times[WARM_UPS:])
    return Timing(statistics.median(each), each[len(each) // 10], each[-1 - len(each) // 10], BURST)


@dataclass(slots=True)
class Launches:
    """What one replay runs: how many kernels (copies and fills counted), their summed time, by name."""

    count: int = 0
    us: float = 0.0
    kernels: dict[str, list[float]] = field(default_factory=dict)

    def without(self, beginnings: tuple[str, ...]) -> Row:
        """Number and time of the kernels whose names begin otherwise; nothing where that is all of them."""
        own = [spent for name, spent in self.kernels.items() if not name.startswith(beginnings)]
        if len(own) == len(self.kernels):
            return {}
        return {"own_launches": int(sum(count for count, _ in own)), "own_us": round(sum(us for _, us in own), 1)}

    def row(self, most: int = 14) -> Row:
        """The kernels that take longest first."""
        longest = sorted(self.kernels.items(), key=lambda item: -item[1][1])[:most]
        return {
            "launches": self.count,
            "kernel_us": round(self.us, 1),
            "kernels": [{"name": name, "count": int(count), "us": round(us, 1)} for name, (count, us) in longest],
        }


def launches(graph: torch.cuda.CUDAGraph) -> Launches:
    """Counted by the profiler over one replay."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        graph.replay()
        torch.cuda.synchronize()
    found = Launches()
    for event in profile.events() or ():
        if str(event.device_type).endswith("CUDA"):
            spent = float(event.time_range.elapsed_us())
            found.count += 1
            found.us += spent
            seen = found.kernels.setdefault(event.name.split("(")[0][:80], [0, 0.0])
            seen[0] += 1
            seen[1] += spent
    return found


FORMS: tuple[str, ...] = ("plain", "verify", "draft", "accept", "commit", BETWEEN, "step")
NETWORK = (
    "linear", "attention", "rope_attention", "delta", "conv", "tree_conv", "fused_q_rope", "fused_v_nodes",
    "fused_embedded",
)  # fmt: skip
"""What a drafter's network launches, by the names' beginnings: not part of building a tree."""


def form_rows(stand: Stand) -> Iterator[Row]:
    """One row per form: its time, its launches, the kernels that it spends its time in."""
    stand.plant()
    moving = stand.moving()
    calls: dict[str, Callable[[], None]] = {
        "plain": stand.plain,
        "verify": stand.verify,
        "draft": stand.make_draft,
        "accept": stand.accept,
        "commit": stand.commit,
        BETWEEN: stand.between,
        "step": stand.step,
        DRAWN_APART[0]: Apart(stand.module, "run_between", stand.between, network=True),
        DRAWN_APART[1]: Apart(stand.module, "run_between", stand.between, network=False),
        DRAWN_APART[2]: Apart(stand.module, "run_step", stand.step, network=False),
    }
    for form in stand.case.forms or FORMS:
        if form in (BETWEEN, *DRAWN_APART) and not hasattr(stand.module, "run_between"):
            continue
        for slot, kept in moving:
            slot.copy_(kept)
        if form in ("accept", BETWEEN, *DRAWN_APART):
            # Recurrent states have moved on since, and with them what the target says.
            stand.plant()
            stand.verify()
        graph = captured(calls[form])
        seen = launches(graph)
        row: Row = {"form": form} | replayed(graph, moving).row() | seen.row()
        for slot, kept in moving:
            slot.copy_(kept)
        if form == "accept":
            row["accept_length"] = stand.accepted.accept_length.tolist()
        if form == BETWEEN:
            row |= seen.without(NETWORK)
            row["accept_length"] = stand.turned.accept_length.tolist()
            row["valid_nodes"] = stand.turned.valid.sum(1).tolist()
        if form == "draft":
            row["valid_nodes"] = stand.drafted.valid.sum(1).tolist()
        yield row


def host_row(stand: Stand, speculative: bool, steps: int = 60) -> Row:
    """The module's own decoder from the host, microseconds a step.

    us: as `generate` decodes, which starts a step before it has read the one in front of it. alone_us: the median of
    `step` or `plain_step` called one by one, read-back included. tokens_per_second: of all rows, by `generate`.
    """
    decoder = stand.module.Decoder(stand.weights, stand.state.length.device)
    decoder.start(stand.prompts, steps * 10)
    call: Callable[[], Any] = decoder.step if speculative else decoder.plain_step
    for _ in range(5):
        call()
    if stand.state.length.is_cuda:
        torch.cuda.synchronize()
    spent = []
    for _ in range(steps):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    made = decoder.generate(stand.prompts, steps * 2, speculative=speculative)
    tokens = sum(len(row) - 1 for row in made.tokens)
    taken = len(made.steps) if speculative else max(len(row) - 1 for row in made.tokens)
    return {
        "form": "host step" if speculative else "host plain",
        "us": round(made.decode_seconds / taken * 1e6, 1),
        "alone_us": round(statistics.median(spent) * 1e6, 1),
        "tokens_per_second": round(tokens / made.decode_seconds, 1),
        "tokens_per_row_step": round(tokens / taken / stand.batch, 3),
    }
