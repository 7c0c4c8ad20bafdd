"""Who makes the words of an update: a device while it serves, and the processor where none does, or one fails.

Devices fail in ways of their own: another process takes the memory, the driver loses the card, a compiler is missing.
That is no reason to leave an exchange, for the words do not depend on who makes them, given the same random bytes
(`fedcore.codec.gpu.device`). So what was drawn is kept until the upload has left: the processor makes the very same
words
again, and goes on masking where the device stopped. Parts that are with the server stay good, and no two vectors ever
leave under one mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcore.codec import DeviceVector, Encoded, device_serves_from, open_vector
from fedcore.errors import FedcoreError
from fedcore.secagg import MaskTerm, Randomness, apply_masks

_Result = TypeVar("_Result")


class Encode(Protocol):
    """What makes the words: `fedcore.codec.encode` or `encode_nothing`, given all but these two."""

    def __call__(self, *, randomness: Randomness, device: DeviceVector | None) -> Encoded:
        """The words, which depend on the random bytes and not on the device."""
        ...


class WordMaker:
    """Makes the words of one exchange and masks them; used by one thread at a time.

    gpu: whether the owner lets it use a GPU. warn: tells the owner of a device that failed.
    """

    def __init__(self, *, gpu: bool, randomness: Randomness, warn: Callable[[str], None]) -> None:
        self._gpu, self._randomness, self._warn = gpu, randomness, warn
        self._device: DeviceVector | None = None
        self._encode: Encode | None = None
        self._draws = _Draws(randomness)
        self._words = np.zeros(0, np.uint64)

    @property
    def on_device(self) -> bool:
        """Whether the words wait for their masks on a device."""
        return self._device is not None

    def make(self, encode: Encode, count: int) -> Encoded:
        """The `count` words of an update, not masked; what was made before is forgotten.

        Where they wait on the device, those that are returned are filled by `apply_masks`. Raises FedcoreError as
        `encode` does.
        """
        self.close()
        self._encode, self._draws = encode, _Draws(self._randomness)
        encoded = self._encode_there(encode, count) if self._gpu else None
        if encoded is None:
            encoded = encode(randomness=self._draws.from_start(), device=None)
            self._forget()
        self._words = encoded.words
        return encoded

    def apply_masks(
        self, words: NDArray[np.uint64], terms: Iterable[MaskTerm], *, threads: int = 1, offset: int = 0
    ) -> None:
        """A `fedcore.secagg.Masker` for those words, whose ranges come in ascending order."""
        held, device = tuple(terms), self._device
        if device is not None:

            def mask() -> bool:
                device.apply_masks(words, held, threads=threads, offset=offset)
                return True

            if self._on_device(mask):
                return
            # Masked or half copied there, none of these has left: each word is made again as it was, and masked once.
            assert self._encode is not None  # noqa: S101 - what is on a device was made
            again = self._encode(randomness=self._draws.from_start(), device=None)
            self._words[offset:] = again.words[offset:]
            self._forget()
        apply_masks(words, held, threads=threads, offset=offset)

    def close(self) -> None:
        """Give the device's memory back, to whoever trains on it, and forget what was drawn."""
        self._leave_device()
        self._forget()
        self._words = np.zeros(0, np.uint64)

    def _forget(self) -> None:
        """The words are on the host, and are not made again."""
        self._encode, self._draws = None, _Draws(self._randomness)

    def _encode_there(self, encode: Encode, count: int) -> Encoded | None:
        """What the device makes; None where there is none, or it does not serve."""

        def make() -> Encoded | None:
            self._device = open_vector(count)
            return encode(randomness=self._draws.from_start(), device=self._device) if self._device else None

        return self._on_device(make)

    def _on_device(self, job: Callable[[], _Result]) -> _Result | None:
        """What `job` gives; None where the device failed, which is left then."""
        try:
            return job()
        except FedcoreError:
            raise  # it is the update's fault
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        self._warn(f"the device failed, so the processor makes the same words ({failure})")
        self._leave_device()  # after the error is gone, and with its frames the tensors that they held
        return None

    def _leave_device(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            try:
                device.close()
            except Exception as error:
                # After some failures every call into the driver fails.
                self._warn(f"the device does not give its memory back ({type(error).__name__}: {error})")


def who_makes_words(*, gpu: bool) -> str:
    """For the owner; no device is looked for, which takes seconds and memory of both."""
    if not gpu:
        return "rounded and masked by the processor (--no-gpu-uploads)"
    least = device_serves_from()
    if least is None:
        return "rounded and masked by the processor, since Triton is not installed"
    return f"of {least >> 20} MiB and more are rounded and masked on a GPU with room for them, others by the processor"


class _Draws:
    """Random bytes that can be had a second time."""

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._drawn: list[bytes] = []

    def from_start(self) -> Randomness:
        """The same draws again, and fresh ones after the last."""
        place = 0

        def draw(count: int) -> bytes:
            nonlocal place
            if place == len(self._drawn):
                self._drawn.append(self._randomness(count))
            drawn, place = self._drawn[place], place + 1
            assert len(drawn) == count  # noqa: S101 - who draws again draws alike
            return drawn

        return draw
