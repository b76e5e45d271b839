"""Small specs of both recurrent families, drawn and fixed; their naive programs and plain decoding over one set of
weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from hypothesis import strategies as st

from specc import driver
from specc.check.machines import Bag, Interpreted, Results, State, load_module
from specc.check.oracle import PlainDecoding
from specc.check.weights import Value, logical_weights, program_weights
from specc.lower.assemble import lower
from specc.program import DecodeProgram
from specc.spec import loads
from specc.spec.model import Spec

torch.set_num_threads(1)
VOCABULARY = 23
TREE = "{method: prompt_lookup, tree: dynamic, num_speculative_tokens: 6, num_steps: 3, top_k: 3}"
CHAIN = "{method: prompt_lookup, tree: chain, num_speculative_tokens: 4}"


def delta_config(
    layers: int = 2,
    heads: int = 2,
    value_heads: int = 4,
    head_dim: int = 4,
    expand_v: float = 1,
    conv_size: int = 4,
    *,
    conv_bias: bool = False,
    use_gate: bool = True,
    allow_neg_eigval: bool = False,
    tied: bool = False,
) -> str:
    """A gated_deltanet target as YAML."""
    return (
        f"{{family: gated_deltanet, config: {{num_hidden_layers: {layers}, hidden_size: 16, num_heads: {heads}, "
        f"num_v_heads: {value_heads}, head_dim: {head_dim}, expand_v: {expand_v}, conv_size: {conv_size}, "
        f"conv_bias: {conv_bias}, use_gate: {use_gate}, allow_neg_eigval: {allow_neg_eigval}, intermediate_size: 24, "
        f"vocab_size: {VOCABULARY}, tie_word_embeddings: {tied}}}}}"
    )


def hybrid_config(
    layers: str = "daddad", conv_size: int = 4, experts: int = 3, *, sparse_step: int = 2, norm_topk: bool = True
) -> str:
    """A qwen3_next target as YAML: `layers` has d (Gated DeltaNet) or a (attention) for each."""
    kinds = ", ".join("linear_attention" if kind == "d" else "full_attention" for kind in layers)
    return (
        f"{{family: qwen3_next, config: {{num_hidden_layers: {len(layers)}, layer_types: [{kinds}], hidden_size: 16, "
        "num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8, partial_rotary_factor: 0.5, "
        f"linear_num_key_heads: 2, linear_num_value_heads: 4, linear_key_head_dim: 4, linear_value_head_dim: 6, "
        f"linear_conv_kernel_dim: {conv_size}, num_experts: {experts}, num_experts_per_tok: 2, "
        f"decoder_sparse_step: {sparse_step}, norm_topk_prob: {norm_topk}, moe_intermediate_size: 8, "
        "shared_expert_intermediate_size: 12, intermediate_size: 24, rope_theta: 1000.0, "
        f"max_position_embeddings: 256, vocab_size: {VOCABULARY}}}}}"
    )


def spec_text(
    target: str,
    draft: str = TREE,
    commit: str = "{state: factors}",
    more: str = "",
    *,
    dtype: str = "float64",
    length: int = 40,
) -> str:
    """A spec, by default in float64."""
    return f"""specc: 1
name: recurrent
target: {target}
draft: {draft}
commit: {commit}
runtime: {{max_batch_size: 4, max_sequence_length: {length}, dtype: {dtype}, state_dtype: {dtype}}}
{more}
"""


@st.composite
def targets(draw: st.DrawFn) -> str:
    """Small targets of both families: GVA, negative eigenvalues, no gate, conv bias, other periods, experts."""
    conv_size = draw(st.integers(2, 5))
    if draw(st.booleans()):
        heads, share = draw(st.integers(1, 2)), draw(st.integers(1, 3))
        return delta_config(
            draw(st.integers(1, 3)),
            heads,
            heads * share,
            draw(st.sampled_from((2, 4))),
            draw(st.sampled_from((0.5, 1, 2))),
            conv_size,
            conv_bias=draw(st.booleans()),
            use_gate=draw(st.booleans()),
            allow_neg_eigval=draw(st.booleans()),
            tied=draw(st.booleans()),
        )
    layers = draw(st.sampled_from(("dda", "da", "dada", "d", "addadd")))
    experts = draw(st.sampled_from((0, 2, 4)))
    return hybrid_config(layers, conv_size, experts, sparse_step=draw(st.integers(1, 2)), norm_topk=draw(st.booleans()))


@dataclass(frozen=True)
class Naive:
    """A spec's naive program in the interpreter, with random weights."""

    spec: Spec
    program: DecodeProgram
    logical: Mapping[str, Value]

    @classmethod
    def of(cls, text: str, seed: int = 0) -> Naive:
        """Lowers the spec."""
        spec = loads(text).spec
        return cls(spec, lower(spec), logical_weights(spec, seed))

    @cached_property
    def plain(self) -> PlainDecoding:
        """Plain decoding of whole texts."""
        return PlainDecoding(self.spec.target.geometry, self.logical)

    @cached_property
    def machine(self) -> Interpreted:
        """The interpreter."""
        weights = {name: self.logical[name] for name in self.program.weights}
        return Interpreted("naive program", self.program, weights)

    def start(self, prompts: list[list[int]], chunk: int = 99) -> tuple[State, torch.Tensor]:
        """Prefilled state and the logits after the prompts, which are padded behind."""
        state, logits = self.machine.start(len(prompts)), torch.zeros(len(prompts), VOCABULARY, dtype=torch.float64)
        state["rng"] = torch.arange(len(prompts))
        width = max(map(len, prompts))
        ids = torch.tensor([[*prompt, *[0] * (width - len(prompt))] for prompt in prompts])
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        for first in range(0, width, chunk):
            part = ids[:, first : first + chunk]
            count = (lengths - first).clamp(0, part.shape[1])
            state, results = self.machine.step("prefill", state, {"input_ids": part, "lengths": count})
            logits = torch.where((count > 0)[:, None], results["logits"], logits)
        return state, logits

    def step(self, step: str, state: State, bag: Bag) -> tuple[State, Results]:
        """One step function."""
        return self.machine.step(step, state, bag)


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    """max|a - b| / max|b|."""
    return float((a - b).abs().max() / b.abs().max())


@dataclass(frozen=True)
class Compiled:
    """A spec's generated module with random weights, in the spec's dtype."""

    spec: Spec
    source: str
    module: Any
    weights: Any
    logical: Mapping[str, Value]

    @property
    def plain(self) -> PlainDecoding:
        """Plain decoding of whole texts in float64, by the same weights."""
        return PlainDecoding(self.spec.target.geometry, self.logical)

    def edited(self, edit: Callable[[str], str]) -> Compiled:
        """The same with the module's text changed."""
        source = edit(self.source)
        module = load_module(source, "specc_recurrent_edited")
        return Compiled(self.spec, source, module, module.Weights(*self.weights), self.logical)


@cache
def compiled(text: str, seed: int = 0) -> Compiled:
    """Compiles a spec once. In float32 the weights are rounded first, so that plain decoding has the same ones."""
    loaded = loads(text)
    done = driver.compile_spec(loaded, verify=False)
    module = load_module(done.source, f"specc_recurrent_{abs(hash(text))}")
    dtype = torch.float32 if loaded.spec.runtime.dtype == "float32" else torch.float64
    rounded = {name: _as(value, dtype) for name, value in logical_weights(loaded.spec, seed).items()}
    given = module.Weights(**program_weights(done.program.weights, done.naive, rounded))
    return Compiled(loaded.spec, done.source, module, given, {k: _as(v, torch.float64) for k, v in rounded.items()})


def _as(value: Value, dtype: torch.dtype) -> Value:
    return value.to(dtype) if isinstance(value, torch.Tensor) else tuple(one.to(dtype) for one in value)
