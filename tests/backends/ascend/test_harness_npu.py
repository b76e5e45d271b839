"""NPU operators: through torchair and the evaluator, and on the CPU, each against float64 loops and each other."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from specc.backends.ascend import cpu
from specc.backends.ascend.harness.lower import lower
from tests.backends.ascend.harness_support import FEW, TYPES, assert_same, copied
from tests.backends.ascend.npu_calls import CALLS, Call

BOUND = {torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}
"""Of a result's largest value: several roundings to the type."""


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    cpu.register()


def assert_near(made: Any, wanted: Any) -> None:
    """Within the type's bound of the float64 result."""
    for ours, theirs in zip(pytree.tree_leaves(made), pytree.tree_leaves(wanted), strict=True):
        assert ours.shape == theirs.shape
        difference = float((ours.double() - theirs).abs().max())
        assert difference <= BOUND[ours.dtype] * max(1.0, float(theirs.abs().max())), difference


def in_float64(values: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, values)


@pytest.mark.parametrize("name", CALLS)
@FEW
@given(TYPES, st.integers(0, 999))
def test_the_cpu_kernel_equals_float64(name: str, dtype: torch.dtype, seed: int) -> None:
    call = CALLS[name]
    inputs = call.inputs(seed, dtype)
    untouched = copied(inputs)
    assert_near(call.function(*inputs), call.expected(*in_float64(inputs)))
    assert_same(inputs, untouched, 0.0)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.usefixtures("torch_npu_wheel")
def test_the_lowered_operator_equals_the_cpu_kernel(name: str, dtype: torch.dtype) -> None:
    call: Call = CALLS[name]
    inputs = call.inputs(1, dtype)
    wanted = call.function(*copied(inputs))
    assert_same(lower(call.function, inputs).run(*inputs), wanted, 1.0)


@pytest.mark.parametrize("name", CALLS)
def test_meta_results_have_the_shapes_and_types_of_the_real_ones(name: str) -> None:
    call = CALLS[name]
    inputs = call.inputs(1, torch.float16)
    on_meta = pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), inputs)
    made, meta = (pytree.tree_leaves(call.function(*values)) for values in (inputs, on_meta))
    assert [(t.shape, t.dtype) for t in made] == [(t.shape, t.dtype) for t in meta]


ORDERS = {
    "kernels first": "cpu.register(); run(); lowered(); run()",
    "harness first": "lowered(); cpu.register(); run(); lowered()",
    "twice": "cpu.register(); cpu.register(); run()",
}
SCRIPT = """
import torch
from specc.backends.ascend import cpu
from specc.backends.ascend.harness.lower import lower

def attend(q, k):
    lengths = torch.full((k.shape[0],), 3)
    settings = dict(num_heads=1, input_layout="BSND", scale=0.25)
    attended, _ = torch.ops.air.npu_fused_infer_attention_score(q, k, k, actual_seq_lengths_kv=lengths, **settings)
    return attended + torch.ops.npu.npu_swiglu(torch.cat([q, q], -1))

q, k = torch.randn(1, 2, 1, 16).half(), torch.randn(1, 4, 1, 16).half()
seen = []

def run():
    seen.append(attend(q, k))

def lowered():
    seen.append(lower(attend, (q, k)).run(q, k))

{order}
assert all(torch.equal(seen[0], other) for other in seen)
try:
    import torch_npu
except ModuleNotFoundError:
    print("as before")
import signal, sys
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
assert not [name for name in sys.modules if name.startswith(("torchair", "torch_npu."))]
"""


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.usefixtures("torch_npu_wheel")
def test_kernels_and_harness_live_in_one_process_in_any_order(order: str) -> None:
    """In a process of its own: registrations can't be taken back. It is left as it was: no torch_npu, no handlers."""
    script = SCRIPT.replace("{order}", ORDERS[order])
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "as before\n"), done.stderr
