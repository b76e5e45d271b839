"""From a file to text: size and encoding are checked before anything parses it."""

from __future__ import annotations

from pathlib import Path

from specc.diagnostics import Diagnostic, SpecError, error

MAX_BYTES = 256 * 1024


def read_text(path: Path) -> str:
    """The text of a spec file. Raises SpecError for an unreadable, too large or non-UTF-8 file."""
    file = str(path)
    if not path.exists():
        raise SpecError(
            [error("SPC002", f"no such file: {file}", help="give the path of a spec, such as specs/NAME.yaml")]
        )
    if not path.is_file():
        raise SpecError([error("SPC002", f"not a regular file: {file}", help="give the path of one YAML file")])
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as problem:
        reason = problem.strerror or "unknown reason"
        raise SpecError([error("SPC002", f"can't read {file}: {reason}", help="check its permissions")]) from problem
    return decode(data, file)


def decode(data: bytes, file: str) -> str:
    """UTF-8 text, without a byte order mark. Raises SpecError (SPC003, SPC004)."""
    if len(data) > MAX_BYTES:
        raise SpecError([too_large(file)])
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data[: problem.start].count(b"\n") + 1
        raise SpecError(
            [
                error(
                    "SPC003",
                    f"{file} is not UTF-8 text: byte 0x{data[problem.start]:02x} on line {line}",
                    help="save the file as UTF-8",
                )
            ]
        ) from problem


def check_size(text: str, file: str) -> None:
    """Raises SpecError (SPC004) for a text over the limit."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise SpecError([too_large(file)])


def too_large(file: str) -> Diagnostic:
    """SPC004 for `file`."""
    return error(
        "SPC004",
        f"{file} is larger than {MAX_BYTES // 1024} KiB, the limit for a spec",
        help="a spec needs a few dozen lines; is this the right file?",
    )
