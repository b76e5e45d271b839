"""Result files: what the benchmarks and evaluations write as JSON, checked and made ready to show.

A file is one JSON object. It says what made it (`command`, `commit`, `device`, where there is one `gpu`; at the top or
in `environment`), and holds any of `title`, `note`, `tables`, `heat_maps`, `curves` and `by_depth`, described by the
classes below. A file without these shows its `rows`, a list of objects, as one table. Other keys are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specc.diagnostics import Diagnostic, DiagnosticError, error

Kind = Literal["measured", "simulated", "modelled", "reported"]
"""How a number came about. `reported`: it is the paper's, not ours."""
KINDS: tuple[str, ...] = get_args(Kind)

Cell = bool | int | float | str | None
Number = Annotated[float, Field(allow_inf_nan=False)]
WRITTEN = "give a file or folder that `specc bench` has written"
MAX_BYTES = 64 * 2**20


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Column(_Part):
    """A column of a table: the key of its cells, its heading, the unit of its numbers, digits after the point."""

    key: str
    title: str = ""
    unit: str = ""
    digits: Annotated[int, Field(ge=0, le=9)] | None = None


class Table(_Part):
    """`rows`: column key -> cell; the key `kind` says how a row's numbers came about."""

    name: str
    title: str = ""
    columns: tuple[Column, ...] = ()
    rows: tuple[dict[str, Any], ...] = ()
    note: str = ""

    @model_validator(mode="after")
    def _kinds(self) -> Table:
        for number, row in enumerate(self.rows):
            if row.get("kind", "measured") not in KINDS:
                raise ValueError(f"row {number}: `kind` is {row['kind']!r}; it is one of {', '.join(KINDS)}")
        return self

    def shown_columns(self) -> tuple[Column, ...]:
        """The columns, else one for each key of the rows."""
        if self.columns:
            return self.columns
        keys = dict.fromkeys(key for row in self.rows for key in row if key != "kind")
        return tuple(Column(key=key, title=key.replace("_", " ")) for key in keys)


class Axis(_Part):
    """The title of an axis and its marks."""

    title: str
    values: tuple[int | float | str, ...]


class HeatMap(_Part):
    """`values` [y][x], None where nothing was measured; `best`: [y, x] of the place to point out."""

    name: str
    title: str = ""
    x: Axis
    y: Axis
    values: tuple[tuple[Number | None, ...], ...]
    unit: str = ""
    digits: Annotated[int, Field(ge=0, le=9)] = 2
    best: tuple[int, int] | None = None
    kind: Kind = "measured"
    note: str = ""

    @model_validator(mode="after")
    def _shape(self) -> HeatMap:
        height, width = len(self.y.values), len(self.x.values)
        if len(self.values) != height or any(len(row) != width for row in self.values):
            raise ValueError(f"`values` is not {height} rows of {width} numbers, as the axes say")
        if self.best is not None and not (0 <= self.best[0] < height and 0 <= self.best[1] < width):
            raise ValueError("`best` lies outside")
        return self

    def peak(self) -> tuple[int, int] | None:
        """`best`, else the place of the largest value."""
        if self.best is not None:
            return self.best
        cells = [(value, y, x) for y, row in enumerate(self.values) for x, value in enumerate(row) if value is not None]
        return max(cells, key=lambda cell: cell[0])[1:] if cells else None


class Series(_Part):
    """One line of a plot."""

    label: str
    kind: Kind = "measured"
    x: tuple[Number, ...]
    y: tuple[Number | None, ...]

    @model_validator(mode="after")
    def _lengths(self) -> Series:
        if len(self.x) != len(self.y):
            raise ValueError(f"{len(self.x)} x for {len(self.y)} y")
        return self


class Mark(_Part):
    """A point of the x axis with a name."""

    label: str
    x: Number


class Curves(_Part):
    """Lines over one axis."""

    name: str
    title: str = ""
    x_title: str
    y_title: str
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    note: str = ""


class ByDepth(_Part):
    """`shares[d - 1]`: share of the steps that accepted at least d drafted tokens."""

    label: str
    shares: tuple[Annotated[float, Field(ge=0, le=1)], ...]
    kind: Kind = "measured"


class Results(_Part):
    """One result file. `name`: its file's name without the ending."""

    name: str
    title: str = ""
    note: str = ""
    device: str = ""
    gpu: str = ""
    commit: str = ""
    command: str = ""
    tables: tuple[Table, ...] = ()
    heat_maps: tuple[HeatMap, ...] = ()
    curves: tuple[Curves, ...] = ()
    by_depth: tuple[ByDepth, ...] = ()

    @property
    def source(self) -> list[tuple[str, str]]:
        """What made the numbers: (label, text)."""
        device = self.gpu or self.device
        parts = (("device", device), ("commit", self.commit), ("command", self.command))
        return [(label, text or "not stated") for label, text in parts]


def results_of(name: str, found: Mapping[str, Any]) -> Results:
    """The results in a file's object. Raises ValidationError."""
    inner = found.get("environment")
    environment = inner if isinstance(inner, Mapping) else found
    where = {key: _line(environment.get(key, found.get(key))) for key in ("device", "gpu", "commit", "command")}
    parts = {key: found[key] for key in ("title", "note", "tables", "heat_maps", "curves", "by_depth") if key in found}
    if not parts.keys() & {"tables", "heat_maps", "curves", "by_depth"}:
        rows = _flat(found.get("rows"))
        parts["tables"] = [{"name": name, "title": "rows", "rows": rows}] if rows else []
    return Results.model_validate({"name": name, **where, **parts})


def read_results(path: Path) -> list[Results]:
    """The results of a file, or of all `*.json` of a folder, by name.

    Raises DiagnosticError: SPC485 for what can't be read, SPC486 for files that are no results, all of them at once.
    """
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        if not files:
            raise DiagnosticError([_unreadable(path, "the folder has no .json files")])
    else:
        files = [path]
    results, findings = list[Results](), list[Diagnostic]()
    for file in files:
        try:
            results.append(results_of(file.stem, _object(file)))
        except DiagnosticError as problem:
            findings += problem.diagnostics
        except ValidationError as problem:
            findings.append(error("SPC486", f"{file}: {_said(problem)}", help="see specc/report/results.py"))
    if findings:
        raise DiagnosticError(findings)
    return results


def _object(file: Path) -> Mapping[str, Any]:
    """The JSON object of a file."""
    try:
        if file.stat().st_size > MAX_BYTES:
            raise DiagnosticError([_unreadable(file, f"it has more than {MAX_BYTES // 2**20} MiB")])
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as problem:
        raise DiagnosticError([_unreadable(file, str(problem.strerror))]) from None
    except (ValueError, RecursionError) as problem:
        raise DiagnosticError([error("SPC486", f"{file} is not JSON: {problem}", help=WRITTEN)]) from None
    if not isinstance(found, dict):
        raise DiagnosticError([error("SPC486", f"{file} is not a JSON object", help=WRITTEN)])
    return found


def _unreadable(path: Path, reason: str) -> Diagnostic:
    return error("SPC485", f"can't read results from `{path}`: {reason}", help=WRITTEN)


def _said(problem: ValidationError) -> str:
    first, *more = problem.errors(include_url=False, include_context=False, include_input=False)
    place = ".".join(str(part) for part in first["loc"])
    return f"`{place}`: {first['msg'].removeprefix('Value error, ')}" + (f" (and {len(more)} more)" if more else "")


def _flat(rows: Any) -> list[dict[str, Any]]:
    """Rows that are objects, without what a table has a meaning for."""
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        return []
    return [
        {key: value for key, value in row.items() if key != "kind" or value in KINDS}
        if isinstance(row, dict)
        else {"value": row}
        for row in rows
    ]


def _line(value: Any) -> str:
    """Text, or what stands for it; of a GPU, its name and the versions it ran with."""
    if isinstance(value, Mapping) and "gpu" in value:
        versions = (f"{key} {value[key]}" for key in ("cuda", "torch", "triton") if key in value)
        return ", ".join([str(value["gpu"]), *versions])
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
