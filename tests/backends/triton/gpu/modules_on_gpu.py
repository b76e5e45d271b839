"""The checks of `check`: one case's modules on a device. Imports torch only."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Found = dict[str, Any]
PROMPTS = ((3, 4, 6, 3, 4, 7), (1,), (8, 9, 8, 9))
STEPS = ("draft", "verify", "accept", "commit")
TOKENS = 16


class Case:
    """The modules of a case, with the same random weights (those of triton16: rounded to bfloat16)."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder, self.device = folder, torch.device(device)
        self._modules: dict[str, Any] = {}
        self._weights: dict[tuple[str, bool], Any] = {}

    def module(self, kind: str) -> Any:
        """A module, imported from its file."""
        if kind not in self._modules:
            spec = importlib.util.spec_from_file_location(kind, self.folder / f"{kind}.py")
            assert spec is not None
            assert spec.loader is not None
            made = importlib.util.module_from_spec(spec)
            sys.modules[kind] = made
            spec.loader.exec_module(made)
            self._modules[kind] = made
        return self._modules[kind]

    def weights(self, kind: str, rounded: bool = False) -> Any:
        """Its weights; `rounded`: to bfloat16 first, whatever the module's type."""
        if (kind, rounded) not in self._weights:
            module, made = self.module(kind), {}
            first = zip(self.module("triton32").WEIGHTS, module.WEIGHTS, strict=True)
            if any(layout._replace(dtype=other.dtype) != other for layout, other in first):
                raise ValueError(f"{kind} lays its weights out differently")
            for number, layout in enumerate(module.WEIGHTS):
                generator = torch.Generator().manual_seed(number)
                tensors = [drawn(layout, generator, rounded).to(self.device) for _ in range(layout.layers or 1)]
                made[layout.name] = tensors[0] if layout.layers is None else tuple(tensors)
            self._weights[kind, rounded] = module.Weights(**made)
        return self._weights[kind, rounded]

    @cached_property
    def texts(self) -> tuple[tuple[int, ...], ...]:
        """PROMPTS; where caches lie in pages repeated up to two thirds of the capacity, beyond a row's first page."""
        module = self.module("triton32")
        if "block_table" not in module.SLOTS:
            return PROMPTS
        times = module.SPEC["runtime"]["max_sequence_length"] * 2 // 3 // max(map(len, PROMPTS))
        return tuple(prompt * times for prompt in PROMPTS)

    @cached_property
    def prompts(self) -> tuple[Tensor, Tensor]:
        """Ids [B,P] and lengths [B]."""
        longest = max(map(len, self.texts))
        ids = torch.tensor([[*prompt, *[0] * (longest - len(prompt))] for prompt in self.texts])
        return ids.to(self.device), torch.tensor([len(prompt) for prompt in self.texts], device=self.device)

    def prefilled(self, kind: str, rounded: bool = False) -> tuple[Any, Tensor]:
        """A state after the prompts, and logits."""
        module = self.module(kind)
        state = module.init_state(len(PROMPTS), self.device)
        state = state._replace(rng=torch.arange(len(PROMPTS), device=self.device) * 977)
        state, logits, *_ = module.run_prefill(self.weights(kind, rounded), state, *self.prompts)
        return state._replace(remaining=torch.full_like(state.remaining, TOKENS)), logits


def drawn(layout: Any, generator: torch.Generator, rounded: bool) -> Tensor:
    """One tensor of a weight: matrices with gain 2, norms near 1, offsets of vocabularies 0."""
    if not layout.dtype.is_floating_point:
        return torch.zeros(layout.shape, dtype=layout.dtype)
    value = torch.randn(layout.shape, generator=generator, dtype=torch.float64)
    if len(layout.shape) == 1:
        value = 1 + 0.3 * value if "norm" in layout.name else 0.3 * value
    elif "embed" not in layout.name:
        value = 2 * value / layout.shape[-1] ** 0.5
    return (value.bfloat16() if rounded else value).to(layout.dtype)


def copied(state: Any, kind: Any) -> Any:
    """A copy in the types of another module's slots."""
    parts = zip(state, kind.SLOTS.values(), strict=True)
    return kind.State(*(value.to(slot.dtype, copy=True) for value, slot in parts))


def records(value: Any) -> dict[str, Tensor]:
    """The tensors of a NamedTuple by name."""
    return {name: part for name, part in value._asdict().items() if part is not None}


def widened(record: Any, kind: Any, wide: bool) -> Any:
    """A record for another module: logits, features and laws in float64 if it computes so."""
    made = getattr(kind, type(record).__name__)
    parts = records(record)
    for name in ("logits", "features", "q_probs"):
        if name in parts:
            parts[name] = parts[name].to(torch.float64 if wide else torch.float32)
    return made(**parts)


def step_of(module: Any, weights: Any, name: str, state: Any, given: Mapping[str, Any]) -> tuple[Any, Any]:
    """State and record of one step function."""
    wide = module.SPEC["runtime"]["dtype"] == "float64"
    if name in ("draft", "decode"):
        return getattr(module, f"run_{name}")(weights, state)
    draft = given["draft"]
    if name == "verify":
        return module.run_verify(weights, state, draft.tokens, getattr(draft, "parent", None), draft.valid)
    verified = widened(given["verify"], module, wide)
    if name == "accept":
        return module.run_accept(state, verified, widened(draft, module, wide))
    return module.run_commit(state, verified, widened(given["accept"], module, wide)), None


def shown(module: Any, state: Any) -> dict[str, Tensor]:
    """What of a state can be observed: after a flush, rows of caches below length."""
    parts = records(module.run_flush(module.State(*(value.clone() for value in state))))
    table = parts.get("block_table")
    for name, value in parts.items():
        if name in ("k_cache", "v_cache") and table is not None:
            value = value[:, table.long()].flatten(2, 3)
        if name.endswith(("k_cache", "v_cache")):
            place = torch.arange(value.shape[2], device=value.device)
            rows = parts["length"] - (parts.get("recent_count", 0) if name.startswith("draft_") else 0)
            mask = place[None, :] < rows[:, None]
            parts[name] = torch.where(mask[None, :, :, None, None], value, 0)
    return {name: value for name, value in parts.items() if not name.endswith(("_candidate", "_factor", "_input"))}


def live_rows(name: str, parts: dict[str, Tensor], live: Tensor, valid: Tensor | None) -> dict[str, Tensor]:
    """Rows that are not live, and logits of padding nodes, are blanked."""
    made = {}
    for key, value in parts.items():
        mask = live if name != "verify" or valid is None else live[:, None] & valid
        made[key] = torch.where(mask.reshape(*mask.shape, *[1] * (value.dim() - mask.dim())), value, 0)
    return made


def worst(got: dict[str, Tensor], wanted: dict[str, Tensor], exact: dict[str, Tensor]) -> Found:
    """Integers that differ although both references agree; the largest error over the reference's own (with 64 units in
    the last place for free), over all floats."""
    if any(not torch.equal(wanted[name], exact[name]) for name in wanted if not wanted[name].is_floating_point()):
        return {"tie": True}
    found: Found = {}
    for name, value in wanted.items():
        if name not in got or value.numel() == 0:
            continue
        if not value.is_floating_point():
            if not torch.equal(got[name], value):
                found[name] = f"{got[name].tolist()} instead of {value.tolist()}"[:300]
            continue
        finite = exact[name].isfinite()
        x = exact[name][finite].double()
        if x.numel():
            own = (value[finite].double() - x).abs().max() + 1e-6 * x.abs().max()
            ratio = float((got[name][finite].double() - x).abs().max() / own.clamp(min=1e-30))
            found[name] = round(ratio, 2) if ratio == ratio else "NaN"
    return found


def steps32(case: Case) -> Found:
    """Every step function from the same state in three modules; ratios above 16 and texts are wrong."""
    kinds = [case.module(kind) for kind in ("triton32", "reference32", "reference64")]
    weights = [case.weights(kind) for kind in ("triton32", "reference32", "reference64")]
    state, _ = case.prefilled("reference32")
    mine, _ = case.prefilled("triton32")
    exact, _ = case.prefilled("reference64")
    found: Found = {"prefill": worst(*(shown(k, s) for k, s in zip(kinds, (mine, state, exact), strict=True)))}
    for number in range(3):
        given: dict[str, Any] = {}
        for name in (*STEPS, "decode"):
            starts = [copied(state, kind) for kind in kinds]
            live = ~state.finished
            outs = [
                step_of(k, w, name, k.run_flush(s) if name == "decode" else s, given)
                for k, w, s in zip(kinds, weights, starts, strict=True)
            ]
            views = [shown(k, after) for k, (after, _) in zip(kinds, outs, strict=True)]
            if outs[1][1] is not None:
                valid = given["draft"].valid if name == "verify" else None
                parts = [live_rows(name, records(record), live, valid) for _, record in outs]
                views = [view | part for view, part in zip(views, parts, strict=True)]
                given[name] = outs[1][1]
            found[f"{name} {number}"] = worst(*views)
            state = outs[1][0]
    return summary(found)


def summary(found: Mapping[str, Found]) -> Found:
    """The largest ratio of each step, ties, and everything that is wrong."""
    out: Found = {"wrong": {}, "ties": sum("tie" in one for one in found.values())}
    for step, values in found.items():
        numbers = [value for value in values.values() if isinstance(value, float)]
        out[step.split()[0]] = max([*numbers, out.get(step.split()[0], 0.0)])
        bad = {k: v for k, v in values.items() if isinstance(v, str) or (isinstance(v, float) and v > 16)}
        if bad:
            out["wrong"][step] = bad
    return out


def steps16(case: Case) -> Found:
    """Relative errors of bfloat16 logits against float64, rounded weights; the same nodes are verified."""
    out: Found = {}
    kinds = ("triton16", "reference64")
    states, logits = zip(*(case.prefilled(kind, True) for kind in kinds), strict=True)
    out["prefill"] = relative(*logits)
    roots = states[1].root_token
    states = [state._replace(root_token=roots.clone()) for state in states]
    modules = [case.module(kind) for kind in kinds]
    weights = [case.weights(kind, True) for kind in kinds]
    _, draft = modules[1].run_draft(weights[1], copied(states[1], modules[1]))
    parent = getattr(draft, "parent", None)
    pairs = zip(modules, weights, states, strict=True)
    made = [m.run_verify(w, copied(s, m), draft.tokens, parent, draft.valid)[1].logits for m, w, s in pairs]
    out["verify"] = relative(*(torch.where(draft.valid[..., None], value, 0) for value in made))
    pairs = zip(modules, weights, states, strict=True)
    made = [m.run_decode(w, copied(s, m))[1].logits for m, w, s in pairs]
    live = ~states[1].finished[:, None]
    out["decode"] = relative(*(torch.where(live, value, 0) for value in made))
    return out


def relative(got: Tensor, wanted: Tensor) -> float:
    """max |got - wanted| / max |wanted|."""
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


def steps_for(case: Case, kind: str, size: int, graphs: bool) -> Any:
    """Captured steps of `size` rows with the prompts in the first of them."""
    module = case.module(kind)
    steps = module.Captured(case.weights(kind), size, case.device, graphs)
    module.clear(steps.state)
    ids, lengths = case.prompts
    empty = size - len(PROMPTS)
    ids = torch.nn.functional.pad(ids, (0, 0, 0, empty))
    lengths = torch.nn.functional.pad(lengths, (0, empty))
    steps.state.rng[: len(PROMPTS)] = torch.arange(len(PROMPTS), device=case.device) * 977
    module.take_over(steps.state, module.run_prefill(case.weights(kind), steps.state, ids, lengths)[0])
    steps.state.remaining.fill_(TOKENS)
    return steps


ORDER = ("step", "step", "flush", "plain", "step", "step")


def graphs(case: Case) -> Found:
    """Replays have the bits of the same kernels started one by one, in records and states; twice the same."""
    out: Found = {}
    for kind in ("triton32", "triton16"):
        runs = [steps_for(case, kind, len(PROMPTS), graph) for graph in (case.device.type == "cuda", False)]
        for number, name in enumerate(ORDER):
            pair = [steps.run(name).clone() for steps in runs]
            wrong = [] if torch.equal(*pair) else ["record"]
            for slot, one, other in zip(runs[0].state._fields, runs[0].state, runs[1].state, strict=True):
                if not torch.equal(one, other):
                    off = float((one.double() - other.double()).abs().max()) if one.is_floating_point() else "integers"
                    wrong.append(f"{slot}: {off}")
            if wrong:
                out.setdefault(kind, []).append(f"{number} {name}: {wrong}")
    return out or {"equal": True}


def padding(case: Case) -> Found:
    """A batch of 3 in 4 captured rows: records equal, the fourth row as it was, floats of the others close."""
    kind, rows = "triton32", len(PROMPTS)
    module, graph = case.module(kind), case.device.type == "cuda"
    alone, padded = steps_for(case, kind, rows, False), steps_for(case, kind, rows + 1, graph)
    fresh, out, most = shown(module, padded.state), Found(), 0.0
    dims = {name: slot.batch_dim for name, slot in module.SLOTS.items()}
    if "block_table" in dims:  # `shown` looked the rows up; where they lie depends on how many rows there are
        dims |= {"k_cache": 1, "v_cache": 1}
    for number, name in enumerate(ORDER):
        pair = [alone.run(name).clone(), padded.run(name).clone()[:rows]]
        wrong = [] if torch.equal(*pair) else ["record"]
        one, other = shown(module, alone.state), shown(module, padded.state)
        for slot, value in one.items():
            if slot in ("block_table", "page_owner"):
                continue
            whole = other[slot]
            last = whole.narrow(dims[slot], rows, 1)
            if not torch.equal(last, fresh[slot].narrow(dims[slot], rows, 1)):
                wrong.append(f"{slot} of the empty row")
            if value.is_floating_point() and value.numel():
                most = max(most, float((whole.narrow(dims[slot], 0, rows) - value).abs().max()))
        if wrong:
            out.setdefault("wrong", []).append(f"{number} {name}: {wrong}")
    return out | {"largest difference": most}


def syncs(case: Case) -> Found:
    """Steps one by one and as replays while every synchronisation raises."""
    if case.device.type != "cuda":
        return {"not tried": "no CUDA device"}
    for kind in ("triton32", "triton16"):
        for graph in (False, True):
            steps = steps_for(case, kind, len(PROMPTS), graph)
            for name in ORDER:  # kernels have been compiled and loaded once
                steps.run(name)
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
            try:
                for name in ORDER:
                    steps.run(name)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
    return {"none": True}


def text(case: Case) -> Found:
    """Whole texts in float32: the reference's, with replays and without."""
    wanted = case.module("reference32").Decoder(case.weights("reference32"), case.device).generate(case.texts, TOKENS)
    out: Found = {}
    for eager in (False, True):
        decoder = case.module("triton32").Decoder(case.weights("triton32"), case.device, eager=eager)
        got = decoder.generate(case.texts, TOKENS).tokens
        if got != wanted.tokens:
            out["eager" if eager else "graphs"] = {"got": got, "wanted": wanted.tokens}
    return out or {"equal": True}


CHECKS: Mapping[str, Callable[[Case], Found]] = {
    "steps32": torch.no_grad()(steps32),
    "graphs": torch.no_grad()(graphs),
    "padding": torch.no_grad()(padding),
    "syncs": torch.no_grad()(syncs),
    "steps16": torch.no_grad()(steps16),
    "text": torch.no_grad()(text),
}
