"""Data recipes: which texts a model is trained on, under which licence, and where anybody can get them.

A recipe is JSON. The paths of its sources are relative to a data folder that the user fills as `origin` says; the
path `$stdlib` is the standard library of the running interpreter, so that the built-in recipe needs no data at all.
"""

from __future__ import annotations

import json
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from specc.diagnostics import DiagnosticError, error
from specc.train.readers import Reader

STDLIB = "$stdlib"
MAX_RECIPE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """One collection of texts. `exclude` are glob patterns of paths below `path`; sizes are in bytes.

    `version`, `licence` and `origin` (how to get it) are for the model card.
    """

    name: str
    domain: str
    reader: Reader
    path: str
    licence: str
    version: str
    origin: str
    exclude: tuple[str, ...] = ()
    max_file_bytes: int = 200_000

    def folder(self, root: Path) -> Path:
        """Where the source lies on this machine."""
        return Path(sysconfig.get_paths()["stdlib"]) if self.path == STDLIB else root / self.path


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole corpus. Of each domain, whole files worth `held_out_share` of its bytes are kept for evaluation, or
    worth `held_out_bytes` if that is more. `test_prompts` are files whose texts must not occur in the training text.
    `notes` go into the model card.
    """

    name: str
    sources: tuple[Source, ...]
    test_prompts: tuple[str, ...] = ()
    held_out_share: float = 0.02
    held_out_bytes: int = 200_000
    notes: str = ""


NOT_SOURCE_TEXT = ("*/test/*", "*/tests/*", "*/encodings/*", "*/pydoc_data/*", "*/site-packages/*", "*/lib2to3/*")


def standard_library() -> Source:
    """The sources of the running interpreter's standard library, without tests and tables."""
    return Source(
        name="python-stdlib",
        domain="code",
        reader="python",
        path=STDLIB,
        licence="PSF-2.0",
        version=platform.python_version(),
        origin="the standard library of the interpreter that runs the command",
        exclude=NOT_SOURCE_TEXT,
    )


def builtin_recipe() -> Recipe:
    """What is trained on without `--data`: the standard library alone."""
    return Recipe("python-stdlib", (standard_library(),))


def load_recipe(path: Path) -> Recipe:
    """Read a recipe file. Raises DiagnosticError (SPC470) for anything that is not one."""
    try:
        if path.stat().st_size > MAX_RECIPE_BYTES:
            raise ValueError(f"it is larger than {MAX_RECIPE_BYTES} bytes")
        given = json.loads(path.read_text("utf-8"))
        if not isinstance(given, dict):
            raise ValueError("expected a JSON object")
        sources = tuple(_source(entry) for entry in given.pop("sources"))
        given["test_prompts"] = tuple(given.get("test_prompts", ()))
        recipe = Recipe(sources=sources, **given)
        if not sources:
            raise ValueError("it has no sources")
        if not 0 < recipe.held_out_share < 0.5:
            raise ValueError("held_out_share must lie between 0 and 0.5")
    except KeyError as problem:
        raise _refused(path, f"it lacks the key {problem}") from None
    except (OSError, ValueError, TypeError, RecursionError) as problem:
        raise _refused(path, str(problem)) from None
    return recipe


def _source(entry: dict[str, Any]) -> Source:
    source = Source(**{**entry, "exclude": tuple(entry.get("exclude", ()))})
    if source.reader not in get_args(Reader):
        raise ValueError(f"source {source.name!r}: there is no reader {source.reader!r}")
    if Path(source.path).is_absolute() or ".." in Path(source.path).parts:
        raise ValueError(f"source {source.name!r}: the path must lie inside the data folder")
    return source


def check_sources(recipe: Recipe, root: Path) -> None:
    """SPC471 with everything that the data folder lacks."""
    lacking = [
        error("SPC471", f"source `{source.name}` is not in {root}", help=f"put it at {source.path}: {source.origin}")
        for source in recipe.sources
        if not source.folder(root).exists()
    ]
    lacking += [
        error("SPC471", f"the test prompts {name} are not in {root}", help="training text is checked against them")
        for name in recipe.test_prompts
        if not (root / name).is_file()
    ]
    if lacking:
        raise DiagnosticError(lacking)


def _refused(path: Path, reason: str) -> DiagnosticError:
    remedy = "weights/gdn-15m/recipe.json is one; `specc train target --help` says more"
    return DiagnosticError([error("SPC470", f"{path} is no data recipe: {reason}", help=remedy)])
