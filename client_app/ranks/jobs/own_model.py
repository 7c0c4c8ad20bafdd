"""The model that a client keeps for itself, copied between the agent's disk and the folder that the nodes see."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fedcore.state.own_model import MODEL_FILES, RECORD_FILE
from fedcore.system.files import replacing, write_file
from fedcore.system.left_files import open_left


def copy_own_model(source: Path, target: Path) -> None:
    """Bring the model in `target` up to the one in `source`, if that has another.

    User code may write to one of the two folders, so no link is followed there. As in `OwnModelFolder` the record comes
    last, so `target` has the old model or the new one, whatever ends this process. Raises OSError.
    """
    record = _content(source / RECORD_FILE)
    if record is None or record == _content(target / RECORD_FILE):
        return
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    names = {path.name for path in source.glob(MODEL_FILES)}
    for name in names:
        file = open_left(source / name)
        if file is not None:
            with file, replacing(target / name, mode=0o600, durable=True) as copy:
                shutil.copyfileobj(file, copy, 1 << 24)
    write_file(target / RECORD_FILE, record, mode=0o600, durable=True)
    for path in target.glob(MODEL_FILES):
        if path.name not in names:
            os.unlink(path)


def _content(path: Path) -> bytes | None:
    file = open_left(path)
    if file is None:
        return None
    with file:
        return file.read()
