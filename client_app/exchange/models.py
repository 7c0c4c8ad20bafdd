"""The global model that a client was given last: kept until the next one is here, which may come as a difference to it.

To ask for a difference the client names the model that it has by its SHA-256. That tells nothing of its data: the
server gave it that model.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from client_app.http.transport import Transport
from fedcore.errors import EncodingError, PeerError
from fedcore.state import ModelState, add_difference, sha256_file
from fedcore.system.concurrency import in_thread
from fedcore.wire.control import ModelRef

MODELS_FOLDER: Final = "models"
_SUFFIX: Final = ".safetensors"
_INCOMING: Final = "incoming"


@dataclass(frozen=True, slots=True)
class Models:
    """A folder with one model by its SHA-256."""

    folder: Path

    def path(self, sha256: str) -> Path:
        """Where a model lies, or would."""
        return self.folder / f"{sha256}{_SUFFIX}"

    def has(self, sha256: str) -> bool:
        """Whether the model is here, and whole."""
        path = self.path(sha256)
        return path.exists() and sha256_file(path) == sha256

    async def fetch(self, reference: ModelRef, transport: Transport, route: str) -> int:
        """Put a model in the place of the one that is here; returns the bytes that came.

        Raises what `Transport.download` raises. Where a difference does not make the model, the whole is fetched.
        """
        incoming, base = self.folder / _INCOMING, self._newest(but=reference.sha256)
        said = base.stem if base is not None else ""
        size, sha256 = reference.size, reference.sha256
        came = 0
        if await transport.download(route, incoming, size=size, sha256=sha256, base=said):
            came = incoming.stat().st_size
            if base is not None and await in_thread(self._add, base, incoming, sha256):
                self._keep_only(sha256)
                return came
            await transport.download(route, incoming, size=size, sha256=sha256)
        os.replace(incoming, self.path(sha256))
        self._keep_only(sha256)
        return came + size

    def _add(self, base: Path, difference: Path, sha256: str) -> bool:
        """Make the model out of the one that is here; whether it is the one that was announced."""
        made = self.folder / f"{_INCOMING}{_SUFFIX}"
        try:
            add_difference(ModelState.open(base), ModelState.open(difference), made)
        except (PeerError, EncodingError):
            return False
        if sha256_file(made) != sha256:  # what was here may be damaged
            return False
        os.replace(made, self.path(sha256))
        return True

    def _newest(self, *, but: str) -> Path | None:
        """The model that was given last, another than `but`."""
        held = [path for path in self.folder.glob(f"{'?' * 64}{_SUFFIX}") if path.stem != but]
        return max(held, key=lambda path: path.stat().st_mtime_ns, default=None)

    def _keep_only(self, sha256: str) -> None:
        for path in self.folder.iterdir():
            # What waits for a sum has its model in a folder of its own.
            if path != self.path(sha256) and not path.is_dir():
                path.unlink()
