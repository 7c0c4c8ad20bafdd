"""The fields of a vector cut into pieces that threads work on, each thread with buffers of its own.

A piece is a range of fields that begins and ends with a word, whatever the tensors' borders: no two
threads write to one word, and the n-th piece is the same for any number of threads, so that results
do not depend on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from fedcore.codec.encoding import Encoding
from fedcore.errors import UsageError
from fedcore.state import ModelState, TensorSpec

PIECE = 3 << 17
"""Fields of a piece, and the most elements that are handled at a time: whole words of 2, 3 or 4 fields. NumPy gives the
interpreter lock back in every call and takes it again; calls on fewer elements spend their time on waiting for it,
although their buffers would fit the second-level cache."""

_RELEASE_EVERY = 16

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Elements [start, stop) of floating point tensor `index`; the first of them is field `place`."""

    index: int
    spec: TensorSpec
    start: int
    stop: int
    place: int

    @property
    def size(self) -> int:
        """Number of elements, PIECE at most."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Piece `number` of a vector: fields [number * PIECE, (number + 1) * PIECE), by tensor."""

    number: int
    parts: tuple[Part, ...]

    def release(self, *states: ModelState) -> None:
        """Let go of what was read of mapped files, now and then: after some pieces, of which this may be the last."""
        if self.number % _RELEASE_EVERY == _RELEASE_EVERY - 1:
            for state in states:
                state.release()


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

    Where several pieces fail, the error of the first of them is raised: it is the same for any
    number of threads, since pieces are begun in order.
    """
    if threads < 1:
        raise UsageError("threads must be 1 or more")
    # A deque, because its popleft is safe to call from several threads.
    pending = deque(cut)
    results: dict[int, _Result] = {}
    failures: dict[int, BaseException] = {}

    def run() -> None:
        work = prepare()
        while not failures:
            try:
                piece = pending.popleft()
            except IndexError:
                return
            try:
                results[piece.number] = work(piece)
            except BaseException as error:
                failures[piece.number] = error

    workers = min(threads, len(cut))
    if workers <= 1:
        run()
    else:
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="codec") as pool:
            for job in [pool.submit(run) for _ in range(workers)]:
                job.result()
    if failures:
        raise failures[min(failures)]
    return [results[piece.number] for piece in cut]
