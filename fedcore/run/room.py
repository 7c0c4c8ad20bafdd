"""Memory and disk that a model of gigabytes takes at each party, reckoned before a run begins.

The factors are what `benchmarks/gigabytes.py` measures, rounded up.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from fedcore.errors import OutOfMemory, StorageFull
from fedcore.run.settings import JobSettings
from fedcore.state import MOST_OF_MODEL

LEAST_MODEL: Final = 64 << 20
"""Bytes of a model below which nobody asks for room."""
SEGMENT_BYTES: Final = 64 << 20
"""Of a sum, by which it takes the place of large updates."""
RANK_MODELS: Final = 3.0
"""Weights, gradients, and what the step takes, with plain SGD; Adam takes two more."""
SERVER_APP_MODELS: Final = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomNeeds:
    """What a run takes, in bytes.

    model: of the model's file.
    update: of one client's upload.
    clients: of a round.
    plain: whether updates are kept one by one, and not summed.
    groups: sums of a round.
    differences: whether clients get 16-bit differences of models (download-bits).
    best: whether the best model is kept in addition to the last.
    """

    model: int
    update: int
    clients: int
    plain: bool = False
    groups: int = 1
    differences: bool = False
    best: bool = False

    @classmethod
    def of(cls, settings: JobSettings, *, model: int, update: int, clients: int) -> Self:
        """Of a run with these settings."""
        return cls(
            model=model,
            update=update,
            clients=clients,
            plain=settings.aggregation == "plain",
            groups=settings.groups,
            differences=settings.download_bits == 16,
            best=bool(settings.best_model),
        )

    @property
    def is_large(self) -> bool:
        """Whether it is worth a word."""
        return self.model >= LEAST_MODEL

    @property
    def client_memory(self) -> int:
        """Of a client that trains with plain SGD on a processor; on a GPU it is the device's."""
        return int(RANK_MODELS * self.model)

    @property
    def least_client_memory(self) -> int:
        """What a rank takes on a processor in any case, whatever the app does: the weights."""
        return self.model

    @property
    def client_disk(self) -> int:
        """The last model and a difference while the next is made; then that, the trained one and the vector to send."""
        return 2 * self.model + (0 if self.plain else max(self.update, int(MOST_OF_MODEL * self.model)))

    @property
    def server_memory(self) -> int:
        """Of the ServerApp's process."""
        return int(SERVER_APP_MODELS * self.model)

    @property
    def least_server_memory(self) -> int:
        """What the ServerApp's process takes in any case, in addition to the model that it has sent."""
        return self.model // 2

    @property
    def server_disk(self) -> int:
        """Of a round, at the worse of two moments.

        The model, which its checkpoint and the ServerApp's own share; what clients get in its place, with its
        difference; the best one. And then the updates, which all clients may send at the same time, and of their sums
        a segment; or the means that are being made, the saved sums and the copies of them without masks.
        """
        if self.plain:
            return 2 * self.model + self.clients * self.update
        models = self.model + self.differences * (self.model + self.model // 2) + self.best * self.model
        segments = self.groups * min(self.update, SEGMENT_BYTES)
        summing, decoding = self.clients * self.update + segments, self.groups * (self.model + 2 * self.update)
        return models + max(summing, decoding)

    @property
    def server_disk_a_round(self) -> int:
        """What stays of each round until the run ends, at most: where its sum is smaller, that stays in its place."""
        return self.clients * self.update if self.plain else self.groups * self.model

    @property
    def facts(self) -> dict[str, int]:
        """Those that people read, by `ROOM_FACTS`."""
        return {name: getattr(self, name) for name in ROOM_FACTS}


ROOM_FACTS: Final = ("client_memory", "client_disk", "server_memory", "server_disk", "server_disk_a_round")
"""The needs that people read."""


def room_line(facts: Mapping[str, Any]) -> str:
    """A sentence of them; "" if `facts` has none."""
    if not all(name in facts for name in ROOM_FACTS):
        return ""
    sizes = {name: readable(facts[name]) for name in ROOM_FACTS}
    return (
        "a site takes about {client_memory} of memory (plain SGD; on a GPU it is the device's) and {client_disk} of "
        "disk, the server {server_memory} and {server_disk}, and up to {server_disk_a_round} more of disk for each "
        "round until the run ends"
    ).format(**sizes)


def check_disk(folder: Path, needed: int, refusal: str) -> None:
    """Raise StorageFull with `refusal`, in which {needed} and {free} stand for sizes, if a disk has less free.

    Args:
        folder: on that disk.
        needed: bytes.
        refusal: what does not fit, and what to do.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise StorageFull(refusal.format(needed=readable(needed), free=readable(free)))


def check_memory(free: int | None, needed: int, refusal: str) -> None:
    """Raise OutOfMemory with `refusal`, in which {needed} and {free} stand for sizes, if less is free.

    Args:
        free: bytes (`fedcore.system.memory.free_memory`); None if the system does not say, and then nothing is refused.
        needed: bytes.
        refusal: what does not fit, and what to do.
    """
    if free is not None and free < needed:
        raise OutOfMemory(refusal.format(needed=readable(needed), free=readable(free)))


def free_line(memory: int | None, disk: int) -> str:
    """What is free, in bytes, as people read it next to what is needed."""
    room = {"memory": memory, "disk": disk}
    return " and ".join(f"{readable(size)} of {name}" for name, size in room.items() if size is not None)


def readable(size: int) -> str:
    """A size as people read it here."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
