"""Encodes and masks a client's update on a GPU, bit for bit as the processor does.

The words are the processor's, bit for bit (`device_kernels`), so nobody sees where they were made. The agent makes
them, and not the process that trained: seeds and keys never come near user code. It maps the file that rank 0 handed
over and moves it to the device piece by piece; what comes back is the masked upload (docs/adr/0056).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.blocks import BLOCK_FIELDS, FieldSection, Span, blocks
from fedcore.errors import UsageError
from fedcore.secagg import MaskTerm, Secret
from fedcore.secagg.crypto.masking import CHUNK_BYTES, CIPHER_BLOCK_BYTES, WORD_BYTES
from fedcore.state import ModelState, TensorSpec
from fedcore.system.memory import may_have_gpu

if TYPE_CHECKING:
    import torch

LEAST_WORDS: Final = 1 << 23
"""Words (64 MiB) from which on a device pays for its start: PyTorch, the device's context and the kernels take seconds
once, and some hundred MiB of the device's memory."""
SERVED_BITS: Final = (16, 21, 32, 64)
"""The widths of fields that are made there."""
PIECE_FIELDS: Final = 16 * BLOCK_FIELDS
"""Fields that are on their way to the device at a time: 50 MiB of float32, of the update and of the global model."""
_PIECE_BYTES: Final = 64 * PIECE_FIELDS
"""Device memory that a piece takes in addition to the words, with room: both models, random bits, fields, the next
piece."""
_BLOCK_WORDS: Final = CIPHER_BLOCK_BYTES // WORD_BYTES
_RANDOM_BYTES: Final = 2
PROGRAM_BLOCKS: Final = 128
PROGRAM_FIELDS: Final = 1024
"""Cipher blocks, and elements, of one program."""
_COPIED: Final = 1 << 20
"""Elements that one thread copies at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounded:
    """What happened to one tensor with scale `index`.

    largest: its largest |delta|; NaN or infinity if one is not finite.
    clipped: how many elements were.
    """

    index: int
    spec: TensorSpec
    largest: float
    clipped: int


class DeviceVector:
    """The words of one update, uint64 [count], on a device, until they are masked and come to the host.

    `open_vector` makes one if it is worth it. Its methods are called one after another, from any thread.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        import torch

        self._device = device
        self._words = torch.zeros(count, dtype=torch.int64, device=device)

    def round_to(
        self,
        part: FieldSection,
        start: int,
        *,
        base: ModelState,
        local: ModelState,
        factors: Sequence[float],
        key: bytes,
        threads: int = 1,
    ) -> list[Rounded]:
        """Fill the words of one section, which begin at word `start`, with the fields of (local - base) * factor.

        Args:
            factors: by scale.
            key: of the random bits, as in `StochasticRounder`. If a value is not finite its field is meaningless, as
                all of them are to the caller.
        """
        import torch

        order = {spec.name: number for number, (_, spec) in enumerate(part.tensors)}
        statistics = torch.zeros((len(order), 2), dtype=torch.int64, device=self._device)
        narrow = part.field_bits == 16
        units = torch.tensor(
            [factor * (1 << 16 if narrow else 1) for factor in factors],
            dtype=torch.float64,
            device=self._device,
        ).to(torch.float32 if narrow else torch.float64)
        with ThreadPoolExecutor(max_workers=threads, thread_name_prefix="codec") as pool:
            for piece in blocks(part, size=PIECE_FIELDS):
                first = piece.number * PIECE_FIELDS
                count = sum(span.size for span in piece.spans)
                random = self._random(key, first, count)
                fields = self._fields(part, start, first, count)
                for span in piece.spans:
                    old, new = (self._moved(state, span, pool) for state in (base, local))
                    at = span.position - first
                    self._start(
                        "round_update",
                        -(-span.size // PROGRAM_FIELDS),
                        new,
                        old,
                        random[at:],
                        fields[at:],
                        units[span.index :],
                        statistics[order[span.spec.name]],
                        span.size,
                        part.levels,
                        STORED=span.spec.dtype,
                        BITS=part.field_bits,
                        SIZE=PROGRAM_FIELDS,
                    )
                if part.field_bits == 21:
                    words = self._words[start + first // 3 :]
                    self._start(
                        "pack_thirds", -(-count // (3 * PROGRAM_FIELDS)), fields, words, count, SIZE=PROGRAM_FIELDS
                    )
                base.release()
                local.release()
        largest, clipped = statistics.cpu().numpy().T
        return [
            Rounded(index=index, spec=spec, largest=float(size), clipped=int(count))
            for (index, spec), size, count in zip(
                part.tensors, largest.astype(np.int32).view(np.float32), clipped, strict=True
            )
        ]

    def serves(self, part: FieldSection) -> bool:
        """Whether `round_to` makes this section; others, such as those that are rotated, the host makes, for `load`."""
        return part.field_bits in SERVED_BITS and part.sent_share is None and not part.fraction_bits

    def load(self, words: NDArray[np.uint64], start: int, stop: int) -> None:
        """Take over `words` [start, stop) of a vector made on the host, uint64 [count]."""
        import torch

        self._words[start:stop].copy_(torch.from_numpy(words[start:stop].view(np.int64)))

    def add_masks(self, terms: Iterable[MaskTerm], start: int, stop: int) -> None:
        """`apply_masks` on the words [start, stop)."""
        self.add_streams(self._words[start:stop], tuple(terms), start, CHUNK_BYTES)

    def apply_lock(self, spared: slice, end: int, masks: Sequence[MaskTerm]) -> None:
        """Add masks to all words before `end` but those of the slice `spared`, as `locks.apply_lock`."""
        self.add_masks(masks, 0, spared.start)
        self.add_masks(masks, spared.stop, end)

    def apply_masks(
        self, words: NDArray[np.uint64], terms: Iterable[MaskTerm], *, threads: int = 1, offset: int = 0
    ) -> None:
        """Mask the words [offset, offset + words.size) on the device, and copy them to `words`.

        A `fedcore.secagg.Masker`; what `words` held does not matter, and the device has threads enough.
        """
        import torch

        if not 0 <= offset <= offset + words.size <= self._words.numel() or threads < 1:
            raise UsageError("these are no words of the vector on the device", check="foreign-words")
        self.add_masks(terms, offset, offset + words.size)
        torch.from_numpy(words.view(np.int64)).copy_(self._words[offset : offset + words.size])

    def close(self) -> None:
        """Give the device's memory back. The vector is of no use any more."""
        import torch

        del self._words
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _fields(self, part: FieldSection, start: int, first: int, count: int) -> torch.Tensor:
        """Where the fields [first, first + count) of a section go."""
        import torch

        if part.field_bits == 21:
            return torch.empty(count, dtype=torch.int32, device=self._device)
        dtype = {16: torch.int16, 32: torch.int32, 64: torch.int64}[part.field_bits]
        return self._words[start : start + part.words].view(dtype)[first : first + count]

    def _random(self, key: bytes, first: int, count: int) -> torch.Tensor:
        """Random bits for the fields [first, first + count), int16: those of `StochasticRounder`."""
        import torch

        words = torch.zeros(-(-count * _RANDOM_BYTES // WORD_BYTES), dtype=torch.int64, device=self._device)
        stream = MaskTerm(sign=1, seed=Secret(key))
        self.add_streams(words, (stream,), first * _RANDOM_BYTES // WORD_BYTES, BLOCK_FIELDS * _RANDOM_BYTES)
        return words.view(torch.int16)

    def add_streams(self, words: torch.Tensor, terms: Sequence[MaskTerm], offset: int, chunk_bytes: int) -> None:
        """Add streams to `words`, which begin at word `offset`; each `chunk_bytes` of a stream have a nonce."""
        import torch

        rows = np.empty((len(terms), 9), np.int32)
        for row, term in zip(rows, terms, strict=True):
            row[:8] = np.frombuffer(term.seed.reveal(), "<i4")
            row[8] = -(term.sign < 0)
        seeds = torch.from_numpy(rows).to(self._device)
        first, skip = divmod(offset, _BLOCK_WORDS)
        lanes = -(-(skip + words.numel()) // _BLOCK_WORDS)
        if not lanes or not terms:
            return
        self._start(
            "add_streams",
            -(-lanes // PROGRAM_BLOCKS),
            words,
            words.numel(),
            seeds,
            len(terms),
            first,
            skip,
            chunk_bytes // CIPHER_BLOCK_BYTES,
            LANES=PROGRAM_BLOCKS,
        )
        seeds.zero_()

    def _moved(self, state: ModelState, span: Span, pool: ThreadPoolExecutor) -> torch.Tensor:
        """A span's elements on the device; by pinned memory, which the device reads while the next ones are copied."""
        import torch

        values = state[span.spec.name].reshape(-1)[span.start : span.stop]
        dtype = torch.int16 if span.spec.dtype == "BF16" else _torch_dtype(values)
        staged = torch.empty(values.size, dtype=dtype, pin_memory=self._device.type == "cuda")
        target = staged.numpy().view(values.dtype)

        def copy(begin: int) -> None:
            np.copyto(target[begin : begin + _COPIED], values[begin : begin + _COPIED])

        list(pool.map(copy, range(0, values.size, _COPIED)))
        return staged.to(self._device, non_blocking=True)

    def _start(self, kernel: str, programs: int, *arguments: Any, **constants: Any) -> None:
        from fedcore.codec.gpu import kernels as device_kernels

        if programs:
            with _current(self._device):
                getattr(device_kernels, kernel)[(programs,)](*arguments, **constants, enable_fp_fusion=False)


def device_serves_from() -> int | None:
    """Bytes of the least upload that `open_vector` takes to a device; None if nothing for one is installed."""
    return None if importlib.util.find_spec("triton") is None else LEAST_WORDS * WORD_BYTES


def open_vector(count: int) -> DeviceVector | None:
    """A vector of `count` words on the device, or None if there is none, no room on it, or too little to do.

    Whether there is room depends on the machine and on what runs on it; that there are so many words is public.
    """
    if device_serves_from() is None or count < LEAST_WORDS or not may_have_gpu():
        return None
    import torch

    if not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < count * WORD_BYTES + _PIECE_BYTES:
        return None
    return DeviceVector(count, torch.device("cuda", torch.cuda.current_device()))


def _torch_dtype(values: NDArray[Any]) -> torch.dtype:
    """The dtype of floating point tensors that NumPy has."""
    import torch

    return {2: torch.float16, 4: torch.float32, 8: torch.float64}[values.itemsize]


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Start kernels on `device`."""
    import torch

    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
