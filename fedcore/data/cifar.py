"""CIFAR-10 from the archive that its authors publish for C programs: plain bytes, nothing pickled."""

from __future__ import annotations

import io
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcore.data.files import CIFAR10, read_verified
from fedcore.data.types import Dataset, Split
from fedcore.errors import DataError

_FOLDER = "cifar-10-batches-bin"
_TRAIN_FILES = tuple(f"{_FOLDER}/data_batch_{number}.bin" for number in range(1, 6))
_TEST_FILES = (f"{_FOLDER}/test_batch.bin",)
_SHAPE = (3, 32, 32)
_CLASSES = 10
# One byte for the label, then the red, the green and the blue plane, row by row.
_RECORD = 1 + 3 * 32 * 32


def load_cifar10(data_dir: Path | str | None = None) -> Dataset:
    """CIFAR-10: x uint8 [50000, 3, 32, 32] and [10000, 3, 32, 32], red first; y in 0..9.

    Classes: airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck. Reads cifar10/cifar-10-binary.tar.gz
    and fetches it (162 MiB) if it is absent. Raises DataError.
    Source: Krizhevsky (2009), Learning Multiple Layers of Features from Tiny Images.
    """
    raw = read_verified(CIFAR10, data_dir)
    try:
        # Members are read where they lie in the archive; nothing is unpacked onto the disk.
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
            train, test = _split(archive, _TRAIN_FILES), _split(archive, _TEST_FILES)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{CIFAR10} is not a complete tar.gz archive: {error}") from error
    return Dataset(name="cifar10", train=train, test=test, classes=_CLASSES)


def _split(archive: tarfile.TarFile, names: Sequence[str]) -> Split:
    """The records of several files, one after the other."""
    records = np.concatenate([_records(archive, name) for name in names])
    return Split(x=records[:, 1:].reshape(-1, *_SHAPE), y=records[:, 0].astype(np.int64))


def _records(archive: tarfile.TarFile, name: str) -> NDArray[np.uint8]:
    """The records [n, 3073] of one file of the archive."""
    try:
        member = archive.getmember(name)
    except KeyError:
        raise DataError(f"{CIFAR10} holds no {name}") from None
    stream = archive.extractfile(member) if member.isfile() else None
    if stream is None:
        raise DataError(f"{name} in {CIFAR10} is not a file")
    content = stream.read()
    if not content or len(content) % _RECORD:
        raise DataError(f"{name} in {CIFAR10} has {len(content)} bytes, not a number of records of {_RECORD} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    if records[:, 0].max() >= _CLASSES:
        raise DataError(f"{name} in {CIFAR10} holds label {records[:, 0].max()}, but there are {_CLASSES} classes")
    return records
