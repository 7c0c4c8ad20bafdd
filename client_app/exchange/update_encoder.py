"""Encodes and masks an update on the GPU, with CPU fallback.

Devices fail in ways of their own: another process takes the memory, the driver loses the card, a compiler is missing.
That is no reason to leave an exchange, since the encoded vector does not depend on the device, given the same random
bytes (`fedcore.codec.gpu.device`). So the random bytes are kept until the upload has left: the CPU encodes the very
same vector again, and masks from where the device stopped. Parts that the server has stay valid, and no two vectors
ever leave under one mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedcore.codec import DeviceVector, Encoded, device_serves_from, open_vector
from fedcore.errors import FedcoreError
from fedcore.secagg import MaskTerm, Randomness, apply_masks
from fedcore.state.mapped import LARGE_BYTES, mapped_zeros

_Result = TypeVar("_Result")


class Encode(Protocol):
    """Encodes an update: `fedcore.codec.encode` or `encode_nothing`, given all but these two arguments."""

    def __call__(
        self, *, randomness: Randomness, device: DeviceVector | None, out: NDArray[np.uint64] | None
    ) -> Encoded:
        """The encoded vector, in `out` if that is given; it depends on the random bytes and not on the device."""
        ...


class UpdateEncoder:
    """Encodes and masks the update of one exchange; one thread at a time may use it."""

    def __init__(
        self, *, gpu: bool, randomness: Randomness, warn: Callable[[str], None], folder: Path | None = None
    ) -> None:
        """Open no device yet.

        Args:
            gpu: whether the owner allows a GPU.
            randomness: for the stochastic rounding.
            warn: tells the owner that a device failed.
            folder: where a large vector lies, in a file without a name; None for the system's own place.
        """
        self._folder = folder
        self._gpu, self._randomness, self._warn = gpu, randomness, warn
        self._device: DeviceVector | None = None
        self._encode: Encode | None = None
        self._random = _RepeatableRandomness(randomness)
        self._vector = np.zeros(0, np.uint64)

    @property
    def on_device(self) -> bool:
        """Whether the vector waits for its masks on a device."""
        return self._device is not None

    def encode(self, encode: Encode, size: int) -> Encoded:
        """Encode an update, not masked, and forget the one before. Raises FedcoreError as `encode` does.

        If the vector waits on the device, `apply_masks` fills the one that is returned.

        Args:
            encode: encodes it.
            size: of the vector, in elements.
        """
        self.close()
        self._encode, self._random = encode, _RepeatableRandomness(self._randomness)
        encoded = self._encode_on_device(encode, size) if self._gpu else None
        if encoded is None:
            encoded = encode(randomness=self._random.from_start(), device=None, out=self._room(size))
            self._forget()
        self._vector = encoded.words
        return encoded

    def apply_masks(
        self, words: NDArray[np.uint64], terms: Iterable[MaskTerm], *, threads: int = 1, offset: int = 0
    ) -> None:
        """A `fedcore.secagg.Masker` for that vector, whose ranges come in ascending order."""
        masks, device = tuple(terms), self._device
        if device is not None:

            def mask() -> bool:
                device.apply_masks(words, masks, threads=threads, offset=offset)
                return True

            if self._try_device(mask):
                return
            # Masked or half copied there, none of these has left: encode each element as before, and mask it once.
            assert self._encode is not None  # noqa: S101 - what is on a device was encoded
            again = self._encode(randomness=self._random.from_start(), device=None, out=self._room(self._vector.size))
            self._vector[offset:] = again.words[offset:]
            self._forget()
        apply_masks(words, masks, threads=threads, offset=offset)

    def close(self) -> None:
        """Free the device's memory for the training, and forget the random bytes."""
        self._leave_device()
        self._forget()
        self._vector = np.zeros(0, np.uint64)

    def _room(self, size: int) -> NDArray[np.uint64] | None:
        """Where a vector of `size` words goes: a mapped file if it is large, or None, for memory."""
        return mapped_zeros(size, self._folder) if size * 8 >= LARGE_BYTES else None

    def _forget(self) -> None:
        """The vector is on the host, and is not encoded again."""
        self._encode, self._random = None, _RepeatableRandomness(self._randomness)

    def _encode_on_device(self, encode: Encode, size: int) -> Encoded | None:
        """Encode on the device; None if there is none, or it fails."""

        def run() -> Encoded | None:
            self._device = open_vector(size)
            if self._device is None:
                return None
            return encode(randomness=self._random.from_start(), device=self._device, out=self._room(size))

        return self._try_device(run)

    def _try_device(self, job: Callable[[], _Result]) -> _Result | None:
        """The result of `job`; None if the device failed, which is then closed."""
        try:
            return job()
        except FedcoreError:
            raise  # it is the update's fault
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
        self._warn(f"the device failed, so the processor encodes the same update again ({failure})")
        self._leave_device()  # after the error is gone, and with its frames the tensors that they held
        return None

    def _leave_device(self) -> None:
        device, self._device = self._device, None
        if device is not None:
            try:
                device.close()
            except Exception as error:
                # After some failures every call into the driver fails.
                self._warn(f"the device does not free its memory ({type(error).__name__}: {error})")


def describe_encoder(*, gpu: bool) -> str:
    """Where uploads are encoded, for the owner; looks for no device, which would take seconds and memory."""
    if not gpu:
        return "rounded and masked by the processor (--no-gpu-uploads)"
    least = device_serves_from()
    if least is None:
        return "rounded and masked by the processor, since Triton is not installed"
    return f"of {least >> 20} MiB and more are rounded and masked on a GPU with room for them, others by the processor"


class _RepeatableRandomness:
    """Random bytes that can be read a second time."""

    def __init__(self, randomness: Randomness) -> None:
        self._randomness = randomness
        self._draws: list[bytes] = []

    def from_start(self) -> Randomness:
        """The same draws again, and fresh ones after the last."""
        index = 0

        def draw(count: int) -> bytes:
            nonlocal index
            if index == len(self._draws):
                self._draws.append(self._randomness(count))
            content, index = self._draws[index], index + 1
            assert len(content) == count  # noqa: S101 - a repeat draws the same sizes
            return content

        return draw
