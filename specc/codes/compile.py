"""SPC2xx: a valid spec that this compiler refuses."""

from __future__ import annotations

from specc.codes.entry import Code

COMPILE_CODES: tuple[Code, ...] = (
    Code(
        "SPC250",
        "passes in a wrong order",
        "A pass requires a property that no pass before it establishes, or that a pass in between loses. The order is "
        "checked before anything runs.",
        "passes: [layer-major]\n",
    ),
    Code(
        "SPC251",
        "unknown pass",
        "The pipeline has no pass of this name.",
        "passes: [layer-mayor]\n",
    ),
    Code(
        "SPC252",
        "wrong option of a pass",
        "The options of a pass are the fields of its dataclass, with the types that they declare.",
        "passes: [{canonicalize: {speed: 3}}]\n",
    ),
)
