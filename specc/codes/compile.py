"""SPC2xx: a valid spec that this compiler refuses."""

from __future__ import annotations

from specc.codes.entry import SPEC_START, Code

COMPILE_CODES: tuple[Code, ...] = (
    Code(
        "SPC200",
        "an unknown compile target",
        "`--target` takes reference, triton, ascend, onnx or mlir.",
        "specc compile spec.yaml --target cuda",
    ),
    Code(
        "SPC201",
        "a backend that is not built yet (retired)",
        "Retired: earlier versions knew the Ascend backend and checked its options without generating code for it. "
        "Every target of this version is built.",
        "specc compile spec.yaml --target ascend      (in those versions)",
    ),
    Code(
        "SPC205",
        "a target whose package is not installed",
        "The Triton backend copies its kernels from files that import `triton`. The package compiles without a GPU, "
        "and `TRITON_INTERPRET=1` runs its kernels on the CPU. Exports are written by `onnxscript` and `torch_mlir`, "
        "and GE graphs for Ascend are messages of `protobuf`.",
        "specc compile spec.yaml --target triton",
    ),
    Code(
        "SPC206",
        "an op that a format can't express",
        "ONNX and MLIR are written by PyTorch's exporter and by torch-mlir, which know most operators of PyTorch, not "
        "all. The message names the step and the operator.",
        "specc compile spec.yaml --target mlir",
    ),
    Code(
        "SPC207",
        "a size that an export can't have",
        "Exported graphs are static: they take one number of rows and prompts in chunks of one length. Both lie within "
        "the spec's own limits.",
        "specc compile specs/smollm2-plain.yaml --target onnx --batch 1000",
    ),
    Code(
        "SPC203",
        "a paged cache that the backend does not have",
        "`runtime: {kv_layout: paged}` keeps the target's K and V rows in pages of `kv_block_size` rows that all "
        "sequences share. The reference backend takes pages of any size, the Triton backend of a power of two from 16 "
        "on. The Ascend backend and the exports don't have paged caches. A pipeline of one's own that leaves a cache "
        "of the target in a form that can't be paged is refused, too, with the reason.",
        SPEC_START + "runtime: {kv_layout: paged, kv_block_size: 48}  # --target triton\n",
    ),
    Code(
        "SPC204",
        "a type that the backend does not compute in yet",
        "The reference backend computes in float32 and float64, and keeps recurrent states in these or in bfloat16; "
        "the Triton backend computes in float32, bfloat16 and float16 and keeps recurrent states in float32: its "
        "schedules take a state that is not rounded from token to token. The Ascend backend keeps float32 and bfloat16 "
        "states.",
        SPEC_START + "runtime: {dtype: bfloat16}\n",
    ),
    Code(
        "SPC290",
        "a part of the compiler that is not built yet",
        "The command is known, but this version does not have the part that it needs.",
        "specc bench nothing",
    ),
    Code(
        "SPC291",
        "a benchmark that does not apply to the spec",
        "The benchmark measures a part that the spec's target does not have: state traffic, for example, exists where "
        "layers are recurrent.",
        "specc bench traffic specs/smollm2-plain.yaml",
    ),
    Code(
        "SPC292",
        "a benchmark that needs a GPU where there is none",
        "Kernels, whole steps, tuning and the soak run are measured on a CUDA device: times under the interpreter "
        "would say nothing. The torch that is installed has to see the device too.",
        'CUDA_VISIBLE_DEVICES="" specc bench kernels',
    ),
    Code(
        "SPC293",
        "a file that holds no results",
        "Tables are made of the JSON files that benchmarks write: an object with `rows`.",
        "specc bench tables no-such-file.json --by batch",
    ),
    Code(
        "SPC295",
        "prompts of an evaluation that are not there",
        "An evaluation decodes published prompt sets, whose files are given as a folder: mt_bench/question.jsonl, "
        "humaneval/HumanEval.jsonl.gz, gsm8k/test.jsonl.",
        "specc bench eagle-pangu --model smollm2-135m-instruct --data no-such-folder",
    ),
    Code(
        "SPC296",
        "a sweep on Ray without the package",
        "Sweeps run in local processes by default; `--ray` spreads them over a Ray cluster and needs `ray`.",
        "specc bench eagle-pangu --ray",
    ),
    Code(
        "SPC297",
        "cells of an evaluation that failed",
        "A cell of a sweep ended with an error; the others were measured. Run the command again: finished cells are "
        "kept, failed ones are tried once more.",
        "specc bench eagle-pangu --model no-such-model",
    ),
    Code(
        "SPC298",
        "hardware counters that can't be read",
        "The profile of the kernels is read with Nsight Compute (`ncu`). It has to be installed, and this user has to "
        "be allowed to read the GPU's counters: many systems keep them to administrators, and some virtual machines "
        "have none.",
        "specc bench profile --ncu no-such-command",
    ),
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
    Code(
        "SPC260",
        "an op that the backend does not have",
        "The program still holds an op that this backend can't generate code for.",
        "a pipeline without the pass that lowers the op",
    ),
    Code(
        "SPC261",
        "a property that the backend needs",
        "Backends generate code only for programs with certain properties, such as indices that are proved in "
        "range. A pass of the default pipeline establishes each of them.",
        "passes: [layer-major]\n",
    ),
    Code(
        "SPC262",
        "a setting that the backend does not have",
        "The spec asks for something that this backend can't do; the message lists what it can.",
        SPEC_START + "numerics: fast\n",
    ),
)
