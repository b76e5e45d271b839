"""How far results in float32, float16 or bfloat16 may be from float64: an error model, whose numbers are all checked.

Operands and weights are the same numbers on both sides (the float64 program gets the rounded weights), so what differs
is the rounding of intermediate results. The bound is scale x u x sqrt(S) of the largest value, with

u       the unit roundoff of the program's type, eps / 2: what one stored result is off, relative.
S       the roundings that lie behind one another on the longest path of the whole stack. Every matrix product, norm,
        rotation, activation and sum is rounded once when it is stored: ROUNDINGS in a layer, ENDS outside. An attention
        layer stores 12 on its longest path: norm, q/k/v product, their norm and rotation, attention, output product,
        sum; norm, gate/up product, activation, down product, sum. A recurrent one 15: norm, product, convolution,
        activation, unit vectors, rule, norm, gate, output product, sum, and its MLP's five; a mixture EXPERTS
        more: an expert's share, their sum, the shared expert's gate. A module without the NPU's
        fused operators (the reference, ONNX, MLIR) rounds inside of a rotation and an activation, too: SPELLED more.
        Inside a product, float16 and bfloat16 are accumulated in float32, whose roundings are u / 2^13 at most and
        don't count. In float32 they do: the partial sums of n terms are rounded n times, at half of the result's
        size in the mean square, which is n / 2 roundings more for each of the PRODUCTS of a layer.
sqrt    roundings are independent, with a mean near zero: they add up like a random walk (Higham and Mary, A new
        approach to probabilistic rounding error analysis, SIAM J. Sci. Comput. 41(5), 2019). One that is uniform within
        u has the standard deviation u / sqrt(3).
scale   PEAK / sqrt(3) for the largest of n elements, which lies sqrt(2 ln n) standard deviations out (4.3 of 10,000
        elements), times what the stack makes of an error that enters it: norms divide by what may be small, and a
        softmax turns an error of a score into one of a weight.

States that are kept in bfloat16 add roundings of their own, of bfloat16's u: a walk writes a state at most WRITES
times, once for each part of a prompt and for each step, and the recurrent operator takes OPERANDS more that it wants
rounded: normed queries, normed keys and rates.

The last factor, MAGNIFIED, is a property of the exact program, and is measured there: the float64 module is run twice,
with weights that differ at random by a relative 1e-6, and the results' difference is held against the model's own
prediction for that many disturbances. tests/backends/ascend/test_bounds.py does it for every shipped spec; no result in
half precision takes part. The same file counts the roundings behind the logits, tensor by tensor, in modules of every
family. Recurrent layers magnify more: they norm the output of every head whatever its size, so that
an output much smaller than the terms that cancelled in it has their rounding.
"""

from __future__ import annotations

import math

import torch

from specc.models.geometry import Geometry

ROUNDINGS = 16
"""Results stored one after the other in one layer, at most."""
EXPERTS = 2
"""More of them in a layer with a mixture of experts."""
SPELLED = 4
"""More of them where rotation (two products and a sum), activation and gates are spelled out."""
ENDS = 4
"""Roundings outside of layers: embedding, last norm, head, and the rows kept in the cache."""
WRITES = 4
"""Calls of a walk that write a recurrent state: two parts of a prompt, two steps. Within a call it is float32."""
OPERANDS = 3
"""Operands of the recurrent operator that are rounded to bfloat16 for it alone: queries, keys, rates."""
PRODUCTS = 6
"""Products one after the other in one layer: q/k/v, scores, weighted sum, output, gate/up, down."""
PEAK = 4.3
"""sqrt(2 ln n) of n = 10,000: how many standard deviations the largest of so many elements is out."""
MAGNIFIED, MAGNIFIED_RECURRENT = 1.4, 4.8
"""What becomes of a relative error on its way through the stack: twice the largest that float64 shows over the shipped
specs and several sets of weights, 0.7 and 2.4."""


def unit_roundoff(dtype: torch.dtype) -> float:
    """u: the largest relative error of rounding to this type."""
    return torch.finfo(dtype).eps / 2


def scale(geometry: Geometry) -> float:
    """The largest element's share of u sqrt(S), magnified by the stack."""
    return PEAK / math.sqrt(3.0) * (MAGNIFIED_RECURRENT if geometry.recurrent else MAGNIFIED)


def roundings(geometry: Geometry, dtype: torch.dtype, spelled: bool = False) -> float:
    """S: roundings behind one another. `spelled`: of a module without fused operators."""
    layer: float = ROUNDINGS + (SPELLED if spelled else 0) + (EXPERTS if geometry.moe else 0)
    if dtype == torch.float32:
        layer += PRODUCTS * longest_sum(geometry) / 2
    return layer * geometry.num_hidden_layers + ENDS


def longest_sum(geometry: Geometry) -> int:
    """Terms of the longest sum of a layer's product: an MLP's width, or the model's."""
    return max(geometry.hidden_size, geometry.intermediate_size)


def state_roundings(geometry: Geometry, state: torch.dtype) -> int:
    """Roundings of bfloat16 states behind one another; 0 for wider ones, whose roundings `roundings` counts."""
    recurrent = sum(layer.mixer == "delta" for layer in geometry.layers)
    return (WRITES + OPERANDS) * recurrent if state == torch.bfloat16 else 0


def half_bound(
    geometry: Geometry, dtype: torch.dtype, spelled: bool = False, state: torch.dtype = torch.float32
) -> float:
    """The bound on max|a - b| / max|b| of logits, cached rows and states after the whole stack."""
    square = unit_roundoff(dtype) ** 2 * roundings(geometry, dtype, spelled)
    square += unit_roundoff(state) ** 2 * state_roundings(geometry, state)
    return scale(geometry) * math.sqrt(square)


def same_rounding_bound(geometry: Geometry, dtype: torch.dtype, state: torch.dtype = torch.float32) -> float:
    """The bound between two runs that round at the same places: their sums differ in order only, so that now and then
    one of them rounds the other way. Half of what two unrelated roundings may differ by."""
    return half_bound(geometry, dtype, False, state) / 2


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """max|a - b| / max|b| over finite values of b (0 for empty ones); inf where only one of them is finite."""
    a, b = a.double(), b.double()
    finite = b.isfinite()
    if not torch.equal(a.isfinite(), finite):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    largest = float(b[finite].abs().max())
    gap = float((a[finite] - b[finite]).abs().max())
    return gap / largest if largest else (math.inf if gap else 0.0)
