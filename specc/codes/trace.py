"""SPC480-489: trace files, result files and the report made of them."""

from __future__ import annotations

from specc.codes.entry import Code

TRACE_CODES: tuple[Code, ...] = (
    Code(
        "SPC480",
        "the trace file cannot be read",
        "The file is missing, is a folder, is not UTF-8 text, or has no lines. `specc run SPEC … --trace FILE` writes "
        "trace files.",
        "specc trace summary no-such-file.jsonl",
    ),
    Code(
        "SPC481",
        "a line of the trace file is not a record of a step",
        "Every line is one JSON object of the schema specc.trace/1 (specc/trace/TRACE.md). A key is missing or of "
        "another type, a parent does not come before its child, the path does not follow the tree, or the emitted "
        "tokens are not those of the path. Keys that the schema does not name are allowed.",
        '{"schema": "specc.trace/1", "request": 0}',
    ),
    Code(
        "SPC482",
        "the trace file is cut off",
        "The last line has no end and is not whole JSON. `specc run` writes the file whole or not at all, so it was "
        "cut off afterwards. Without its last line it is a valid trace.",
        '{"schema": "specc.trace/1", "reque',
    ),
    Code(
        "SPC483",
        "the trace file has another version",
        "Under one number of the schema keys are only added. A file with another number was written by another "
        "version of specc, which can read it.",
        '{"schema": "specc.trace/2"}',
    ),
    Code(
        "SPC484",
        "lines of the trace file contradict each other",
        "All lines are of one run: the same seed, spec and pipeline; the steps of a request come in order, from 0, "
        "without gaps, and the root of each is the last token of the one before. Files of several runs must not be "
        "put together in one.",
        "cat a.jsonl b.jsonl > both.jsonl; specc trace summary both.jsonl",
    ),
    Code(
        "SPC485",
        "the results cannot be read",
        "The folder has no .json files, or a file is missing, unreadable or larger than 64 MiB. `specc bench NAME` "
        "writes result files.",
        "specc report an-empty-folder -o report.html",
    ),
    Code(
        "SPC486",
        "a result file is malformed",
        "A result file is one JSON object. Its `tables`, `heat_maps`, `curves` and `by_depth` have the keys that "
        "specc/report/results.py describes: a heat map has as many rows and columns as its axes have values, a curve "
        "as many x as y, and `kind` is one of measured, simulated, modelled, reported.",
        '{"heat_maps": [{"name": "budget", "x": {"title": "depth", "values": [1, 2]}}]}',
    ),
    Code(
        "SPC487",
        "there is nothing to report on",
        "A report shows result files (RESULTS_DIR), a trace (--trace) or a spec (--spec): at least one of them.",
        "specc report -o report.html",
    ),
    Code(
        "SPC488",
        "plots need matplotlib",
        "The page draws its charts itself. PNG files are drawn by matplotlib, which is not installed: "
        "pip install 'specc[bench]'.",
        "specc report results --plots plots -o report.html",
    ),
)
