"""The last global model of a client, kept as the base of a difference to the next one.

To ask for a difference the client names its model by SHA-256. That reveals nothing about its data, since the server
sent that model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_app.http.transport import Transport
from fedcore.codec import apply_change, is_change
from fedcore.errors import EncodingError, FedcoreError, PeerError, ProtocolViolation
from fedcore.federation.admission import checks
from fedcore.state import (
    ModelState,
    add_difference,
    apply_exact_difference,
    is_exact_difference,
    sha256_file,
)
from fedcore.system.concurrency import in_thread
from fedcore.wire.tasks import ModelRef

MODELS_FOLDER: Final = "models"
_SUFFIX: Final = ".safetensors"
_INCOMING: Final = "incoming"


@dataclass(frozen=True, slots=True)
class Models:
    """A folder with one model by its SHA-256."""

    folder: Path

    def path(self, sha256: str) -> Path:
        """The file of a model, whether or not it exists."""
        return self.folder / f"{sha256}{_SUFFIX}"

    def has(self, sha256: str) -> bool:
        """Whether the model is here and complete."""
        path = self.path(sha256)
        return path.exists() and sha256_file(path) == sha256

    async def fetch(self, reference: ModelRef, transport: Transport, route: str) -> int:
        """Replace the model with another one; returns the bytes received.

        Raises what `Transport.download` raises. If the difference does not yield the model, the whole is downloaded.
        """
        incoming, base = self.folder / _INCOMING, self._newest(but=reference.sha256)
        base_sha256 = base.stem if base is not None else ""
        size, sha256 = reference.size, reference.sha256
        received = 0
        if await transport.download(route, incoming, size=size, sha256=sha256, base=base_sha256):
            received = incoming.stat().st_size
            if base is not None and await in_thread(self._add, base, incoming, sha256):
                self._keep_only(sha256)
                return received
            await transport.download(route, incoming, size=size, sha256=sha256)
        os.replace(incoming, self.path(sha256))
        self._keep_only(sha256)
        return received + size

    def take(self, file: Path, sha256: str) -> None:
        """Take over a file in place of a download, if it is the model `sha256`; user code may have written it."""
        if file.is_symlink() or not file.is_file() or sha256_file(file) != sha256:
            return
        os.replace(file, self.path(sha256))
        self._keep_only(sha256)

    def _add(self, base: Path, difference: Path, sha256: str) -> bool:
        """Apply a difference or a change to the model that is here; whether the result is the announced one."""
        made = self.folder / f"{_INCOMING}{_SUFFIX}"
        try:
            if is_exact_difference(difference):
                apply_exact_difference(ModelState.open(base), difference, made)
            else:
                came = ModelState.open(difference)
                (apply_change if is_change(came) else add_difference)(ModelState.open(base), came, made)
        except (PeerError, EncodingError):
            return False
        if sha256_file(made) != sha256:  # what was here may be damaged
            return False
        os.replace(made, self.path(sha256))
        return True

    def _newest(self, *, but: str) -> Path | None:
        """The newest model other than `but`."""
        models = [path for path in self.folder.glob(f"{'?' * 64}{_SUFFIX}") if path.stem != but]
        return max(models, key=lambda path: path.stat().st_mtime_ns, default=None)

    def _keep_only(self, sha256: str) -> None:
        for path in self.folder.iterdir():
            # A pending update has its model in a folder of its own.
            if path != self.path(sha256) and not path.is_dir():
                path.unlink()


def open_canonical(path: Path) -> ModelState:
    """Open a model; refuse one whose file holds more than its tensors, or holds them in another way than it is written.

    Sums are counted by the hash of that file: with other words in its header, the same tensors would be another model.
    Raises ProtocolViolation.
    """
    try:
        model = ModelState.open(path)
    except FedcoreError as error:
        raise ProtocolViolation(checks.MODEL_MALFORMED, str(error)) from None
    if not model.is_canonical():
        raise ProtocolViolation(
            checks.MODEL_NOT_CANONICAL, "the model's file holds more than its tensors, or in another way than fedcore"
        )
    return model


def prepare_state_dir(folder: Path) -> Path:
    """Create the agent's folder, readable by its owner alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / MODELS_FOLDER).mkdir(mode=0o700, exist_ok=True)
    return folder
