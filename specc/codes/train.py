"""SPC47x: training of small models."""

from __future__ import annotations

from specc.codes.entry import Code

TRAIN_CODES: tuple[Code, ...] = (
    Code(
        "SPC470",
        "the file is not a data recipe",
        "A data recipe is a JSON object with `name` and `sources`; every source has `name`, `domain`, `reader` "
        "(python, question-answer or book), `path` inside the data folder, `licence`, `version` and `origin`.",
        '{"name": "demo"}',
    ),
    Code(
        "SPC471",
        "training text is missing",
        "A source of the recipe, or a file of test prompts that training text is checked against, is not in the data "
        "folder (--root), or all the text together is too little to train on and to hold some out.",
        "specc train target --data recipe.json --root an-empty-folder --out model",
    ),
    Code(
        "SPC472",
        "the folder is not a prepared corpus",
        "A prepared corpus has train.npz, held_out.npz, corpus.json and tokenizer.json. `--prepare-only` makes one; "
        "remove the folder to make it anew.",
        "specc train target --corpus an-empty-folder --out model",
    ),
    Code(
        "SPC473",
        "the folder is not an exported model, or the checkpoint is of another run",
        "What `specc train` writes has config.json, model.safetensors.index.json and the shards that it names, with "
        "the tensors of the configuration. A checkpoint.pt in the output folder must be of the same configuration.",
        "specc train target --config small --out DIR, where DIR holds a checkpoint of --config tiny",
    ),
    Code(
        "SPC474",
        "there is no CUDA device",
        "`--device cuda` needs a torch with CUDA and a GPU that it can use. `--device cpu` is the default.",
        "specc train target --device cuda --out model (on a machine without a GPU)",
    ),
    Code(
        "SPC475",
        "the spec has no head that can be trained",
        "`specc train draft` trains the EAGLE-3 head of a spec whose draft.method is eagle3. The head reads the "
        "target's embeddings, so it must be as wide as the target.",
        "specc train draft specs/smollm2-plain.yaml --model DIR --out head",
    ),
    Code(
        "SPC476",
        "there is too little training text",
        "A head learns from the target's own continuations: OUT/texts, or the folder that --texts names. At least two "
        "texts with two tokens of the target are needed, written by the target that the head is for.",
        "specc train draft SPEC --model DIR --out head --texts texts-of-another-model",
    ),
    Code(
        "SPC477",
        "drafters are not trained for targets of this family",
        "Training text and features come from the target in plain torch, which knows the families llama, qwen3, pangu "
        "and gated_deltanet.",
        "specc train draft SPEC --model DIR, where DIR holds a qwen3_next checkpoint",
    ),
    Code(
        "SPC478",
        "the folder is not a store of training text, or one of another target",
        "A store of training text has index.json and the shards that it names. A run goes on in a store that was begun "
        "with the same target and the same options only; remove the folder to make it anew.",
        "specc train draft SPEC --model DIR --out DIR, where DIR/text was made with another model",
    ),
)
