"""What of a sum is saved: its segments, each an object, and whose vectors they have.

A saved sum has one segment, or segments of 64 MiB if its vectors are larger. A segment is replaced by a new object with
more vectors in it, the last one first. Of a vector that some segments have, the rest stays where it was; `adding` has
the digests of its segments, since what its client signed is a digest of the whole.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from fedcore.run.room import SEGMENT_BYTES
from server_app.exchanges.sums.sum_file import WORD_BYTES

SEGMENT_WORDS: Final = SEGMENT_BYTES // WORD_BYTES
_BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """An object: its key, and its SHA-256 ("" of a fedcore that wrote none down)."""

    key: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSum:
    """A sum as the database names it.

    clients: whose vectors all segments have.
    segments: its objects; None for zeros.
    adding: client -> SHA-256 of each segment of its vector, which only the segments from `left` on have.
    left: how many segments are without them.
    """

    clients: frozenset[int] = frozenset()
    segments: tuple[Segment | None, ...]
    adding: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    left: int = 0

    @property
    def last(self) -> int:
        """The segment that is the next to get the vectors that are being added."""
        return self.left - 1

    def begin(self, adding: Mapping[int, tuple[str, ...]]) -> SavedSum:
        """The same sum, before the vectors of `adding` are added."""
        return replace(self, adding=adding, left=len(self.segments))

    def add_last(self, segment: Segment) -> SavedSum:
        """With the next segment, which has them."""
        segments = (*self.segments[: self.last], segment, *self.segments[self.left :])
        if self.last:
            return replace(self, segments=segments, left=self.last)
        return SavedSum(clients=self.clients | self.adding.keys(), segments=segments)

    def to_json(self) -> dict[str, Any]:
        """As an object for a column of the database."""
        clients, objects = sorted(self.clients), [_to_json(segment) for segment in self.segments]
        if len(objects) == 1 and objects[0] is not None:
            return {"clients": clients, **objects[0]}
        adding = {str(client): list(digests) for client, digests in self.adding.items()}
        return {"clients": clients, "segments": objects, "adding": adding, "left": self.left}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_json`."""
        clients = frozenset(data["clients"])
        if "key" in data:
            return cls(clients=clients, segments=(_segment(data),))
        return cls(
            clients=clients,
            segments=tuple(_segment(one) if one else None for one in data["segments"]),
            adding={int(client): tuple(digests) for client, digests in data["adding"].items()},
            left=data["left"],
        )


def _to_json(segment: Segment | None) -> dict[str, Any] | None:
    return {"key": segment.key, "sha256": segment.sha256} if segment is not None else None


def _segment(data: Mapping[str, Any]) -> Segment:
    return Segment(key=data["key"], sha256=data.get("sha256", ""))


def is_large(words: int) -> bool:
    """Whether a sum of so many words has several segments."""
    return words > SEGMENT_WORDS


def nothing_saved(words: int) -> SavedSum:
    """A sum of zeros."""
    return SavedSum(segments=(None,) * max(1, -(-words // SEGMENT_WORDS)))


def first_word(number: int) -> int:
    """Where segment `number`, from 0, begins."""
    return number * SEGMENT_WORDS


def word_count(number: int, words: int) -> int:
    """How many words segment `number` of a sum of `words` has."""
    return min(SEGMENT_WORDS, words - first_word(number))


def segment_digests(path: Path, count: int | None = None) -> tuple[str, ...]:
    """The SHA-256, in hexadecimal, of each segment of a vector, or of the first `count`. Raises OSError."""
    return tuple(itertools.islice(_digests(path), count))


def joint_digest(digests: Iterable[str]) -> str:
    """One digest of several."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _digests(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        for start in range(0, size, SEGMENT_WORDS * WORD_BYTES):
            digest, left = hashlib.sha256(), min(SEGMENT_WORDS * WORD_BYTES, size - start)
            while left and (block := file.read(min(_BLOCK_BYTES, left))):
                digest.update(block)
                left -= len(block)
            yield digest.hexdigest()
