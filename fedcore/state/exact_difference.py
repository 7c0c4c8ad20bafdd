"""A model as the exact difference to one that its receiver has: the same bits, in fewer bytes where two are close.

The bits of each number, read as an integer, minus those of the one before: of two floats that are close this is a small
integer, since floats of one sign are in the order of their bits. Zigzag moves its sign to the lowest bit, so that the
upper bytes of a small one are zero. The first bytes of all numbers of a block are a *plane*, and so are the others;
each goes deflated (RFC 1951) if that saves. The lower planes of a model in training are as good as random.

A file is `_TAG`, and of each `_BLOCK` elements of each tensor, in the order of the layout, the planes from the highest
on: its length in 4 bytes, little endian, and so many bytes, deflated if they are fewer than the elements. Its receiver
knows the layout, that of its own model, and so how much is to come; the SHA-256 of what it makes is the announced one,
or the file was none of its model.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import PeerError
from fedcore.state.files import FileSink, full_disk
from fedcore.state.layout import TensorSpec
from fedcore.state.model import ModelState
from fedcore.system.files import full_disk_named

MOST_OF_MODEL: Final = 0.75
"""Of the bytes of the model: what is hardly smaller saves no time."""
_TAG: Final = b"fedcore/exact/v1"
_BLOCK: Final = 1 << 18
_TRIAL: Final = 32 << 20
"""Bytes of a model after which it shows whether the rest is worth the time."""
_MOST_OF_PLANE: Final = 7 / 8
_SAMPLE: Final = 16
"""Of so many bytes of a plane one is deflated first, since most planes are not worth more."""


def write_exact_difference(base: ModelState, model: ModelState, path: Path) -> bool:
    """Write what makes `model` of `base`, not durable; nothing, and False, unless it is clearly smaller than the model.

    Raises StorageFull.
    """
    size = model.layout.nbytes
    if base.layout != model.layout or not size:
        return False
    read = written = 0
    with full_disk_named(full_disk(path)), path.open("wb") as file:
        file.write(_TAG)
        for spec, start, stop in _blocks(model):
            for plane in _planes(_part(base, spec, start, stop), _part(model, spec, start, stop)):
                packed = _deflated(plane)
                written += file.write(len(packed).to_bytes(4, "little") + packed)
            read += (stop - start) * spec.storage.itemsize
            if written > MOST_OF_MODEL * min(size, max(read, _TRIAL)):
                break
            base.release()
            model.release()
    is_smaller = read == size and written <= MOST_OF_MODEL * size
    if not is_smaller:
        path.unlink()
    return is_smaller


def is_exact_difference(path: Path) -> bool:
    """Whether a file that a server sent in place of a model is one."""
    with path.open("rb") as file:
        return file.read(len(_TAG)) == _TAG


def apply_exact_difference(base: ModelState, difference: Path, path: Path) -> None:
    """Write the model that a difference to `base` makes to `path`, not durable.

    Raises PeerError if it is none to a model of this layout; StorageFull.
    """
    with difference.open("rb") as file, FileSink(path, base.layout, durable=False) as sink:
        if file.read(len(_TAG)) != _TAG:
            raise PeerError("the file is no exact difference")
        for spec, start, stop in _blocks(base):
            planes = [_read_plane(file, stop - start) for _ in range(spec.storage.itemsize)]
            sink.write(spec, start, _sum(_part(base, spec, start, stop), planes).view(spec.storage))
            base.release()
        if file.read(1):
            raise PeerError("the difference is longer than one of models of this layout")


def _blocks(model: ModelState) -> Iterator[tuple[TensorSpec, int, int]]:
    """(tensor, first element, end) of all pieces, in order."""
    for spec in model.layout.specs:
        for start in range(0, spec.size, _BLOCK):
            yield spec, start, min(start + _BLOCK, spec.size)


def _part(state: ModelState, spec: TensorSpec, start: int, stop: int) -> NDArray[Any]:
    """The bits of some elements, as unsigned integers."""
    return state[spec.name].reshape(-1)[start:stop].view(f"<u{spec.storage.itemsize}")


def _planes(base: NDArray[Any], model: NDArray[Any]) -> Iterator[bytes]:
    """Of the zigzag of the difference, from the highest byte on."""
    width = base.itemsize
    difference = np.subtract(model, base)
    sign = difference.view(f"<i{width}") >> (8 * width - 1)
    zigzag = np.left_shift(difference, 1, out=difference)
    zigzag ^= sign.view(base.dtype)
    octets = zigzag.view(np.uint8).reshape(-1, width)
    return (octets[:, byte].tobytes() for byte in reversed(range(width)))


def _sum(base: NDArray[Any], planes: list[bytes]) -> NDArray[Any]:
    """The bits of the model, from those of its base and the planes of the difference."""
    octets = np.empty((base.size, base.itemsize), np.uint8)
    for byte, plane in enumerate(reversed(planes)):
        octets[:, byte] = np.frombuffer(plane, np.uint8)
    zigzag = octets.reshape(-1).view(base.dtype)
    sign = np.negative(zigzag & 1)
    zigzag >>= 1
    zigzag ^= sign
    zigzag += base
    return zigzag


def _deflated(plane: bytes) -> bytes:
    """The plane itself if deflating does not save."""
    for part in (plane[::_SAMPLE], plane):
        deflate = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS, strategy=zlib.Z_RLE)  # codes by counts alone
        packed = deflate.compress(part) + deflate.flush()
        if len(packed) > _MOST_OF_PLANE * len(part):
            return plane
    return packed


def _read_plane(file: BinaryIO, size: int) -> bytes:
    """The next plane, of `size` bytes, whatever the file says: no more is read or inflated."""
    length = int.from_bytes(file.read(4), "little")
    packed = file.read(length) if length <= size else b""
    if len(packed) == size:
        return packed
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        plane = inflate.decompress(packed, size + 1)
    except zlib.error:
        plane = b""
    if len(packed) != length or len(plane) != size or not inflate.eof or inflate.unused_data:
        raise PeerError("the difference is not one between models of this layout")
    return plane
