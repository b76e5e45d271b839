"""Files that find no room: a diagnostic with path and remedy, the file before still there, nothing half-written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from specc.diagnostics import DiagnosticError
from specc.models.checkpoint import save_checkpoint
from specc.models.families import hugging_face_config
from specc.models.random_weights import random_weights
from specc.models.weights import weight_table
from specc.output import replacing, write_text
from specc.train.checkpoint import CHECKPOINT, LOG, append_log, write_checkpoint
from tests.unit.disk_fixtures import files_up_to
from tests.unit.test_checkpoint import GEOMETRY

TABLE = weight_table(GEOMETRY)


def saved(folder: Path) -> None:
    weights = random_weights(TABLE, GEOMETRY, 0, torch.float32)
    save_checkpoint(folder, weights, TABLE, hugging_face_config(GEOMETRY))


def arrays(folder: Path) -> None:
    with replacing(folder / "a.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, a=np.arange(9000))


def log(folder: Path) -> None:
    append_log(folder, {"text": "x" * 9000})


WRITERS: dict[str, Callable[[Path], None]] = {
    "model.safetensors": saved,
    "a.npz": arrays,
    LOG: log,
    CHECKPOINT: lambda folder: write_checkpoint(folder, {"a": torch.zeros(9000)}),
    "a.txt": lambda folder: write_text(folder / "a.txt", "x" * 9000),
}


@pytest.mark.parametrize("name", WRITERS)
def test_no_room_is_a_diagnostic_and_leaves_nothing(name: str, tmp_path: Path) -> None:
    before = b"" if name == LOG else b"the file before"
    (tmp_path / name).write_bytes(before)
    with files_up_to(4096), pytest.raises(DiagnosticError) as caught:
        WRITERS[name](tmp_path)
    (found,) = caught.value.diagnostics
    assert found.code == "SPC460"
    assert str(tmp_path / name) in found.message
    assert "make room" in str(found.help)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == before or name == LOG
    WRITERS[name](tmp_path)


def test_an_interrupt_leaves_the_file_before(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "a")
    before = (tmp_path / "a").read_bytes()

    def broken_off() -> None:
        with replacing(tmp_path / "a") as temporary:
            temporary.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert (tmp_path / "a").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1
