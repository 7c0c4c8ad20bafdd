"""The fields of a vector cut into pieces that threads work on, each thread with buffers of its own.

A piece is a range of fields that begins and ends with a word, whatever the tensors' borders: no two
threads write to one word, and the n-th piece is the same for any number of threads, so that results
do not depend on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from fedcore.codec.encoding import Encoding
from fedcore.errors import UsageError
from fedcore.state import TensorSpec

PIECE = 3 << 18
"""Fields of a piece: whole words of 2, 3 or 4 fields, and about a millisecond of work."""

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Elements [start, stop) of floating point tensor `index`; the first of them is field `place`."""

    index: int
    spec: TensorSpec
    start: int
    stop: int
    place: int

    def blocks(self, size: int) -> Iterator[tuple[int, int, int]]:
        """(start, stop, place) of every block of at most `size` elements."""
        for start in range(self.start, self.stop, size):
            yield start, min(start + size, self.stop), self.place + start - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Piece `number` of a vector: fields [number * PIECE, (number + 1) * PIECE), by tensor."""

    number: int
    parts: tuple[Part, ...]


def pieces(encoding: Encoding) -> list[Piece]:
    """All fields of an encoding, in order."""
    found: list[list[Part]] = []
    place = 0
    for index, spec in enumerate(encoding.floats):
        start = 0
        while start < spec.size:
            number, used = divmod(place, PIECE)
            stop = min(spec.size, start + PIECE - used)
            if number == len(found):
                found.append([])
            found[number].append(Part(index=index, spec=spec, start=start, stop=stop, place=place))
            place += stop - start
            start = stop
    return [Piece(number=number, parts=tuple(parts)) for number, parts in enumerate(found)]


def for_each(cut: Sequence[Piece], prepare: Callable[[], Callable[[Piece], _Result]], *, threads: int) -> list[_Result]:
    """The results for all pieces, in order. `prepare()` gives a thread its function, with buffers of its own.

    Where several fail, the error of the first of them is raised: it is the same for any number of
    threads.
    """
    if threads < 1:
        raise UsageError("threads must be 1 or more")
    workers = min(threads, len(cut))
    if workers <= 1:
        work = prepare()
        return [work(piece) for piece in cut]
    local = threading.local()

    def start() -> None:
        local.work = prepare()

    def run(piece: Piece) -> _Result:
        result: _Result = local.work(piece)
        return result

    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="codec", initializer=start) as pool:
        return list(pool.map(run, cut))
