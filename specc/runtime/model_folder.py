"""The model folders of `specc run`: found by name or path, and compared with the spec before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from specc.diagnostics import Diagnostic, DiagnosticError, error
from specc.lower.drafts.state import head_weight_table
from specc.models.bigram import read_bigram
from specc.models.checkpoint import check_values
from specc.models.families import checkpoint_geometry, read_config
from specc.models.geometry import Geometry
from specc.models.weights import weight_table
from specc.models.written_config import written_config
from specc.runtime.cache import is_complete, model_folder
from specc.runtime.fetch import MODELS, known_model
from specc.spec import LoadedSpec

AUX_LAYERS = "aux_hidden_state_layer_ids"


def find_model(name: str) -> Path:
    """The folder of `--model NAME|DIR`: an existing folder, or a fetched model.

    Raises DiagnosticError: SPC411 for a known model that has not been fetched, SPC401 for anything else that is no
    folder.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name in MODELS:
        fetched = model_folder(name)
        if is_complete(fetched):
            return fetched
        message = f"the model `{name}` has not been fetched"
        raise DiagnosticError([error("SPC411", message, help=f"run: specc fetch {name}")])
    if "/" not in name and not folder.suffix:
        known_model(name)  # raises SPC420 with a suggestion
    message = f"the model folder {folder} {'is a file' if folder.exists() else 'does not exist'}"
    raise DiagnosticError(
        [error("SPC401", message, help="give a folder in the Hugging Face layout, or a model's name")]
    )


def check_target(loaded: LoadedSpec, folder: Path) -> None:
    """Raise DiagnosticError unless the folder holds the model that the spec describes.

    SPC410: a size differs, with both values and the spec's place; SPC401 to SPC409: the folder itself is wrong;
    SPC419: a weight is NaN or infinite.
    """
    geometry = loaded.spec.target.geometry
    _raise_all(geometry_differences(loaded, geometry, folder, "target"))
    check_values(folder, weight_table(geometry), geometry.num_hidden_layers)


def check_drafter(loaded: LoadedSpec, folder: Path) -> None:
    """The same for the drafter's folder.

    An EAGLE-3 head's config.json describes a model that does not exist alone: its tensors' shapes are compared, and
    where it says what it was trained on (`specc train draft` does), the features.
    """
    geometry, eagle = loaded.spec.draft_geometry, loaded.spec.eagle_geometry
    if geometry is not None:
        _raise_all(geometry_differences(loaded, geometry, folder, "draft"))
        check_values(folder, weight_table(geometry), geometry.num_hidden_layers)
    if loaded.spec.bigram_geometry is not None:
        read_bigram(folder, loaded.spec.bigram_geometry)
    if eagle is not None:
        _raise_all(feature_differences(loaded, folder))
        check_values(folder, head_weight_table(eagle), 1)


def geometry_differences(loaded: LoadedSpec, expected: Geometry, folder: Path, section: str) -> Iterator[Diagnostic]:
    """SPC410 for every size in which the folder's config.json is not the spec's `section` (target or draft).

    `max_position_embeddings` changes no computation: only a folder with fewer positions than the spec uses is refused,
    and of models with attention only.
    """
    found = checkpoint_geometry(folder)
    if expected.family != found.family:
        yield _different(loaded, folder, (section, "family"), expected.family, found.family)
        return
    needed, positions = loaded.spec.runtime.max_sequence_length, found.max_position_embeddings
    if expected.num_attention_heads and positions < needed:
        message = f"{folder / 'config.json'} allows {positions} positions, the spec uses {needed}"
        span = loaded.source.span("runtime", "max_sequence_length")
        yield error("SPC410", message, span, help=f"set runtime.max_sequence_length to at most {positions}")
    ours, theirs = written_config(expected), written_config(found)
    for key in {**ours, **theirs}:
        if key != "max_position_embeddings" and ours.get(key) != theirs.get(key):
            yield _different(loaded, folder, (section, "config", key), ours.get(key), theirs.get(key))


def feature_differences(loaded: LoadedSpec, folder: Path) -> Iterator[Diagnostic]:
    """SPC410 where a head was trained on other features of the target: with the same sizes nothing else would tell, and
    drafts would be bad."""
    if not (folder / "config.json").is_file():
        return
    config, draft = read_config(folder), loaded.spec.draft
    layers, of = config.get("aux_hidden_state_layer_ids"), config.get("aux_hidden_state_of")
    if not isinstance(layers, list) or not isinstance(of, str | list):
        return
    kinds = [of] * len(layers) if isinstance(of, str) else of
    theirs = [f"{kind} of layer {layer}" for layer, kind in zip(layers, kinds, strict=False)]
    ours = [f"{feature.of} of layer {feature.layer}" for feature in draft.aux_features]
    if ours != theirs:
        message = f"the spec feeds the head with {', '.join(ours)}, but {folder} was trained on {', '.join(theirs)}"
        path = ("draft", "aux_hidden_state_of" if draft.aux_hidden_state_layer_ids == tuple(layers) else AUX_LAYERS)
        ids, written = ",".join(map(str, layers)), of if isinstance(of, str) else f"[{','.join(map(str, of))}]"
        remedy = f"--set draft.{AUX_LAYERS}=[{ids}] --set draft.aux_hidden_state_of={written}"
        yield error("SPC410", message, loaded.source.span(*path), label="not what the head knows",
                    help=f"take another head, or give {remedy}")  # fmt: skip


def _different(loaded: LoadedSpec, folder: Path, path: tuple[str, ...], ours: object, theirs: object) -> Diagnostic:
    """SPC410 for one key of the spec."""
    message = f"{'.'.join(path)} is {ours} in the spec, but {theirs} in {folder / 'config.json'}"
    span = loaded.source.span(*path)
    return error("SPC410", message, span, label=f"{theirs} in the folder", help="the spec describes another model")


def _raise_all(findings: Iterator[Diagnostic]) -> None:
    found = list(findings)
    if found:
        raise DiagnosticError(found)
