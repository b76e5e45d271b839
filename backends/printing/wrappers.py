"""The public step functions: edge checks, a flush where the step needs one, then the printed step."""

from __future__ import annotations

from collections.abc import Sequence

from specc.backends.printing.literals import literal
from specc.backends.printing.printer import INDENT
from specc.ir.dims import BATCH, CHUNK
from specc.program import DecodeProgram, input_ports

DOCS = {
    "prefill": "Append input_ids [B,T] (lengths [B] of them) and pick the root token.\n\n"
    "    Returns the state and logits [B,V] after the last token; lengths[b] = 0 leaves row b\n    untouched. "
    "A root token that a row already has is not committed: to go on after steps, give\n"
    "    it as the first of input_ids; `remaining` is yours to set.",
    "decode": "One plain step of every row that is not finished: the baseline of speculation.\n\n"
    "    The drafter's slots are left behind: drafts of later speculative steps of the row are\n"
    "    legal, but not those of a fresh start.",
    "draft": "Draft nodes for every row; node 0 is the root token.",
    "verify": "Logits of the target at all nodes of tokens, parent, valid [B,N].\n\n"
    "    The nodes' rows become candidates; committed rows stay as they are. A drafter\n"
    "    learns what is committed only in `draft`, so call that between two commits even where\n"
    "    the nodes come from elsewhere.",
    "accept": "Choose a root path of the draft and the bonus token; the state is not changed.",
    "commit": "Commit what was accepted.",
    "flush": "Apply what a deferred commit left pending; idempotent.",
}


def _checks(program: DecodeProgram, step: str, names: Sequence[str]) -> list[str]:
    """Shape and range checks of the tensors that the caller hands in."""
    lines: list[str] = []
    ports = input_ports(program.graphs[step])
    for name in names:
        node = ports.get(f"input:{name}")
        if node is None:
            continue
        sizes = [int(size) for size in node.meta["val"].shape]
        shape = "".join(
            "batch, " if size == BATCH else "-1, " if size == CHUNK else f"{size}, " for size in sizes
        ).strip()
        dtype = literal(node.meta["val"].dtype)
        lines.append(f"check_tensor({literal(name)}, {name}, ({shape}), {dtype}, state.length.device)")
        bounds = program.ranges.get(f"input:{name}")
        if bounds is not None and name != "lengths":
            lines.append(f"check_range({literal(name)}, {name}, {bounds.low}, {bounds.high})")
    return lines


def _flush_first(program: DecodeProgram, step: str) -> list[str]:
    return ["state = flush(state)"] if step in program.attributes.get("flush_first", ()) else []


def _ending(call: str, in_place: bool, results: Sequence[str] = ()) -> list[str]:
    """Run the step and return what it gives; with `in_place` its slots become the state's own."""
    if not in_place:
        return [f"return {call}"]
    call = call.replace("state", "before", 1)
    shown = ", ".join(results)
    run = f"made, {shown} = {call}" if results else f"made = {call}"
    return [
        "before = views(state)",
        run,
        "store(before, made)",
        f"return state, {shown}" if results else "return state",
    ]


def _function(head: str, step: str, lines: Sequence[str]) -> str:
    return "\n".join([head, f'{INDENT}"""{DOCS[step]}"""', *(INDENT + line for line in lines)])


def prefill(program: DecodeProgram, results: int, in_place: bool) -> str:
    """The public `prefill`."""
    returns = "tuple[State, " + ", ".join(["Tensor"] * results) + "]"
    head = f"def prefill(weights: Weights, state: State, input_ids: Tensor, lengths: Tensor) -> {returns}:"
    room = [
        'check_range("lengths", lengths, 0, input_ids.shape[1])',
        "full = state.length + lengths",
        'check_range("length after prefill", full, 0, MAX_SEQUENCE_LENGTH)',
    ]
    most = program.attributes.get("prefill_chunk")
    if most is not None:
        message = f'f"input_ids has {{input_ids.shape[1]}} columns, one prefill takes at most {most}"'
        room += [f"if input_ids.shape[1] > {most}:", f"{INDENT}raise ValueError({message})"]
    lines = ["batch = check_state(state)", *_checks(program, "prefill", ("input_ids", "lengths")), *room]
    names = ["logits", *(f"result_{number}" for number in range(2, results + 1))]
    ending = _ending("run_prefill(weights, state, input_ids, lengths)", in_place, names)
    lines += [*_flush_first(program, "prefill"), *ending]
    return _function(head, "prefill", lines)


def decode(program: DecodeProgram, in_place: bool) -> str:
    """The public `decode`."""
    head = "def decode(weights: Weights, state: State) -> tuple[State, Decoded]:"
    ending = _ending("run_decode(weights, state)", in_place, ["decoded"])
    return _function(head, "decode", ["check_state(state)", *_flush_first(program, "decode"), *ending])


def draft(program: DecodeProgram, in_place: bool) -> str:
    """The public `draft`."""
    head = "def draft(weights: Weights, state: State) -> tuple[State, Draft]:"
    ending = _ending("run_draft(weights, state)", in_place, ["drafted"])
    return _function(head, "draft", ["check_state(state)", *_flush_first(program, "draft"), *ending])


def verify(program: DecodeProgram, in_place: bool) -> str:
    """The public `verify`; parent and valid are needed for trees only."""
    head = (
        "def verify(weights: Weights, state: State, tokens: Tensor, parent: Tensor | None = None, "
        "valid: Tensor | None = None) -> tuple[State, Verified]:"
    )
    lines = ["batch = check_state(state)"]
    if "input:parent" in input_ports(program.graphs["verify"]):
        lines += ["if parent is None or valid is None:"]
        lines += [f'{INDENT}raise ValueError("this module verifies trees: parent and valid are needed")']
        lines += [*_checks(program, "verify", ("tokens", "parent", "valid")), "check_tree(parent, valid)"]
    else:
        lines += _checks(program, "verify", ("tokens",))
    ending = _ending("run_verify(weights, state, tokens, parent, valid)", in_place, ["verified"])
    lines += [*_flush_first(program, "verify"), *ending]
    return _function(head, "verify", lines)


def accept(program: DecodeProgram, in_place: bool) -> str:
    """The public `accept`."""
    head = "def accept(state: State, verified: Verified, draft: Draft) -> tuple[State, Accepted]:"
    ending = _ending("run_accept(state, verified, draft)", in_place, ["accepted"])
    return _function(head, "accept", ["check_state(state)", *ending])


def commit(program: DecodeProgram, in_place: bool) -> str:
    """The public `commit`; the accepted path must be one that accept can return."""
    head = "def commit(state: State, verified: Verified, accepted: Accepted) -> State:"
    lines = ["batch = check_state(state)"]
    for line in _checks(program, "commit", [port.split(":")[1] for port in input_ports(program.graphs["commit"])]):
        name = line.split('"')[1] if '"' in line else line.split("'")[1]
        source = "verified" if name in ("features", "logits") else "accepted"
        lines.append(line.replace(f", {name}, ", f", {source}.{name}, ", 1))
    return _function(head, "commit", [*lines, *_ending("run_commit(state, verified, accepted)", in_place)])


def flush(program: DecodeProgram, in_place: bool) -> str:
    """The public `flush`; quick where nothing is pending."""
    lines = []
    pending = program.attributes.get("pending_count", ())
    counts = (pending,) if isinstance(pending, str) else pending
    if counts:
        nothing = " and ".join(f"not bool((state.{count} > 0).any())" for count in counts)
        lines = [f"if {nothing}:", f"{INDENT}return state"]
    return _function("def flush(state: State) -> State:", "flush", [*lines, *_ending("run_flush(state)", in_place)])
