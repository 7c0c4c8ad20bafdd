"""The model that a client keeps for itself: on its own disk, from round to round, never sent.

A folder holds one such model: `record.json` says what it is and which safetensors file has its tensors. These are
written first, under a new name; the record takes its place last, in one rename. So whatever ends the process, the
folder holds either the old model or the new one, never a mixture.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from fedcore.errors import ConfigurationError, EncodingError, PeerError, UsageError
from fedcore.state.files import FileSink, full_disk
from fedcore.state.layout import Layout
from fedcore.state.model import ModelState, StateSink
from fedcore.system.files import full_disk_named, write_file

OWN_MODEL_FOLDER: Final = "local"
"""Its place in an agent's state folder."""
RECORD_FILE: Final = "record.json"
MODEL_FILES: Final = "model-*.safetensors"
"""The files of tensors, of which the record names one."""
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModelRecord:
    """Where a client's own model comes from.

    run, server_round: the round whose global model is in it. app_sha256: the app that trained it.
    personal: names of the tensors that never leave the client, in the order of the model; all of them for a model that
        is fine-tuned as a whole.
    metrics: what its owner measured with it, on this client's data.
    """

    run: str
    server_round: int
    app_sha256: str
    personal: tuple[str, ...]
    metrics: Mapping[str, float | Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModel:
    """A client's own model as it lies on the disk.

    state: all tensors, the global ones of its round included.
    """

    state: ModelState
    record: OwnModelRecord


class OwnModelFolder:
    """One client's own model in `folder`, which `save` makes. One process writes, any number may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, state: ModelState, record: OwnModelRecord) -> None:
        """Replace the model with `state`, which may be a mapped file and may come from `load`; see `write`."""
        self.write(state.layout, state.write_to, record)

    def write(self, layout: Layout, write: Callable[[StateSink], None], record: OwnModelRecord) -> None:
        """Replace the model, durable on return; it need not be in memory at once.

        Raises UsageError for a personal tensor that the layout does not have, StorageFull when the disk is full, and
        what `write` raises; the model before is then unchanged.

        Args:
            layout: of all tensors.
            write: hands them over, every element once.
        """
        if unknown := sorted(set(record.personal) - {spec.name for spec in layout.specs}):
            raise UsageError(f"the client's own model has no tensor {unknown[0]!r}, which is said to be personal")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self._read_entry()
        serial = before["serial"] + 1 if before else 1
        with FileSink(self.folder / _model_name(serial), layout) as sink:
            write(sink)
        self._write_record(record, serial)
        for path in (*self.folder.glob(MODEL_FILES), *self.folder.glob(".*.part")):
            if path.name != _model_name(serial):  # the model before, and what an earlier crash left
                path.unlink(missing_ok=True)

    def load(self, *, app_sha256: str | None = None, layout: Layout | None = None) -> OwnModel | None:
        """The client's own model, or None if none was saved yet; its tensors are read when they are used.

        Raises ConfigurationError for another app's model, for another layout's, and for a damaged folder.

        Args:
            app_sha256, layout: what it must be of, if given.
        """
        # A save between reading the record and opening the file removes the file: then there is a new record.
        for _ in range(3):
            entry = self._read_entry()
            if entry is None:
                return None
            try:
                state = ModelState.open(self.folder / _model_name(entry.pop("serial")))
            except FileNotFoundError:
                continue
            except (PeerError, EncodingError) as error:
                raise self._damaged(str(error)) from None
            model = OwnModel(state=state, record=_record(entry))
            self._check(model, app_sha256, layout)
            return model
        raise self._damaged("the file with its tensors is missing")

    def _check(self, model: OwnModel, app_sha256: str | None, layout: Layout | None) -> None:
        own_app = model.record.app_sha256
        if app_sha256 not in (None, own_app):
            raise ConfigurationError(
                f"the client's own model in {self.folder} is of app {own_app[:12]}…, this is app "
                f"{str(app_sha256)[:12]}…; install that app again, or move the folder away to start without one",
                check="other-app",
            )
        if layout is None:
            return
        try:
            layout.check_same(model.state.layout, what="the client's own model")
        except EncodingError as error:
            raise ConfigurationError(
                f"the client's own model in {self.folder} does not fit the app's model ({error}); move the folder away "
                "to start without one",
                check="other-layout",
            ) from None

    def _read_entry(self) -> dict[str, Any] | None:
        """The record as it was written; None if there is none."""
        try:
            entry = json.loads((self.folder / RECORD_FILE).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            raise self._damaged(f"{RECORD_FILE} is not JSON") from None
        if not isinstance(entry, dict) or entry.pop("version", None) != _VERSION:
            raise self._damaged(f"{RECORD_FILE} is of another version")
        if not isinstance(entry.get("serial"), int) or entry.keys() - {"serial"} != set(OwnModelRecord.__slots__):
            raise self._damaged(f"{RECORD_FILE} has other keys than it should")
        return entry

    def _write_record(self, record: OwnModelRecord, serial: int) -> None:
        values = {name: getattr(record, name) for name in OwnModelRecord.__slots__} | {"metrics": dict(record.metrics)}
        path = self.folder / RECORD_FILE
        text = json.dumps({"version": _VERSION, "serial": serial, **values}, indent=2) + "\n"
        with full_disk_named(full_disk(path)):
            write_file(path, text, durable=True)

    def _damaged(self, reason: str) -> ConfigurationError:
        return ConfigurationError(
            f"the client's own model in {self.folder} is damaged ({reason}); move the folder away to start without one",
            check="damaged",
        )


def _model_name(serial: int) -> str:
    return f"model-{serial}.safetensors"


def _record(entry: Mapping[str, Any]) -> OwnModelRecord:
    return OwnModelRecord(**{**entry, "personal": tuple(entry["personal"])})
