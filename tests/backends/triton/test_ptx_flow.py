"""Races are found in PTX: on some path only, around a loop, in either order; and guarded accesses are let through."""

from __future__ import annotations

import pytest

from tests.backends.triton.ptx_flow import unguarded

WRITE = "// begin inline asm\nst.shared.f32 [%r1], %r2; mov.u32 %r3, 0;\n// end inline asm"
READ = "// begin inline asm\nld.shared.v4.f32 {%r4, %r5, %r6, %r7}, [%r1+16];\n// end inline asm"
BARRIER = "bar.sync \t0;"
OVER = ["@%p1 bra $L__BB0_1;", BARRIER, "bra.uni $L__BB0_2;", "$L__BB0_1:", BARRIER, "$L__BB0_2:"]
GUARDED = {
    "in a line": [WRITE, WRITE, BARRIER, READ, READ],
    "on both paths": [WRITE, *OVER, READ],
    "around a loop": ["$L__BB0_1:", WRITE, BARRIER, READ, BARRIER, "@%p1 bra $L__BB0_1;"],
    "a path that ends": [WRITE, "@!%p1 bra $L__BB0_1;", "ret;", "$L__BB0_1:", BARRIER, READ],
    "Triton's own": ["st.shared.b32 [%r1], %r2;", "ld.shared.b32 %r2, [%r1];"],
    "a name with a dot": [WRITE, "barrier.sync.aligned 0;", READ],
    "beyond the end": [WRITE, "ret;", READ],
}
RACES = {
    "in a line": ([WRITE, READ], {5}),
    "on one path": ([WRITE, "@%p1 bra $L__BB0_1;", BARRIER, "$L__BB0_1:", READ], {8}),
    "around a loop": (["$L__BB0_1:", WRITE, BARRIER, READ, "@%p1 bra $L__BB0_1;"], {3}),
    "a read is overwritten": ([READ, WRITE], {5}),
    "behind an end that only some reach": ([WRITE, "@%p1 ret;", READ], {6}),
    "over a jump": ([WRITE, "bra.uni $L__BB0_1;", BARRIER, "$L__BB0_1:", READ], {8}),
}


@pytest.mark.parametrize("name", GUARDED)
def test_guarded(name: str) -> None:
    assert unguarded("\n".join([*GUARDED[name], "ret;"])) == []


@pytest.mark.parametrize("name", RACES)
def test_a_race_is_found(name: str) -> None:
    lines, found = RACES[name]
    assert set(unguarded("\n".join([*lines, "ret;"]))) == found
