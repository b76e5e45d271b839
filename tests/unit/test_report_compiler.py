"""What a report shows of a compile: every pass, the module as `specc compile` writes it, and links that are right."""

from __future__ import annotations

import html
import json
import re
from functools import cache
from pathlib import Path

from specc.cli import main
from specc.codes.entry import SPEC_START
from specc.driver import compile_spec
from specc.passes import pipeline_of
from specc.report.compiler import Compiled, compiled, difference
from specc.report.markup import visible
from specc.report.module_view import linked, module_html
from specc.report.page import SpecView, page
from specc.spec import LoadedSpec, loads
from tests.unit.report_reading import Reading

DESCRIPTION = "</code></pre><script>alert(1)</script> \u202e"
DRAFT = "draft: {method: prompt_lookup, tree: dynamic, num_steps: 2, num_speculative_tokens: 3, top_k: 2}"
SPEC = f"{SPEC_START}description: {json.dumps(DESCRIPTION)}\n{DRAFT}\n"


@cache
def example() -> tuple[LoadedSpec, Compiled, str]:
    """A small spec with a hostile description, what became of it, and the page."""
    loaded = loads(SPEC, "demo.yaml")
    made = compiled(loaded, "reference")
    view = SpecView("demo", DESCRIPTION, "reference", ("runtime.dtype=float32",), SPEC, made)
    return loaded, made, page([], spec=view)


def listing(source: str, prefix: str) -> list[str]:
    """The texts of the page's numbered lines, without their links."""
    rows = re.findall(rf'<span id="{prefix}\d+"[^>]*>(.*?)</span>(?=\n<span id="|</code>)', source, re.DOTALL)
    plain = [re.sub(r'<a href="#[NL]\d+" class="to-(?:node|line)">.*?</a>', "", row) for row in rows]
    return [html.unescape(re.sub(r"<[^>]*>", "", row)) for row in plain]


def test_the_page_is_well_formed_and_shows_hostile_text_as_text() -> None:
    reading = Reading(example()[2])
    assert reading.problems == []
    assert visible(DESCRIPTION) in reading.text
    assert visible(DESCRIPTION) in "".join(listing(example()[2], "L"))


def test_the_module_is_the_compilers() -> None:
    loaded, made, shown = example()
    source = compile_spec(loaded).source
    assert made.source == source
    assert listing(shown, "L") == [visible(line) for line in source.split("\n")[:-1]]


def test_every_pass_is_shown_with_its_notes() -> None:
    loaded, made, shown = example()
    names = [stage.name for stage in made.stages]
    assert names == ["lower", *(item.name for item in pipeline_of(loaded.spec).passes)]
    text = Reading(shown).text
    notes = [note for stage in made.stages for note in stage.notes]
    assert len(notes) > 5
    for note in notes:
        assert f"{'fired' if note.fired else 'did not fire'}: {note.graph}: {visible(note.message)}" in text
    for number, stage in enumerate(made.stages[1:], 1):
        assert (made.stages[number - 1].plain != stage.plain) == stage.changed


def test_links_go_both_ways() -> None:
    """A node's lines name the node among theirs, and the other way round; every node of an assignment has a line."""
    _, made, shown = example()
    listings, links = linked(made.source, made.origins)
    assert {item.step for item in listings} == set(made.origins.steps)
    for node, places in links.to_lines.items():
        assert places
        assert all(node in links.to_nodes[line] for first, last in places for line in range(first, last + 1))
    pairs = {(int(a), int(b)) for a, b in re.findall(r'id="N(\d+)"[^>]*>[^\n]*?href="#L(\d+)"', shown)}
    assert len(pairs) > 100
    assert all(any(first == line for first, _ in links.to_lines[node]) for node, line in pairs)
    lines = made.source.split("\n")
    rows = {place: row for item in listings for place, (row, _) in enumerate(item.lines, item.first)}
    for line, node in links.owners.items():
        assert line in {first for first, _ in links.to_lines[node]}
        assert ("F.linear(" in lines[line - 1]) <= ("aten.linear(" in rows[node]), (line, node)
    for item in listings:
        for number, (row, node) in enumerate(item.lines, item.first):
            if node is not None and "aten.linear(" in row:
                first, last = links.to_lines[number][0]
                assert "F.linear(" in "\n".join(lines[first - 1 : last])


def test_links_to_the_spec_lead_to_the_key() -> None:
    lines = SPEC.splitlines()
    found = set(re.findall(r'href="#spec-(\d+)" class="to-spec">([a-z_.]+), line (\d+)<', example()[2]))
    assert len(found) > 2
    for number, key, stated in found:
        assert number == stated
        assert f"{key.split('.')[-1]}:" in lines[int(number) - 1]


def test_functions_of_the_module_are_linked_to_their_definitions() -> None:
    _, made, _ = example()
    shown = module_html(made.source, made.origins, {})
    lines = made.source.split("\n")
    targets = {(int(line), name) for line, name in re.findall(r'href="#L(\d+)" class="own">(\w+)</a>', shown)}
    assert "run_verify" in {name for _, name in targets}
    assert len(targets) > 20
    assert all(re.match(rf"(def|class) {name}\b", lines[line - 1]) for line, name in targets)


def test_a_difference_counts_its_lines() -> None:
    added, removed, shown = difference("a\nb\nc\n", "a\n-x <\nc\nd\n")
    assert (added, removed) == (2, 1)
    assert '<span class="added">+-x &lt;</span>' in shown
    assert '<span class="removed">-b</span>' in shown


def test_the_command_compiles_a_spec(tmp_path: Path) -> None:
    spec, out = tmp_path / "demo.yaml", tmp_path / "report.html"
    spec.write_text(SPEC, encoding="utf-8")
    assert main(["report", "--spec", str(spec), "--set", "runtime.max_sequence_length=256", "-o", str(out)]) == 0
    text = Reading(out.read_text(encoding="utf-8")).text
    assert "--set runtime.max_sequence_length=256" in text
    assert str(tmp_path) not in text
    spec.write_text("specc: 1\nname: [", encoding="utf-8")
    assert main(["report", "--spec", str(spec), "-o", str(out)]) == 2
