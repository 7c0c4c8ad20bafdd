"""A vector as large as a model in a file of the spool, a few MiB at a time in memory; and what of it is saved.

The system keeps such a file in memory as long as there is room, so it costs copies between the two and no waiting; but
what the process itself takes does not grow with the model. It is written to by plain writes and not by a writable map,
because a full disk then shows as an error and not as a signal that ends the process.

A saved sum has one segment, or segments of 64 MiB if its vectors are larger. A segment is replaced by a new object with
more vectors in it, the last one first. Of a vector that some segments have, the rest stays where it was; `adding` has
the digests of its segments, since what its client signed is a digest of the whole.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import UsageError
from fedcore.run.room import SEGMENT_BYTES
from fedcore.secagg import MaskTerm, apply_masks
from fedcore.system.files import full_disk_named
from server_app.operation.server_view import MOST_NUMBERS
from server_app.storage.blobs import discard, write_all

BLOCK_WORDS: Final = 1 << 16
"""512 KiB: a block and its part of the sum stay in a core's cache between reading, adding and writing."""
MIN_WORDS_PER_THREAD: Final = 1 << 18
WORD_BYTES: Final = 8


def fold_file(path: Path, total: Path, *, threads: int, start: int | None = None) -> None:
    """Add the little-endian 64-bit words in `path` to those in `total` in place, modulo 2^64.

    Raises UsageError if the files do not fit, before anything is added; OSError. The caller sees to it that only one
    vector at a time is added to one sum.

    Args:
        path: file of the vector.
        total: file of the sum.
        threads: at most so many.
        start: the shorter of both lies at this word of the longer one; None if both have to be of one length.
    """
    with opened(path, os.O_RDONLY) as vector, opened(total, os.O_RDWR) as sum_file:
        size, into = os.fstat(vector).st_size, os.fstat(sum_file).st_size
        words, longer, first = min(size, into) // WORD_BYTES, max(size, into), start or 0
        if size % WORD_BYTES or (size != into if start is None else (first + words) * WORD_BYTES > longer):
            raise UsageError(f"a vector of {size} bytes does not fit a sum of {into // WORD_BYTES} words")
        workers = max(1, min(threads, words // MIN_WORDS_PER_THREAD))
        edges = [words * part // workers for part in range(workers + 1)]
        firsts = (first, 0) if size > into else (0, first)
        with ThreadPoolExecutor(workers, thread_name_prefix="fold") as pool:
            jobs = [pool.submit(_fold_range, vector, sum_file, *span, *firsts) for span in itertools.pairwise(edges)]
            for job in jobs:
                job.result()


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor. Raises OSError."""
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def read_words(descriptor: int, words: NDArray[np.uint64], start: int) -> None:
    """Fill `words` from the file's word `start` on; raises UsageError if it ends before."""
    view, offset = words.data.cast("B"), start * WORD_BYTES
    while view:
        count = os.preadv(descriptor, [view], offset)
        if count == 0:
            raise UsageError("a stored vector became shorter while it was read")
        view, offset = view[count:], offset + count


def _fold_range(vector: int, sum_file: int, start: int, stop: int, vector_first: int, sum_first: int) -> None:
    added, into = (np.empty(min(BLOCK_WORDS, stop - start), dtype="<u8") for _ in range(2))
    for first in range(start, stop, BLOCK_WORDS):
        count = min(BLOCK_WORDS, stop - first)
        block, part = added[:count], into[:count]
        read_words(vector, block, vector_first + first)
        read_words(sum_file, part, sum_first + first)
        np.add(part, block, out=part)
        write_all(sum_file, part.data.cast("B"), (sum_first + first) * WORD_BYTES)


RANGE_WORDS: Final = 1 << 19
"""4 MiB: long enough that all threads share the masks of it."""
_FULL: Final = "the disk is full; there is no room for a sum"
_CANNOT_ALLOCATE: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


class SumFile:
    """64-bit words, little endian, in a file.

    All methods but `discard` take a while, and raise OSError.

    path
        The file, empty at first. This object alone writes to it and removes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def allocate(self, words: int) -> None:
        """Make an empty file that many zeros, with their place on the disk; raises StorageFull if there is none."""
        with full_disk_named(_FULL), opened(self.path, os.O_RDWR) as file:
            _allocate(file, words * WORD_BYTES)

    def add(self, vector: Path, *, threads: int, start: int | None = None) -> None:
        """Add the words in the file `vector`, as `fold_file` does. Raises what that raises."""
        fold_file(vector, self.path, threads=threads, start=start)

    def apply_masks(self, terms: Sequence[MaskTerm], *, threads: int) -> None:
        """Add the streams of all terms, as `fedcore.secagg.apply_masks`; raises StorageFull if that needs room."""
        with full_disk_named(_FULL), opened(self.path, os.O_RDWR) as file:
            words = os.fstat(file).st_size // WORD_BYTES
            buffer = np.empty(min(RANGE_WORDS, words), "<u8")
            for start in range(0, words, RANGE_WORDS):
                part = buffer[: min(RANGE_WORDS, words - start)]
                read_words(file, part, start)
                apply_masks(part, terms, threads=threads, offset=start)
                write_all(file, part.data.cast("B"), start * WORD_BYTES)

    def beginning(self) -> NDArray[np.uint64]:
        """The first words, as many as people are shown."""
        return first_words(self.path)

    def mapped(self) -> MappedWords:
        """All words, to read."""
        return MappedWords(self.path)

    def discard(self) -> None:
        """Remove the file."""
        discard(self.path)


class MappedWords:
    """The words of a file, to read.

    words
        `[words]`, read-only.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.words: NDArray[np.uint64] = np.frombuffer(self._map, "<u8")

    def free_memory(self) -> None:
        """Free the memory of the words read so far; they are read from the file again if needed."""
        self._map.madvise(mmap.MADV_DONTNEED)


def first_words(path: Path) -> NDArray[np.uint64]:
    """The first words of a file, as many as people are shown."""
    with path.open("rb") as file:
        return np.frombuffer(file.read(MOST_NUMBERS * WORD_BYTES), "<u8").astype(np.uint64)


def _allocate(descriptor: int, size: int) -> None:
    """Make an empty file `size` bytes of zeros, on the disk too if the system can promise that."""
    os.ftruncate(descriptor, size)
    if size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            if error.errno not in _CANNOT_ALLOCATE:
                raise


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
