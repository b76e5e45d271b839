"""SPC490-494: tuning of the draft tree."""

from __future__ import annotations

from specc.codes.entry import Code

TUNE_CODES: tuple[Code, ...] = (
    Code(
        "SPC490",
        "the spec drafts nothing that could be tuned",
        "`specc tune budget` chooses the shape of the draft tree, so the spec must draft: `draft.method` is anything "
        "but `none`. It replays recorded drafts on the target's own text, which gives the acceptance of `greedy` and "
        "of `rejection` with `rule: target_only`; other rules can't be replayed.",
        "specc tune budget specs/smollm2-plain.yaml --model DIR --prompts FILE -o tuned.yaml",
    ),
    Code(
        "SPC491",
        "the prompts belong to a test set",
        "A tree that was chosen on the prompts of an evaluation fits these prompts better than any others, and the "
        "evaluation then reports too much. MT-Bench, HumanEval and every file or folder named `test` are refused. "
        "--allow-test takes them nevertheless; the written spec says so.",
        "specc tune budget SPEC --model DIR --prompts gsm8k/test.jsonl -o tuned.yaml",
    ),
    Code(
        "SPC492",
        "too few steps to judge by",
        "Acceptance is a share of decoding steps. Below some dozens of them its confidence interval is wider than the "
        "differences between trees. Give more prompts (--limit) or longer texts (--max-new-tokens).",
        "specc tune budget SPEC --model DIR --prompts FILE --limit 1 --max-new-tokens 2 -o tuned.yaml",
    ),
    Code(
        "SPC493",
        "no step could be timed",
        "The speed of a tree is its acceptance over the time of a step, and within the time given (--minutes, "
        "--build-minutes) no module was compiled and timed. Give more time, or fewer shapes (--max-nodes, --depth).",
        "specc tune budget SPEC --model DIR --prompts FILE --device cuda --build-minutes 0.01 -o tuned.yaml",
    ),
    Code(
        "SPC494",
        "there are no training prompts in the folder",
        "--data takes a store of training text (a folder with index.json, as `specc train draft` makes it), or a "
        "folder that holds `train.jsonl` or `train.jsonl.gz`, itself or one level below.",
        "specc tune budget SPEC --model DIR --data an-empty-folder -o tuned.yaml",
    ),
)
