"""The declarations of a generated module: constants, weight and slot tables, NamedTuples, init_state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specc.backends.printing.literals import comment_text, literal
from specc.backends.printing.printer import INDENT
from specc.ir.dims import BATCH, type_text
from specc.program import DecodeProgram, Slot, Weight

# NamedTuple fields must not hide the tuple's own methods.
TUPLE_METHODS = frozenset({"count", "index"})
RESULT_DOCS: Mapping[str, str] = {
    "tokens": "node 0 is the root; padding nodes come last (token 0)",
    "parent": "-1 for the root, else a lower node",
    "valid": "False for padding nodes",
    "log_probs": "the drafter's log-probability of each node given its parent",
    "q_probs": "the drafter's law at every node",
    "logits": "of the target, at every node",
    "features": "hidden states of the target's auxiliary layers",
    "path": "accepted nodes, path[:, 0] = 0, padded with 0",
    "accept_length": "accepted drafted nodes",
    "bonus": "the token after the accepted path",
    "emitted_tokens": "accepted tokens, then the bonus token, padded with 0",
    "emitted": "new tokens of each row, 0 where it is finished",
    "stopped": "rows that end with this step",
    "record": "finished, root token, then the other fields: all that the host reads",
}


def stored_slots(program: DecodeProgram) -> dict[str, Slot]:
    """The slots that are fields of State: those that plan-buffers gave no home elsewhere."""
    return {name: slot for name, slot in program.slots.items() if slot.alias is None}


def slot_shape(slot: Slot) -> tuple[int, ...]:
    """The shape with -1 for the batch, -n for n times the batch."""
    return tuple(-(size // BATCH) if size and size % BATCH == 0 else size for size in slot.shape)


def named_tuple(name: str, doc: str, fields: Sequence[tuple[str, str, str]]) -> str:
    """A NamedTuple; `fields` are (name, annotation with default, comment). Raises ValueError for a bad field name."""
    lines = [f"class {name}(NamedTuple):", f'{INDENT}"""{doc}"""', ""]
    for field, annotation, comment in fields:
        if field in TUPLE_METHODS or not field.isidentifier() or field.startswith("_"):
            raise ValueError(f"{name} can't have a field called {field!r}")
        lines += [f"{INDENT}# {comment_text(comment)}", f"{INDENT}{field}: {annotation}"]
    return "\n".join(lines)


def weights_class(weights: Mapping[str, Weight]) -> str:
    """`class Weights`."""
    fields = []
    for name, weight in weights.items():
        text = type_text(weight.shape, weight.dtype)
        many = weight.layers is not None
        comment = f"{text}, {_layers_text(weight) if many else 'one'}: {', '.join(weight.sources)}"
        if weight.form:
            comment += f"; made of it by the loader: {weight.form}"
        fields.append((name, "tuple[Tensor, ...]" if many else "Tensor", comment))
    return named_tuple("Weights", "The model's weights.", fields)


def _layers_text(weight: Weight) -> str:
    """Which decoder layers have a tensor of the weight."""
    if weight.first_layer == 0 and weight.layer_step == 1:
        return "per layer"
    return f"for every {weight.layer_step} layers from layer {weight.first_layer}"


def state_class(program: DecodeProgram) -> str:
    """`class State`, with a note for every slot that lives inside another."""
    fields = [
        (name, "Tensor", f"{type_text(slot.shape, slot.dtype)}, {slot.role}: {slot.doc}")
        for name, slot in stored_slots(program).items()
    ]
    doc = "The state of a batch. It is donated to a step: use what the step returns."
    text = named_tuple("State", doc, fields)
    for name, slot in program.slots.items():
        if slot.alias is not None:
            text += f"\n{INDENT}# {comment_text(name)} is not stored: {comment_text(slot.alias)}"
    return text


def views_class(program: DecodeProgram, layered: frozenset[str]) -> str:
    """`class Views`: the slots as step functions take and return them."""
    fields = []
    for name, slot in stored_slots(program).items():
        many = name in layered
        text = type_text(slot.shape[1:] if many else slot.shape, slot.dtype)
        fields.append((name, "Sequence[Tensor]" if many else "Tensor", f"{text}, {'per layer' if many else 'one'}"))
    return named_tuple("Views", "A state by layer: views of the tensors of a State, or what becomes of them.", fields)


def result_class(name: str, doc: str, results: Sequence[tuple[str, str]], chain: bool) -> str:
    """A NamedTuple of a step's results, given as (name, type text)."""
    fields = [(field, "Tensor", f"{text}: {RESULT_DOCS.get(field, field)}") for field, text in results]
    if name == "Draft" and chain:
        fields.append(("parent", "None = None", "a chain: node i is the child of node i - 1"))
    return named_tuple(name, doc, fields)


def tables(program: DecodeProgram) -> str:
    """SLOTS and WEIGHTS: what the edge checks and the loader go by."""
    lines = ["SLOTS: dict[str, SlotLayout] = {"]
    for name, slot in stored_slots(program).items():
        values = (slot_shape(slot), slot.dtype, slot.batch_dim, slot.fill)
        lines.append(f"{INDENT}{literal(name)}: SlotLayout({', '.join(literal(value) for value in values)}),")
    lines += ["}", "WEIGHTS: tuple[WeightLayout, ...] = ("]
    for weight in program.weights.values():
        row = (weight.name, weight.shape, weight.dtype, weight.sources, weight.layers, weight.model)
        fields = [literal(value) for value in row]
        if weight.first_layer or weight.layer_step != 1 or weight.experts or weight.form:
            fields += [literal(value) for value in (weight.first_layer, weight.layer_step, weight.experts)]
        if weight.form:
            fields.append(literal(weight.form))
        lines.append(f"{INDENT}WeightLayout({', '.join(fields)}),")
    return "\n".join([*lines, ")"])


def _size_text(size: int) -> str:
    return literal(size) if size >= 0 else "batch" if size == -1 else f"{-size} * batch"


def init_state(program: DecodeProgram, device: str) -> str:
    """The function `init_state`."""
    lines = [
        f"def init_state(batch: int, device: torch.device | str = {literal(device)}) -> State:",
        f'{INDENT}"""A fresh state: every row is finished until a prefill brings it to life."""',
        f"{INDENT}check_batch(batch)",
        f"{INDENT}return State(",
    ]
    for name, slot in stored_slots(program).items():
        shape = ", ".join(_size_text(size) for size in slot_shape(slot))
        rest = f"dtype={literal(slot.dtype)}, device=device"
        if slot.fill is not True and slot.fill == 0:
            made = f"torch.zeros(({shape},), {rest})"
        else:
            made = f"torch.full(({shape},), {literal(slot.fill)}, {rest})"
        lines.append(f"{INDENT * 2}{name}={made},")
    return "\n".join([*lines, f"{INDENT})"])


def constants(program: DecodeProgram, spec: Mapping[str, object], abi: int, fingerprint: str, by_columns: bool) -> str:
    """ABI, FINGERPRINT, SPEC and the limits."""
    attributes = program.attributes
    longest = attributes.get("max_sequence_length", 1 << 40)
    rows = attributes.get("max_batch_size", 1 << 20)
    vocabulary = attributes.get("vocab_size", 1 << 24)
    return "\n".join(
        [
            f"ABI: int = {abi}",
            f"FINGERPRINT: str = {literal(fingerprint)}",
            f"SPEC: dict[str, Any] = {literal(spec)}",
            f"MAX_SEQUENCE_LENGTH: int = {literal(longest)}",
            f"MAX_BATCH_SIZE: int = {literal(rows)}",
            f"VOCAB_SIZE: int = {literal(vocabulary)}",
            f"SEED: int = {literal(attributes.get('seed', 0))}",
            f"MATRICES_BY_COLUMNS: bool = {by_columns}",
        ]
    )
