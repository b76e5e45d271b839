"""Whether what a kernel keeps in shared memory by assembly of its own is guarded by barriers, along every path of its
PTX.

Triton puts barriers between its own accesses to shared memory; those in inline assembly are the kernel's to guard. A
write and a read of different threads need a barrier between them, in whichever order, on every path. Addresses are not
told apart: every write meets every read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

INLINE = ("// begin inline asm", "// end inline asm")
BARRIER = re.compile(r"\b(?:bar|barrier)\.(?:cta\.)?sync")
WRITE, READ = re.compile(r"\bst\.shared"), re.compile(r"\bld\.shared")
BRANCH = re.compile(r"(@!?%\w+\s+)?bra(?:\.uni)?\s+(\$\w+);")
LEAVE = re.compile(r"(@!?%\w+\s+)?ret;")
LABEL = re.compile(r"^(\$\w+):")


class Since(NamedTuple):
    """What may have happened since the last barrier."""

    written: bool = False
    read: bool = False


class Block(NamedTuple):
    """Instructions that run one after the other: the numbers and texts of their lines, and which blocks may follow."""

    lines: list[tuple[int, str]]
    after: list[int]


def instructions(ptx: str) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether it stands in inline assembly) of what is not a comment."""
    inside = False
    for number, line in enumerate(ptx.splitlines(), 1):
        text = line.strip()
        if text in INLINE:
            inside = text == INLINE[0]
        elif text and not text.startswith("//"):
            yield number, text, inside


def kind(text: str, inside: bool) -> str:
    """An instruction as far as it counts here."""
    if inside and (WRITE.search(text) or READ.search(text)):
        return "write" if WRITE.search(text) else "read"
    return "barrier" if BARRIER.search(text) else ""


def blocks(ptx: str) -> list[Block]:
    """The kernel's blocks in their order."""
    found, labels, jumps = [Block([], [])], dict[str, int](), list[tuple[int, str]]()
    falls = [True]  # whether a block's end is reached by what comes behind it
    for number, text, inside in instructions(ptx):
        if name := LABEL.match(text):
            found.append(Block([], []))
            falls.append(True)
            labels[name[1]] = len(found) - 1
        elif jump := BRANCH.match(text) or LEAVE.match(text):
            if jump.re is BRANCH:
                jumps.append((len(found) - 1, jump[2]))
            falls[-1] = jump[1] is not None
            found.append(Block([], []))
            falls.append(True)
        elif what := kind(text, inside):
            found[-1].lines.append((number, what))
    for here, label in jumps:
        found[here].after.append(labels[label])
    for here, behind in pairwise(range(len(found))):
        if falls[here]:
            found[here].after.append(behind)
    return found


def through(block: Block, since: Since, races: set[int]) -> Since:
    """What has happened at a block's end; `races` gets the lines that meet an access with no barrier between."""
    for number, what in block.lines:
        if what == "barrier":
            since = Since()
            continue
        if since.written if what == "read" else since.read:
            races.add(number)
        since = since._replace(**{"written" if what == "write" else "read": True})
    return since


def unguarded(ptx: str) -> list[int]:
    """Lines of the PTX that read what another thread may just have written, or write what one may still have to read,
    with no barrier in between on some path."""
    graph, races, waiting = blocks(ptx), set[int](), [0]
    begin = [Since()] * len(graph)
    seen = {0}
    while waiting:
        here = waiting.pop()
        end = through(graph[here], begin[here], races)
        for after in graph[here].after:
            joined = Since(begin[after].written or end.written, begin[after].read or end.read)
            if joined != begin[after] or after not in seen:
                begin[after] = joined
                seen.add(after)
                waiting.append(after)
    return sorted(races)
