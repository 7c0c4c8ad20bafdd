"""A device that is lost at a chosen call, and fails in all that follows, as a card does that the driver has lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedcore.codec import DeviceVector
from fedcore.secagg import MaskTerm, apply_masks
from support.on_device import DEVICE


class LostDevice:
    """Its `open` takes the place of `open_vector`.

    fails_at: a method of `DeviceVector`, "open", or empty for none. left: how many such calls go well. streams: whether
    the device makes streams itself; else the processor does, in a hundredth of the time that the interpreter takes.
    """

    def __init__(self, fails_at: str, left: int = 0, *, streams: bool = False) -> None:
        self.fails_at, self.left, self.streams = fails_at, left, streams
        self.opened: list[DeviceVector] = []
        self.given_back = 0

    def open(self, count: int) -> DeviceVector:
        self.call("open")
        self.opened.append(_Vector(count, self))
        return self.opened[-1]

    def call(self, name: str) -> None:
        if name == self.fails_at:
            self.left -= 1
        if self.left < 0:
            raise torch.OutOfMemoryError("CUDA out of memory")


class _Vector(DeviceVector):
    def __init__(self, count: int, card: LostDevice) -> None:
        super().__init__(count, torch.device("cpu") if not card.streams else DEVICE)
        self._card = card

    def load(self, words: NDArray[np.uint64], start: int, stop: int) -> None:
        self._card.call("load")
        super().load(words, start, stop)

    def round_to(self, *arguments: Any, **options: Any) -> Any:
        made = super().round_to(*arguments, **options)
        self._card.call("round_to")
        return made

    def apply_masks(
        self, words: NDArray[np.uint64], terms: Iterable[MaskTerm], *, threads: int = 1, offset: int = 0
    ) -> None:
        super().apply_masks(words, terms, threads=threads, offset=offset)
        words[: words.size // 2] = 7  # where a copy breaks off
        self._card.call("apply_masks")
        super().apply_masks(words, (), offset=offset)

    def close(self) -> None:
        self._card.call("close")
        super().close()
        self._card.given_back += 1

    def add_streams(self, words: torch.Tensor, terms: Sequence[MaskTerm], offset: int, chunk_bytes: int) -> None:
        if self._card.streams:
            super().add_streams(words, terms, offset, chunk_bytes)
        else:
            apply_masks(words.numpy().view(np.uint64), terms, offset=offset)  # within the first chunk of either kind
