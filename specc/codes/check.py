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
    Code(
        "SPC503",
        "a device that the target's modules can't be checked on",
        "Modules of every target are checked on the CPU, Triton's under its interpreter; only those of `--target "
        "triton` also on `--device cuda`.",
        "specc check spec.yaml --device cuda\n",
    ),
    Code(
        "SPC504",
        "`--device cuda` without a CUDA device",
        "torch sees no CUDA device: there is none, or its build of torch is one for the CPU.",
        "specc check spec.yaml --target triton --device cuda\n",
    ),
    Code(
        "SPC505",
        "compiled kernels on the CPU",
        "Triton decides once, when it is imported, whether kernels are compiled or interpreted. A program that calls "
        "`specc.check.run` for target triton on the CPU must set TRITON_INTERPRET=1 before; the command does so.",
        "TRITON_INTERPRET=0 specc check spec.yaml --target triton\n",
    ),
)
