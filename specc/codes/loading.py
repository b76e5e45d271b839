"""SPC0xx: reading the YAML text."""

from __future__ import annotations

from specc.codes.entry import SPEC_START, Code

LOADING_CODES: tuple[Code, ...] = (
    Code(
        "SPC001",
        "the file is not valid YAML",
        "The text can't be read as YAML 1.2. The usual reasons are a tab in the indentation, a bracket that is "
        "not closed, and text with `: ` in it that needs quotes.",
        "specc: 1\nname: [demo\n",
    ),
    Code(
        "SPC002",
        "the spec file can't be read",
        "There is no such file, it is a folder or a device, or reading it is not permitted.",
        "specc show no-such-file.yaml",
    ),
    Code(
        "SPC003",
        "the spec is not UTF-8 text",
        "YAML files are UTF-8. Save the file with that encoding; a byte order mark is accepted.",
        "specc: 1\nname: demo\ndescription: caf\\xe9 (in Latin-1)\n",
    ),
    Code(
        "SPC004",
        "the spec is too large",
        "A spec needs a few dozen lines. Files over 256 KiB are refused before anything parses them.",
        "specc show a-300-KiB-file.yaml",
    ),
    Code(
        "SPC005",
        "a YAML tag is used",
        "Tags such as `!!python/object` ask a YAML reader to build other things than plain values. A spec is data "
        "from somebody else, so only text, numbers, booleans, null, lists and mappings are read. The core tags "
        "(`!!str`, `!!int`, `!!float`, `!!bool`, `!!null`) are accepted where they fit their value.",
        SPEC_START + "description: !secret demo\n",
    ),
    Code(
        "SPC006",
        "a key is given twice",
        "YAML forbids it, and readers that accept it disagree about which one counts. Keys next to `<<` may "
        "override what is merged, but not each other.",
        SPEC_START + "numerics: exact\nnumerics: fast\n",
    ),
    Code(
        "SPC007",
        "too many values, aliases written out",
        "A few lines of anchors and aliases can stand for billions of values. Expansion stops at 20,000.",
        "specc: 1\nname: demo\n"
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
        "b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
        "c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]\n"
        "d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]\n"
        "e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d]\n",
    ),
    Code(
        "SPC008",
        "an alias contains itself",
        "The anchor's own value refers to the anchor, so the value would be infinite.",
        SPEC_START + "draft: &d {method: none, ngram: *d}\n",
    ),
    Code(
        "SPC009",
        "a number with a leading zero",
        "YAML 1.1 reads `010` as eight, YAML 1.2 as ten. Neither is taken for granted.",
        SPEC_START + "sampling: {seed: 010}\n",
    ),
    Code(
        "SPC010",
        "a key is not text",
        "The keys of a spec are names. An unquoted number, boolean, null or collection can't be one.",
        SPEC_START + "7: demo\n",
    ),
    Code(
        "SPC011",
        "`<<` does not merge a mapping",
        "`<<: *name` inserts the entries of the mapping that `&name` marks; a list of such mappings works, too.",
        SPEC_START + "draft: {<<: 7, method: none}\n",
    ),
    Code(
        "SPC012",
        "values are nested too deeply",
        "No key of a spec needs more than five levels; nesting beyond 24 is refused.",
        "specc: " + "[" * 30 + "]" * 30 + "\n",
    ),
    Code(
        "SPC013",
        "the spec is not a mapping",
        "A spec is a mapping of keys at its top level, starting with `specc: 1` and `name: …`.",
        "- specc\n- 1\n",
    ),
    Code(
        "SPC014",
        "more than one document in the file",
        "A line of `---` starts another YAML document. One file holds one spec.",
        SPEC_START + "---\n" + SPEC_START,
    ),
    Code(
        "SPC015",
        "a number can't be represented",
        "Numbers have at most 40 digits, and fractions must be within the range of a float64.",
        SPEC_START + "sampling: {seed: 10000000000000000000000000000000000000000}\n",
    ),
    Code(
        "SPC016",
        "an override is malformed",
        "`--set` takes key.path=value: names separated by dots (list items are numbers) and a YAML value. "
        "`null` takes a key away.",
        SPEC_START,
        overrides=("commit.update deferred",),
    ),
    Code(
        "SPC017",
        "an override leads nowhere",
        "The path of a `--set` goes through a single value, or through a list with a name or a number beyond its end.",
        SPEC_START,
        overrides=("name.first=demo",),
    ),
    Code(
        "SPC020",
        "an unknown key",
        "The section does not have this key. Nothing is ignored: a misspelt key would silently leave its "
        "default in force.",
        SPEC_START + "draft: {method: prompt_lookup, num_speculative_token: 4}\n",
    ),
    Code(
        "SPC021",
        "a key is missing",
        "The key has no default. `null` counts as missing.",
        "specc: 1\n" + SPEC_START.split("\n", 2)[2],
    ),
    Code(
        "SPC022",
        "a value of the wrong type",
        "Values are not converted: text in quotes is not a number, `on` and `yes` are text in YAML 1.2, and a "
        "whole number may not have a fraction.",
        SPEC_START + "draft: {method: prompt_lookup, top_k: on}\n",
    ),
    Code(
        "SPC023",
        "a value that is not one of the choices",
        "The key takes one of a few words.",
        SPEC_START + "verify: {attention: flash}\n",
    ),
    Code(
        "SPC024",
        "a number out of range",
        "The number is outside what the key can mean, or it is infinite or not a number.",
        SPEC_START + "sampling: {top_p: 1.5}\n",
    ),
    Code(
        "SPC025",
        "text that is not an allowed name",
        "Names reach generated code, so only a narrow set of characters is allowed: `[a-z][a-z0-9_-]*`, and "
        "patterns as narrow for `arch` and `soc`.",
        SPEC_START.replace("name: demo", 'name: "demo; import os"'),
    ),
    Code(
        "SPC026",
        "too long or too short",
        "The text or the list has more or fewer entries than the key allows.",
        SPEC_START + "draft: {method: prompt_lookup, tree: static, choices: []}\n",
    ),
    Code(
        "SPC027",
        "another version of the language",
        "`specc: 1` says which version of the language the spec is written in.",
        SPEC_START.replace("specc: 1", "specc: 2"),
    ),
)
