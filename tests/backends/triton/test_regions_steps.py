"""Regions of whole steps: how many launches are left, and what their kernels need on sm_90."""

from __future__ import annotations

import pytest
from torch.fx import GraphModule, Node

from specc.backends.printing.regions import RegionCall
from specc.backends.triton.backend import prepared
from specc.backends.triton.projections import attention_projections
from specc.backends.triton.regions import plan
from specc.backends.triton.regions.region import is_free
from specc.backends.triton.rotations import attention_steps
from specc.ir.edit import is_loop, loop_parts
from tests.backends.triton.apart import printed
from tests.backends.triton.compiled_regions import step_graph

STACK_OF_COSINE = 32
"""Bytes that the reduction of large angles keeps on the stack; it is no spill."""


CHILDREN = ("log_softmax", "clamp_max", "stable_topk")


def units(module: GraphModule) -> list[str]:
    """What a graph launches, in order: "region", names of ops, "loop"."""
    found = []
    for unit in plan(module).order:
        if isinstance(unit, RegionCall):
            found.append("region")
        elif is_loop(unit):
            found.append("loop")
        elif not is_free(unit):
            found.append(str(unit.target).split(".")[1])
    return found


def layers(module: GraphModule, axis: str = "layer") -> list[GraphModule]:
    """The bodies of the loops over layers (or over the levels of a draft: "step")."""
    loops = [unit for unit in plan(module).order if isinstance(unit, Node) and is_loop(unit)]
    return [loop_parts(node).body for node in loops if node.args[0] == axis]


def test_lookup_trees_acceptance_and_bookkeeping_are_two_kernels() -> None:
    step = step_graph("smollm2-prompt-lookup-tree")
    found = units(step)
    # The tree with its mask and angles; the embedding of its tokens.
    assert found[: found.index("loop")] == ["region", "region"]
    # Row moves of all layers, and the argmax over the vocabulary: four launches from the logits to the next tree.
    assert found[found.index("loop") :] == ["loop", "fused_linear", "argmax", "region", "commit_path_layers_"]
    (body,) = layers(step)
    assert units(body) == ["fused_linear", "region", "tree_attention_cached", *["fused_linear"] * 3]


def test_a_printed_step_has_the_ops_that_this_backend_finds() -> None:
    found = units(step_graph("smollm2-prompt-lookup-tree", prepare=prepared))
    assert found[found.index("loop") :] == ["loop", "fused_linear", "argmax_parts", "region", "commit_path_layers_"]
    (body,) = layers(step_graph("gdn-15m-tree", prepare=prepared))
    assert units(body)[:1] == ["linear_tree_conv_gates_"]
    assert units(body).count("region") == 1


def test_a_bigram_tree_is_drafted_by_one_kernel() -> None:
    """All levels, the choice of nodes and the tree's mask; the embedding of its tokens."""
    found = units(step_graph("smollm2-bigram"))
    assert found[: found.index("loop")] == ["commit_path_layers_", "region", "region"]


def test_a_recurrent_layer_has_two_regions() -> None:
    (body,) = layers(step_graph("gdn-15m-tree"))
    assert units(body).count("region") == 2
    assert "copy_" not in units(body)


def test_a_level_of_a_heads_draft_has_few_launches_and_its_cache_is_written_in_place() -> None:
    step = step_graph("gdn-15m-eagle")
    (level,) = layers(step, "step")
    assert units(level).count("fused_linear") == 5  # qkv, o, gate and up, down, head
    assert units(level).count("region") == 3
    assert units(level).count("tree_attention") == 1
    # What picks children becomes one kernel later.
    assert [name for name in units(level) if name not in CHILDREN][8:] == ["region"]
    catch_up = units(layers(step)[0])
    assert catch_up == ["region", "fused_linear", "region", "causal_attention_cached", *["fused_linear"] * 3]
    found = units(step)
    assert "append_rows" not in found
    # The head's first rows and the root's children: no operator makes constants for the loop over levels.
    between = found[found.index("loop") + 1 : found.index("loop", found.index("loop") + 1)]
    assert between[:-1] == ["region", "fused_linear", *CHILDREN]
    assert between[-1] in ("region", "clamp_max")  # what the children's kernel makes of their log-probabilities


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        "smollm2-static-tree",
        "gdn-15m-tree",
        "gdn-15m-eagle",
        "gdn-1b3-specla",
        "qwen3-dynamic-tree",
        "qwen3-next-hybrid",
    ],
)
def test_regions_of_shipped_specs_compile_without_spills(spec: str) -> None:
    """In a process of its own: kernels of this one are the interpreter's."""
    found = printed("compiled_regions", spec)
    assert len(found) >= 3
    spilled = [item for item in found if item[1]["spills"] > (STACK_OF_COSINE if item[1]["rounds_angles"] else 0)]
    assert not spilled
    assert all(used["shared"] <= 232448 for _, used in found)


def test_a_layer_with_attention_is_five_launches() -> None:
    (body,) = layers(attention_steps(step_graph("smollm2-prompt-lookup-tree"))[0])
    assert units(body) == ["fused_linear", "rope_attention_", *["fused_linear"] * 3]


def test_a_tokens_layer_is_four_where_its_projection_is_one_step() -> None:
    step = attention_steps(step_graph("smollm2-prompt-lookup-tree", "runtime.dtype=bfloat16", name="plain_step"))[0]
    (body,) = layers(attention_projections(step)[0])
    assert units(body) == ["fused_linear", "rope_attention_linear_", *["fused_linear"] * 2]
