"""SPC3xx: index analysis, IR text and verifier."""

from __future__ import annotations

from specc.codes.entry import Code

IR_CODES: tuple[Code, ...] = (
    Code(
        "SPC300",
        "IR text of another version",
        "The first line of IR text is `specc-ir VERSION`. This compiler reads its own version only; print the program "
        "again with the compiler that reads it.",
        "specc-ir 99\n",
    ),
    Code(
        "SPC301",
        "IR text that can't be read",
        "The text does not follow the grammar of the printer: one op per line, "
        "`%name: type = op(arguments)  # keys: …; passes: …`, loops as blocks in braces.",
        "specc-ir 1\ngraph main {\n  %x: f32[4] =\n}\n",
    ),
    Code(
        "SPC302",
        "IR text refers to something unknown",
        "An op, a node, a type or a port that does not exist. Ops are named as torch names them "
        "(`aten.add.Tensor`, `specc.rope`); a node must stand above its users.",
        "specc-ir 1\ngraph main {\n  return (%x,)\n}\n",
    ),
    Code(
        "SPC310",
        "malformed graph",
        "The FX graph itself is broken: a node before its operands, a name used twice, a body that does not exist. "
        "A pass made it, and the finding names the pass.",
    ),
    Code(
        "SPC311",
        "op that may not stand here",
        "Every node calls a declared specc op, an aten op, integer arithmetic, or a loop. Ops that write in place are "
        "legal only after plan-buffers; ops that draw from torch's generator never are.",
    ),
    Code(
        "SPC312",
        "recorded type differs from the computed one",
        "The verifier runs every op on fake tensors and compares shapes and dtypes with what the node records. A pass "
        "changed an operand and did not retype what depends on it, or built an op with operands that do not fit.",
    ),
    Code(
        "SPC313",
        "node without type, spec keys or provenance",
        "Every node records its type, the YAML keys that it comes from and the passes that made it. Insert nodes with "
        "`specc.ir.edit.Editor`, replace them with `specc.ir.edit.replace`.",
    ),
    Code(
        "SPC314",
        "port that does not fit the program",
        "Placeholders of a step graph are bound to slots, weights and inputs, its outputs to slots and results: each "
        "at most once, declared, and with the declared shape and dtype.",
    ),
    Code(
        "SPC315",
        "loop whose operands and body do not fit",
        "A body takes `index, *carried, *slices, *invariant` with the operands' types and returns "
        "`(*carried', *stacked)`; carried values keep their type, and no two loops share a body.",
    ),
    Code(
        "SPC316",
        "slot read after it was overwritten",
        "After plan-buffers slots are written in place. An op that reads a slot below such a write sees the new rows "
        "where the program means the old ones. Only ops declared for it may.",
    ),
    Code(
        "SPC317",
        "cache that one scatter can't serve",
        "On an NPU a cache keeps its memory only if each step writes to it once, with one scatter, and reads what that "
        "returned. legalize-ascend joins the rows of a commit and of the step for that, and says what stands in the "
        "way: rows written at two places, a second reader, a start or a number of rows of which nothing is known.",
    ),
    Code(
        "SPC320",
        "index that may be negative where the op does not wrap around",
        "gather, index_select, scatter, index_copy, index_add and embedding raise on a negative index in eager torch, "
        "and a compiled kernel reads or writes foreign memory. Say what -1 means in the range of the input that it "
        "comes from: `pad` makes the result masked, `committed` asks for a dummy root row; or clamp it yourself.",
        "def f(table, parent):  # parent in [-1, 15]\n    return table.gather(1, parent)\n",
    ),
    Code(
        "SPC321",
        "index that may be past the end",
        "The interval of the index is not inside [-size, size). The message shows the interval and the nodes it comes "
        "from; declare a narrower range of the input, or clamp the index.",
        "def f(table, i):  # table [4, 8], i in [0, 4]\n    return table[i]\n",
    ),
    Code(
        "SPC322",
        "index of which nothing is known",
        "The index comes from an integer input without a declared range, or from an op whose values the analysis does "
        "not know; or the graph carries no shapes. Declare the range of the input (`ranges={'i': (-1, 15)}`), and give "
        "example inputs for a graph made by symbolic_trace.",
        "def f(table, i):  # nothing declared about i\n    return table[i]\n",
    ),
)
