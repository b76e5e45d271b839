"""SPC1xx: the meaning of a spec."""

from __future__ import annotations

from specc.codes.entry import SPEC_START, Code

_EAGLE = SPEC_START + "draft: {method: eagle3, "
_LOOKUP = SPEC_START + "draft: {method: prompt_lookup, "
_STATIC = _LOOKUP + "tree: static, "
_SAMPLED = "sampling: {temperature: 1.0}\n"
_DELTANET = """\
specc: 1
name: demo
target: {family: gated_deltanet, config: {num_hidden_layers: 2, hidden_size: 64, num_heads: 2, head_dim: 32,
         vocab_size: 256}}
"""
_HYBRID = """\
specc: 1
name: demo
target: {family: qwen3_next, config: {num_hidden_layers: 4, hidden_size: 64, num_attention_heads: 4, vocab_size: 256,
         intermediate_size: 128, head_dim: 16, KEYS}}
"""
_DRAFT_MODEL = (
    SPEC_START + "draft: {method: draft_model, config: {num_hidden_layers: 1, hidden_size: 32, "
    "num_attention_heads: 2,\n        intermediate_size: 64, "
)

MODEL_CODES: tuple[Code, ...] = (
    Code(
        "SPC100",
        "a key that has no meaning here",
        "Another key (the method, the family) makes this one meaningless. It is refused, because a key that is "
        "read and then ignored looks as if it worked. `null` takes it away, also by `--set`.",
        SPEC_START + "commit: {state: factors}\n",
    ),
    Code(
        "SPC101",
        "the target needs one of config and checkpoint",
        "The geometry is written out in `target.config`, or read from the config.json of `target.checkpoint`; "
        "with both, they could contradict each other.",
        "specc: 1\nname: demo\ntarget: {family: llama}\n",
    ),
    Code(
        "SPC102",
        "a checkpoint's config.json can't be read",
        "The path is relative to the spec's folder, and must be a folder with a config.json in the Hugging Face "
        "layout. Nothing else of the folder is read before run time.",
        "specc: 1\nname: demo\ntarget: {family: llama, checkpoint: no/such/folder}\n",
    ),
    Code(
        "SPC103",
        "a model setting that is not supported",
        "The config asks for something that changes the computation and that the family does not have here: "
        "another activation, a sliding window, another rope scaling, quantised weights.",
        SPEC_START.replace("num_hidden_layers: 2,", "num_hidden_layers: 2, hidden_act: gelu,"),
    ),
    Code(
        "SPC104",
        "head counts do not divide",
        "Query heads share key/value heads evenly, and without head_dim the heads share hidden_size evenly.",
        SPEC_START.replace("num_attention_heads: 4,", "num_attention_heads: 4, num_key_value_heads: 3,"),
    ),
    Code(
        "SPC105",
        "an odd head_dim",
        "Rotary embeddings rotate pairs of values, so head_dim is even, and so is the part of it that "
        "partial_rotary_factor leaves.",
        SPEC_START.replace("num_attention_heads: 4,", "num_attention_heads: 4, head_dim: 15,"),
    ),
    Code(
        "SPC106",
        "a list of layers that does not fit the layers",
        "`layer_types` says of every layer whether it attends or is recurrent; `mlp_only_layers` holds 0-based layers.",
        _HYBRID.replace("KEYS", "layer_types: [linear_attention, full_attention]"),
    ),
    Code(
        "SPC107",
        "more experts per token than experts",
        "The router takes the num_experts_per_tok most probable of num_experts experts. Without experts "
        "(num_experts 0) every layer has a dense MLP of intermediate_size.",
        _HYBRID.replace("KEYS", "num_experts: 4, num_experts_per_tok: 5"),
    ),
    Code(
        "SPC120",
        "the draft model's sizes are not known",
        "A draft model is compiled together with the target. Its weights may come at run time, its sizes not.",
        SPEC_START + "draft: {method: draft_model}\n",
    ),
    Code(
        "SPC121",
        "draft and target vocabularies differ",
        "A draft model must have the target's vocabulary; an EAGLE-3 head's draft vocabulary is part of it.",
        _DRAFT_MODEL + "vocab_size: 300, max_position_embeddings: 512}}\n",
    ),
    Code(
        "SPC122",
        "a feature layer that does not exist",
        "`aux_hidden_state_layer_ids` are 0-based layers of the target, each once (or once with each kind, where "
        "`aux_hidden_state_of` is a list).",
        _EAGLE + "aux_hidden_state_layer_ids: [0, 2], aux_hidden_state_of: output}\n",
    ),
    Code(
        "SPC123",
        "feature layers without input or output",
        "Some projects number the layer whose input they take, others the one whose output. The two differ by "
        "one layer, and the wrong one costs acceptance without any error. So both keys are given, or none.",
        _EAGLE + "aux_hidden_state_layer_ids: [0, 1]}\n",
    ),
    Code(
        "SPC126",
        "top_k beyond the vocabulary",
        "A node can't have more children than the drafter has tokens.",
        _EAGLE + "tree: dynamic, top_k: 20, config: {draft_vocab_size: 10}}\n",
    ),
    Code(
        "SPC128",
        "a draft model of a recurrent family",
        "Draft models are transformers (llama, qwen3, pangu). A recurrent target may have a transformer drafter: "
        "say so with `draft.family`.",
        SPEC_START + "draft: {method: draft_model, family: gated_deltanet, checkpoint: head}\n",
    ),
    Code(
        "SPC129",
        "the readout of a layer without a state",
        "`aux_hidden_state_of: readout` gives the head what recurrent layers read out of their state: the delta rule's "
        "output after head norm and gate, the input of o_proj. Attention layers have no state; of them the head can "
        "have the `output` or the `input`.",
        _EAGLE + "aux_hidden_state_layer_ids: [0, 1], aux_hidden_state_of: readout}\n",
    ),
    Code(
        "SPC135",
        "a stop token outside the vocabulary",
        "Token ids are 0 to vocab_size - 1. An id beyond them would never be produced, so nothing would stop.",
        SPEC_START + "accept: {stop_tokens: [256]}\n",
    ),
    Code("SPC136", "a stop token twice", "Each is listed once.", SPEC_START + "accept: {stop_tokens: [2, 2]}\n"),
    Code(
        "SPC138",
        "kinds of features that do not fit the layers",
        "`aux_hidden_state_of` is one word for all of `aux_hidden_state_layer_ids`, or a list with a word for each: "
        "`[8, 15]` of `[readout, output]` feeds the head what layer 8 reads out of its state beside layer 15's output.",
        _EAGLE + "aux_hidden_state_layer_ids: [0, 1], aux_hidden_state_of: [output]}\n",
    ),
    Code(
        "SPC150",
        "sequences exceed the target's positions",
        "The deepest node of a tree stands at max_sequence_length + num_steps. Beyond max_position_embeddings the "
        "model was never trained, and positions would wrap or read past a table.",
        SPEC_START + "runtime: {max_sequence_length: 512}\n",
    ),
    Code(
        "SPC151",
        "sequences exceed the drafter's positions",
        "Drafters often have fewer positions than their target. Acceptance collapses silently beyond them.",
        _DRAFT_MODEL + "vocab_size: 256, max_position_embeddings: 128}}\nruntime: {max_sequence_length: 200}\n",
    ),
)

TREE_CODES: tuple[Code, ...] = (
    Code(
        "SPC109",
        "a draft of nothing",
        "A method that drafts needs at least one token and one step; plain decoding is `method: none`.",
        _LOOKUP + "num_speculative_tokens: 0}\n",
    ),
    Code(
        "SPC110",
        "more nodes than candidates",
        "A dynamic tree has top_k candidates in its first level and top_k^2 in each further one (prompt lookup: "
        "top_k matches of num_steps tokens). num_speculative_tokens of them are kept, so it can't be more.",
        _EAGLE + "tree: dynamic, top_k: 2, num_steps: 2, num_speculative_tokens: 7}\n",
    ),
    Code(
        "SPC111",
        "a chain with several children",
        "`tree: chain` means one child per node.",
        _LOOKUP + "tree: chain, top_k: 4}\n",
    ),
    Code(
        "SPC112",
        "a chain whose steps are not its tokens",
        "In a chain every step adds one token, so num_steps equals num_speculative_tokens. Either may be left out.",
        _LOOKUP + "num_speculative_tokens: 5, num_steps: 3}\n",
    ),
    Code(
        "SPC113",
        "a static tree without choices",
        "`choices` lists the tree's nodes as rank paths: [0] is the best child of the root, [0, 1] the second-best "
        "child of that.",
        _LOOKUP + "tree: static}\n",
    ),
    Code(
        "SPC114",
        "a choice without its parent",
        "Every prefix of a rank path must be listed, too: a node can't be in the tree without its parent.",
        _STATIC + "choices: [[0], [1, 0]]}\n",
    ),
    Code(
        "SPC115",
        "choices out of order",
        "Choices are sorted by length, then by ranks, so that parents come before their children.",
        _STATIC + "choices: [[1], [0]]}\n",
    ),
    Code(
        "SPC116",
        "a choice twice",
        "Siblings have distinct ranks. With the same sibling twice, sampling would not keep the target's law.",
        _STATIC + "choices: [[0], [0]]}\n",
    ),
    Code(
        "SPC117",
        "a choice deeper than num_steps",
        "num_steps is the deepest path. Leave it out to take it from the choices.",
        _STATIC + "num_steps: 1, choices: [[0], [0, 0]]}\n",
    ),
    Code(
        "SPC118",
        "num_speculative_tokens is not the number of choices",
        "Every choice is one drafted node (the root is not listed). Leave num_speculative_tokens out to count them.",
        _STATIC + "num_speculative_tokens: 3, choices: [[0], [1]]}\n",
    ),
    Code(
        "SPC119",
        "a rank beyond top_k",
        "Ranks are 0 to top_k - 1. Leave top_k out to take it from the choices.",
        _STATIC + "top_k: 2, choices: [[0], [2]]}\n",
    ),
    Code(
        "SPC124",
        "an empty n-gram range",
        "Prompt lookup tries suffixes of ngram.max tokens down to ngram.min.",
        _LOOKUP + "ngram: {min: 5, max: 3}}\n",
    ),
    Code(
        "SPC125",
        "pruning without a threshold",
        "`path_log_prob_margin` prunes against the best node, `min_path_log_prob` against a fixed value.",
        _EAGLE + "tree: dynamic, prune: {}}\n",
    ),
    Code(
        "SPC127",
        "steps that the budget can't reach (warning)",
        "A tree of n nodes has at most n levels. Further steps are drafted and then thrown away.",
        _EAGLE + "tree: dynamic, num_steps: 9, num_speculative_tokens: 6}\n",
    ),
)

RULE_CODES: tuple[Code, ...] = (
    Code(
        "SPC130",
        "typical acceptance is not lossless",
        "Typical acceptance keeps plausible tokens and so changes the output law. `accept.lossless` is true by "
        "default: say false to accept that.",
        SPEC_START + "accept: {method: typical}\n" + _SAMPLED,
    ),
    Code(
        "SPC131",
        "true_q with a tree that depends on the draws",
        "The rule accepts with min(1, p/q), where q is the law the node was drawn from. Choosing nodes by their "
        "probability after drawing (dynamic trees, pruning) changes that law. Chains and static trees keep it.",
        _EAGLE + "tree: dynamic}\naccept: {method: rejection, rule: true_q}\n" + _SAMPLED,
    ),
    Code(
        "SPC132",
        "true_q without q",
        "Prompt lookup proposes tokens without a distribution. `rule: target_only` needs none.",
        SPEC_START + "draft: {method: prompt_lookup}\naccept: {method: rejection, rule: true_q}\n" + _SAMPLED,
    ),
    Code(
        "SPC133",
        "greedy acceptance with a temperature",
        "Greedy takes the most probable token whatever the temperature is. To sample, use `method: rejection`.",
        SPEC_START + _SAMPLED,
    ),
    Code(
        "SPC134",
        "sampling at temperature 0",
        "Rejection and typical acceptance compare probabilities; at temperature 0 there is nothing to draw.",
        SPEC_START + "accept: {method: rejection}\n",
    ),
    Code(
        "SPC137",
        "a sampling filter under greedy (warning)",
        "top_k and top_p never remove the most probable token, which greedy takes.",
        SPEC_START + "sampling: {top_k: 5}\n",
    ),
    Code(
        "SPC140",
        "commit by length in a tree",
        "Advancing the length keeps the first rows. In a chain these are the accepted ones; in a tree the accepted "
        "path has other nodes between, whose rows would be committed.",
        _EAGLE + "tree: dynamic}\ncommit: {kv: length}\n",
    ),
    Code(
        "SPC141",
        "a deferred commit by length",
        "Deferral keeps the accepted path pending and moves its rows in the next verify. `kv: length` moves no rows.",
        SPEC_START + "commit: {kv: length, update: deferred}\n",
    ),
    Code(
        "SPC142",
        "a deferred commit without factors",
        "Only factors (u, k, decay) can be kept pending and folded into the next verify; snapshots and replays are "
        "whole states.",
        _DELTANET + "commit: {state: replay, update: deferred}\n",
    ),
    Code(
        "SPC143",
        "a float64 model with a narrower state",
        "float64 is for checking: every result must be exact to about 1e-15. A float32 or bfloat16 state would round "
        "after every token. `runtime.state_dtype` follows `runtime.dtype` when it is left out.",
        _DELTANET + "runtime: {dtype: float64, state_dtype: float32}\n",
    ),
    Code(
        "SPC160",
        "too many nodes for Ascend",
        "Its fused attention takes at most 16 tokens per decode round: 15 drafted nodes and the root.",
        _LOOKUP + "num_speculative_tokens: 16}\nbackend: {ascend: {}}\n",
    ),
    Code(
        "SPC161",
        "heads that Ascend attention does not have",
        "head_dim is a multiple of 16, at most 512; at most 256 query heads, in groups of at most 64.",
        SPEC_START.replace("num_attention_heads: 4,", "num_attention_heads: 4, head_dim: 24,")
        + "backend: {ascend: {}}\n",
    ),
    Code(
        "SPC162",
        "a page size that Ascend does not have",
        "Pages have 128, 256, 384 or 512 rows.",
        SPEC_START + "runtime: {kv_layout: paged, kv_block_size: 64}\nbackend: {ascend: {}}\n",
    ),
    Code(
        "SPC163",
        "a type that Ascend attention does not have",
        "It computes in bfloat16, float16 or float32.",
        SPEC_START + "runtime: {dtype: float64}\nbackend: {ascend: {}}\n",
    ),
    Code(
        "SPC170",
        "an unknown pass",
        "`specc show SPEC` lists the passes of the default pipeline.",
        SPEC_START + "passes: [layer-mayor]\n",
    ),
    Code(
        "SPC171",
        "a list item that is not one pass",
        "Each item is a name or `name: {option: value}`.",
        SPEC_START + "passes: [{}]\n",
    ),
    Code(
        "SPC172",
        "an unknown invariant",
        "Invariants have names; `specc check SPEC` lists those that apply.",
        SPEC_START + "invariants: [lossles]\n",
    ),
    Code("SPC173", "an invariant twice", "Each is listed once.", SPEC_START + "invariants: [lossless, lossless]\n"),
)

SEMANTIC_CODES: tuple[Code, ...] = (*MODEL_CODES, *TREE_CODES, *RULE_CODES)
