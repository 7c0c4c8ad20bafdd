"""The sections of fields of a vector, cut into blocks that threads work on, each thread with buffers of its own.

A block is a range of fields that begins and ends with a word, whatever the tensors' borders: no two threads write to
one word, and the n-th block is the same for any number of threads, so that results do not depend on it. Within a block,
what belongs to one tensor is a span.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from fedcore.codec.rotation import Unit, cuts, fields_of, tensor_fields
from fedcore.codec.scaling.widths import FRACTION_BITS
from fedcore.errors import UsageError
from fedcore.state import TensorSpec

BLOCK_FIELDS = 3 << 17
"""Fields of a block, and the most elements that are handled at a time: whole words of 1, 2, 3 or 4 fields. NumPy gives
the interpreter lock back in every call and takes it again; calls on fewer elements spend their time on waiting for it,
although their buffers would fit the second-level cache."""

_RELEASE_EVERY = 2
"""3 MiB of a model in float32."""


class _Numbered(Protocol):
    """What `for_each` goes through: numbered from 0."""

    @property
    def number(self) -> int: ...


_Part = TypeVar("_Part", bound=_Numbered)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSection:
    """One of the sections of fields: `tensors` in order, each with the index of its scale; fields go from 0 to 2L.

    sent_share: how many of the coordinates of rotated tensors are sent; None if nothing is rotated.
    fraction_bits: how many bits a fraction of a step has, in fields of FRACTION_BITS that follow all others; 0 if
        there are none.
    """

    name: str
    field_bits: int
    levels: int
    tensors: tuple[tuple[int, TensorSpec], ...]
    sent_share: float | None = None
    fraction_bits: int = 0

    @property
    def per_word(self) -> int:
        """Fields in a word."""
        return 64 // self.field_bits

    @property
    def fields(self) -> int:
        """Number of fields."""
        if self.sent_share is None:
            return sum(spec.size for _, spec in self.tensors)
        return sum(tensor_fields(spec.size, self.sent_share, self.per_word) for _, spec in self.tensors)

    @property
    def words(self) -> int:
        """Words that hold the fields, and the fractions."""
        count = -(-self.fields // self.per_word)
        return count + -(-self.fields * FRACTION_BITS // 64) if self.fraction_bits else count

    def units(self) -> list[Unit]:
        """What is rotated by itself, in order; for a section that has a `sent_share`."""
        assert self.sent_share is not None  # noqa: S101 - of a rotated section
        units: list[Unit] = []
        position = 0
        for index, spec in self.tensors:
            for start, stop in cuts(spec.size):
                units.append(
                    Unit(
                        number=len(units),
                        index=index,
                        spec=spec,
                        start=start,
                        stop=stop,
                        position=position,
                        sent_share=self.sent_share,
                        per_word=self.per_word,
                    )
                )
                position += fields_of(stop - start, self.sent_share, self.per_word)
        return units


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Elements [start, stop) of a tensor with scale `index`; the first of them is field `position` of its section."""

    index: int
    spec: TensorSpec
    start: int
    stop: int
    position: int

    @property
    def size(self) -> int:
        """Number of elements, BLOCK_FIELDS at most."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldBlock:
    """Block `number` of a vector: fields [number * BLOCK_FIELDS, (number + 1) * BLOCK_FIELDS), by tensor."""

    number: int
    spans: tuple[Span, ...]

    def release(self, *files: Callable[[], None]) -> None:
        """Release what was read of mapped files, once every few blocks."""
        release_every(self.number, _RELEASE_EVERY, *files)


def release_every(number: int, parts: int, *files: Callable[[], None]) -> None:
    """Release what was read of mapped files after every so many parts; `number` is that of this one, from 0."""
    if number % parts == parts - 1:
        for release in files:
            release()


def blocks(section: FieldSection, size: int = BLOCK_FIELDS) -> list[FieldBlock]:
    """All fields of a section, in order, in blocks of `size`, a multiple of BLOCK_FIELDS."""
    groups: list[list[Span]] = []
    position = 0
    for index, spec in section.tensors:
        start = 0
        while start < spec.size:
            number, used = divmod(position, size)
            stop = min(spec.size, start + size - used)
            if number == len(groups):
                groups.append([])
            groups[number].append(Span(index=index, spec=spec, start=start, stop=stop, position=position))
            position += stop - start
            start = stop
    return [FieldBlock(number=number, spans=tuple(spans)) for number, spans in enumerate(groups)]


def for_each(cut: Sequence[_Part], prepare: Callable[[], Callable[[_Part], _Result]], *, threads: int) -> list[_Result]:
    """The results for all blocks, in order. `prepare()` gives a thread its function, with buffers of its own.

    If several blocks fail, the error of the first of them is raised: it is the same for any
    number of threads, since blocks are started in order.
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
                block = pending.popleft()
            except IndexError:
                return
            try:
                results[block.number] = work(block)
            except BaseException as error:
                failures[block.number] = error

    workers = min(threads, len(cut))
    if workers <= 1:
        run()
    else:
        with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="codec") as pool:
            for job in [pool.submit(run) for _ in range(workers)]:
                job.result()
    if failures:
        raise failures[min(failures)]
    return [results[block.number] for block in cut]
