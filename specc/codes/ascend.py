"""SPC51x to SPC57x: contracts of the Ascend operators, checked on graphs before anything is generated for them."""

from __future__ import annotations

from specc.codes.entry import Code

MASKS: tuple[Code, ...] = (
    Code(
        "SPC510",
        "attention mask of a dtype that the NPU does not take",
        "Fused attention takes masks of bool, int8 or uint8, where 1 masks a key out. Floating-point masks that are "
        "added to the scores are another operand (pse_shift), and a float16 mask is read as bytes.",
        "npu_fused_infer_attention_score(q, k, v, atten_mask=mask.to(torch.float16))",
    ),
    Code(
        "SPC511",
        "bool mask of one query row over more than 512 keys",
        "With one query row the operator was seen to ignore a bool mask past key 512, without an error (vllm-ascend "
        "issue 15503). int8 masks of the same values are read as they should be.",
        "mask: bool [1, 1, 1, 4096], one query row",
    ),
    Code(
        "SPC512",
        "attention mask with the opposite meaning",
        "A 1 masks a key OUT. Most decoders, and torch's own attention with a bool mask, mean the opposite. The "
        "checker follows the mask back to comparisons of positions, tril and triu, and our own mask ops, and found "
        "that here ones show a key, that its parts mean opposite things, or that it hides everything.",
        "visible = torch.arange(keys) <= position\nnpu_fused_infer_attention_score(q, k, v, atten_mask=visible)",
    ),
    Code(
        "SPC513",
        "attention mask of unknown meaning",
        "The checker follows a mask back through negations, casts, views, and, or, where, cat, comparisons of an "
        "arange with positions, tril and triu. Where it comes to an input or an op that it does not know, the "
        "meaning must be declared: check_contracts(graph, masks={'name': 'hidden'}) says that a 1 masks a key out, "
        "'visible' that it shows one. Any node can be named.",
        "def f(q, k, v, mask):  # nothing declared about mask\n"
        "    return npu_fused_infer_attention_score(q, k, v, atten_mask=mask)",
    ),
    Code(
        "SPC514",
        "attention mask of the wrong shape",
        "Dense attention takes one full mask (B, 1, Q, KV) for all heads: the dim of the heads is 1, a row per "
        "query and a column per key of the whole cache. Other shapes were seen to be taken without an error and "
        "read wrongly.",
        "mask [1, 8, 16, 512] for 8 heads",
    ),
    Code(
        "SPC515",
        "attention mask that is not contiguous",
        "The operator reads the mask's memory in order. An expanded or transposed mask has other strides.",
        "mask = row.expand(batch, 1, 16, 512)",
    ),
)

ATTENTION: tuple[Code, ...] = (
    Code(
        "SPC520",
        "attention layout that the op does not have, or that does not fit its operands",
        "Layouts are BSH, BSND, BNSD (dense, padded), TND and NTD (packed rows). The letters are the dims of the "
        "query: batch, rows (S), heads (N), head dim (D), or heads and head dim in one (H), or all rows of a batch "
        "in one (T).",
        "input_layout='BNSD' with a query of 3 dims",
    ),
    Code(
        "SPC521",
        "dtype that fused attention does not have",
        "Query, keys and values are float16 or bfloat16, all the same (keys and values may be int8 where they are "
        "quantised). float32 programs compute attention with matmuls: `verify: {attention: eager}`.",
        "a float32 query",
    ),
    Code(
        "SPC522",
        "heads that fused attention does not have",
        "head_dim is a multiple of 16 up to 512; at most 256 query heads, a multiple of the key heads, and at most "
        "64 of them share a key head.",
        "head_dim 72",
    ),
    Code(
        "SPC523",
        "more than 16 query rows in a decode round",
        "The decode path of fused attention takes at most 16 rows, so a tree has at most 15 drafted nodes and the "
        "root. Prefill has its own path and no such bound: check_contracts(graph, stage='prefill').",
        "a query [1, 17, 32, 128]",
    ),
    Code(
        "SPC524",
        "sparse_mode that does not fit its mask",
        "0 and 1 read a full mask (1 needs one). 2, 3 and 4 read a fixed triangle of 2048 x 2048 and place it "
        "themselves: a tree is no triangle. 9 reads a tree's mask, but only in npu_fused_infer_attention_score_v2 "
        "with MLA or int8 keys.",
        "sparse_mode=3 with a mask [1, 1, 16, 512]",
    ),
    Code(
        "SPC525",
        "packed rows without a mask",
        "In layout TND a call without a mask is not causal: it averages over all rows of a sequence, without an "
        "error (vllm-ascend issue 13699). Pass the causal mask with sparse_mode 3.",
        "input_layout='TND', atten_mask=None",
    ),
    Code(
        "SPC526",
        "rows that may see nothing, in a mode that does not allow for them",
        "A query whose keys are all masked out gives garbage with inner_precise 0 and 1; 2 and 3 give zeros. It is "
        "enough that every row sees its own key or the first one; what makes the mask must show that.",
        "mask = key > length  # length may be -1, inner_precise=0",
    ),
    Code(
        "SPC527",
        "pre_tokens or next_tokens that cut off keys",
        "In sparse_mode 0 a row i sees keys i - pre_tokens to i + next_tokens only, counted from the top left "
        "corner, whatever the mask says. npu_prompt_flash_attention has next_tokens = 0 by default, so a short "
        "query over a long cache sees its first rows only.",
        "npu_prompt_flash_attention(q, k, v, atten_mask=mask)  # next_tokens not given",
    ),
    Code(
        "SPC528",
        "page size that paged attention does not have",
        "With more than one query row pages have 128, 256, 384 or 512 rows; with one row a multiple of 16 up to "
        "512. `runtime: {kv_block_size: 128}` sets it.",
        "block_size=64 with 16 query rows",
    ),
    Code(
        "SPC529",
        "page number that may be outside the cache",
        "The operator does not check the block table: a -1 or a number past the last page is read from foreign "
        "memory. Declare the range of the table, and give unused entries a page that exists.",
        "block_table in [-1, 63] over 64 pages",
    ),
    Code(
        "SPC530",
        "lengths of the keys as numbers of the host",
        "torch_npu's form takes Python numbers. In a graph each new length compiles anew or is rebound at every "
        "replay (vllm-ascend issue 13058: 3.68 ms against 1.21 ms), and a captured one goes on with the old "
        "numbers. torchair's form (torch.ops.air.npu_fused_infer_attention_score) takes a tensor.",
        "actual_seq_lengths_kv=[512]",
    ),
    Code(
        "SPC531",
        "lengths of the queries as numbers of the host",
        "A replayed graph keeps the numbers of its capture, so that fewer live rows are read as if all were there "
        "(vllm-ascend pull request 6535). Numbers that only repeat the query's shape are fine.",
        "actual_seq_lengths=[3, 16] with 16 rows each",
    ),
    Code(
        "SPC532",
        "length that may be outside the cache",
        "A length beyond the keys reads what lies behind them; a length of 0 gives a row of garbage. Declare the "
        "range of the lengths, or clamp them.",
        "actual_seq_lengths_kv in [1, 600] over 512 keys",
    ),
)

CACHES: tuple[Code, ...] = (
    Code(
        "SPC540",
        "write that may be outside a cache",
        "scatter_update, npu_scatter_nd_update and npu_scatter_pa_kv_cache do not check their indices: a row "
        "outside goes to foreign memory, or stops the device (vllm-ascend issue 4296). The whole block must fit: "
        "start + rows is at most the capacity, for every start that can occur.",
        "scatter_update(cache, start, rows, 1)  # start in [0, 512], 16 rows, 512 in the cache",
    ),
    Code(
        "SPC541",
        "two rows that may go to the same place",
        "Which of two rows with the same index stays is undefined. The checker proves aranges (shifted, "
        "multiplied), the order of topk or sort of one row, and single rows; others are declared: "
        "check_contracts(graph, unique={'slots'}).",
        "npu_scatter_nd_update(cache, slots, rows)  # nothing declared about slots",
    ),
    Code(
        "SPC542",
        "cache_mode other than Norm",
        "npu_scatter_pa_kv_cache writes the NZ layout by default. Pages in the plain layout need cache_mode='Norm'.",
        "npu_scatter_pa_kv_cache(k, v, k_cache, v_cache, slots)",
    ),
    Code(
        "SPC543",
        "cache that is read beside the scatter that updates it",
        "A cache stays in its memory only if its graph input has two consumers: one scatter, and the copy_ of its "
        "result. Any other reader makes the compiler keep the old cache, which moves all of it. Read the scatter's "
        "result.",
        "cache.copy_(scatter_update(cache, start, rows, 1))\nreturn cache_before.sum()",
    ),
    Code(
        "SPC544",
        "two scatters on one cache",
        "A second scatter, on the same cache or on the first one's result, leaves a move of the whole cache. Join "
        "the rows first and write them by one scatter: a commit and the step's new rows are one block.",
        "scatter_update(scatter_update(cache, a, x, 1), b, y, 1)",
    ),
    Code(
        "SPC545",
        "copy into a part of a buffer",
        "`cache[:, 3:5].copy_(rows)` becomes a copy of the whole buffer. Write the rows by scatter_update and copy_ "
        "its result.",
        "cache[:, :16].copy_(rows)",
    ),
    Code(
        "SPC546",
        "dtype that scatter_update does not have",
        "scatter_update takes float16, bfloat16, float32, int32 and int8; not int64, not bool, not float64.",
        "scatter_update(tokens, start, new, 1)  # int64 tokens",
    ),
)

DELTA: tuple[Code, ...] = (
    Code(
        "SPC550",
        "recurrent state that is not bfloat16",
        "npu_recurrent_gated_delta_rule has bfloat16 states only. Rounding the state after every token is another "
        "function than a float32 state, so plain decoding must use it too, or the draft is not lossless.",
        "a float32 state",
    ),
    Code(
        "SPC551",
        "more than 8 tokens in the fused delta rule",
        "npu_recurrent_gated_delta_rule takes at most 8 tokens of a sequence. Generated modules use one of them to "
        "carry the committed state on, so that 7 nodes are verified at most. The matmul form has no such bound.",
        "9 tokens of one sequence",
    ),
    Code(
        "SPC552",
        "fused delta rule over something else than a chain",
        "The op goes from token to token and writes one state row per token; a tree's node starts from its parent "
        "instead. ssm_state_indices has one row of the pool for each token.",
        "a tree of 8 nodes",
    ),
    Code(
        "SPC553",
        "fused delta rule that writes in place",
        "A graph may only hold npu_recurrent_gated_delta_rule_functional, which returns the state; copy_ it back. "
        "The state stays where it is if it is an input that nothing else reads.",
        "torch.ops.npu.npu_recurrent_gated_delta_rule(q, k, v, state)",
    ),
    Code(
        "SPC554",
        "delta rule products in half precision",
        "The N x N matrix of the matmul form and products with the state need float32 operands: with repeated keys "
        "and beta near 2 the error of u is 3e-3 with float16 and 2e-2 with bfloat16 operands, and 5e-8 with "
        "float32.",
        "a = torch.tril(k @ k.T, -1).to(torch.bfloat16)\nu = torch.matmul(a, v)",
    ),
    Code(
        "SPC555",
        "operand of a type that the fused delta rule does not have",
        "npu_recurrent_gated_delta_rule takes queries, keys, values, rates and states in bfloat16, decays in float32, "
        "lengths and rows in int32, and nothing else.",
        "a float16 value",
    ),
    Code(
        "SPC556",
        "heads or states that the fused delta rule does not have",
        "At most 256 heads of at most 256 elements, value heads a multiple of key heads, and states of "
        "[slots, value heads, value size, key size].",
        "a state of [slots, value heads, key size, value size]",
    ),
    Code(
        "SPC557",
        "fused delta rule without what it needs",
        "Its schema makes rates, scale, lengths and rows optional; the operator itself does not. gk is reserved.",
        "torch.ops.npu.npu_recurrent_gated_delta_rule_functional(q, k, v, state)",
    ),
)

GRAPHS: tuple[Code, ...] = (
    Code(
        "SPC560",
        "index that may be negative",
        "GE's gather does not support negative indices: the NPU reads foreign memory, traps, or gives zeros, also "
        "where eager torch wraps around (vllm-ascend issue 10305: a placeholder -1 reached the embedding). Masking "
        "the result does not help, since a masked lane still reads its address (triton-ascend issue 2332).",
        "x[index]  # index in [-1, 15]",
    ),
    Code(
        "SPC561",
        "index that may be past the end, or of which nothing is known",
        "The checker proves every index tensor inside [0, size). Declare the range of the input that it comes from: "
        "check_contracts(graph, ranges={'i': (0, 15)}).",
        "x.index_select(0, i)  # nothing declared about i",
    ),
    Code(
        "SPC562",
        "padding that GE leaves undefined",
        "constant_pad_nd with a negative pad (which cuts rows off in eager torch), or of integers with a "
        "floating-point number, as F.pad passes it.",
        "torch.nn.functional.pad(x, (0, -1))",
    ),
    Code(
        "SPC570",
        "op without a GE converter",
        "torchair turns aten ops into GE ops one by one, and has nothing for this one, so the graph can't be built. "
        "The finding says what computes the same.",
        "torch.roll(x, 1)",
    ),
    Code(
        "SPC571",
        "graph that depends on a number of the host",
        "One static graph serves all steps: lengths and tables are tensors. A number that the host reads from a "
        "tensor, a Python number as input or a size only known at run time compiles anew for every value.",
        "x[: length.item()]",
    ),
    Code(
        "SPC572",
        "random numbers drawn inside the graph",
        "Draws belong outside, as inputs: they are functions of the row and the position, and a captured graph "
        "would repeat its own.",
        "torch.rand(batch)",
    ),
    Code(
        "SPC573",
        "constant in place of a uniform number",
        "With u = 0 every draft is accepted, whatever its probability under the target (vllm-ascend pull request "
        "13470).",
        "sample_index(weights, torch.zeros(batch))",
    ),
)

ASCEND_CODES: tuple[Code, ...] = (*MASKS, *ATTENTION, *CACHES, *DELTA, *GRAPHS)
