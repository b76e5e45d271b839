"""SPC9xx: errors of the compiler itself."""

from __future__ import annotations

from specc.codes.entry import Code

INTERNAL_CODES: tuple[Code, ...] = (
    Code(
        "SPC900",
        "an internal error",
        "The compiler failed in a way that is not your input's fault, even if the input is wrong. A report was "
        "written into the current folder: it holds the traceback, the command, the versions and the spec. Attach it "
        "to a bug report after reading it.",
    ),
    Code(
        "SPC901",
        "an unknown diagnostic code",
        "`specc explain` takes a code such as SPC020.",
        "specc explain SPC999",
    ),
    Code(
        "SPC910",
        "a pass broke its promise",
        "After a pass, the property that it establishes does not hold on its result. This is a bug of the pass: please "
        "report it with the dump (`--dump DIR`).",
    ),
    Code(
        "SPC911",
        "a pass misreports whether it changed the program",
        "A pass that says `unchanged` must return a program with the same fingerprint, and one that says `changed` a "
        "different one. This is a bug of the pass.",
    ),
    Code(
        "SPC912",
        "a pass edited its input",
        "Passes are functional: they clone a module before they edit it, because callers keep the program before the "
        "pass to compare with. This is a bug of the pass.",
    ),
)
