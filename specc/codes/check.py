"""SPC5xx: findings of specc check."""

from __future__ import annotations

from specc.codes.entry import Code

CHECK_CODES: tuple[Code, ...] = (
    Code(
        "SPC501",
        "a replay token that can't be used",
        "`--replay` takes the token that `specc check` printed with a counterexample. It belongs to the spec, the "
        "`--set` overrides and the seed of that command line.",
        "specc check spec.yaml --replay abc\n",
    ),
    Code(
        "SPC502",
        "unknown invariant",
        "`--invariant` takes the name or number of an invariant; `specc check` lists them all with their equality "
        "class.",
        "specc check spec.yaml --invariant acylcic\n",
    ),
)
