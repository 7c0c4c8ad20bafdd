"""Image data: scikit-learn's digits, MNIST, Fashion-MNIST, CIFAR-10, and LEAF's FEMNIST by writer."""

from __future__ import annotations

import gzip
import importlib.util
import io
import math
import struct
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcore.data.files import CIFAR10, FASHION_MNIST, FEMNIST, MNIST, read_verified
from fedcore.data.types import Dataset, Integers, Split
from fedcore.errors import DataError

_DIGITS_FILE = ("datasets", "data", "digits.csv.gz")
_DIGITS_SPLIT_SEED = 20170228
_DIGITS_TEST_SHARE = 0.2
_IDX_UINT8 = 0x08


def load_digits() -> Dataset:
    """The 1,797 hand-written digits of 8x8 pixels that scikit-learn carries inside its package.

    x is float32 [n, 64] in [0, 1], y in 0..9. The fifth of every class that is the test half is
    fixed here, whatever seed a run has, so that all runs report on the same 359 images.
    Raises DataError. Source: Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, UCI.
    """
    table = _table_of_digits()
    x, y = (table[:, :-1] / 16.0).astype(np.float32), table[:, -1].astype(np.int64)
    test = _stratified_test_rows(y, _DIGITS_TEST_SHARE, _DIGITS_SPLIT_SEED)
    train = np.setdiff1d(np.arange(len(y), dtype=np.int64), test)
    everything = Split(x=x, y=y)
    return Dataset(name="digits", train=everything.take(train), test=everything.take(test), classes=10)


def _table_of_digits() -> NDArray[np.float64]:
    """[1797, 65]: a row for each image, 64 pixels of 0 to 16 and the label.

    scikit-learn takes each process more than a second to import, and every rank reads these: its file is enough.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise DataError("digits are part of scikit-learn: pip install scikit-learn", check="not-installed")
    path = Path(package.submodule_search_locations[0], *_DIGITS_FILE)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            return np.loadtxt(lines, delimiter=",")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"digits are a file of scikit-learn that cannot be read, {path}: {error}", check="unreadable"
        ) from error


def _stratified_test_rows(labels: Integers, share: float, seed: int) -> Integers:
    """Sorted rows [m] of a test half that holds `share` of every class."""
    rng = np.random.default_rng(seed)
    chosen = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        chosen.append(rows[: round(share * len(rows))])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def load_mnist(data_dir: Path | str | None = None) -> Dataset:
    """MNIST: x uint8 [60000, 28, 28] and [10000, 28, 28], ink is 255; y in 0..9.

    Raises DataError. Source: LeCun, Cortes and Burges.
    """
    return _load_idx_dataset("mnist", MNIST, data_dir)


def load_fashion_mnist(data_dir: Path | str | None = None) -> Dataset:
    """Fashion-MNIST: shapes and types of MNIST, ten kinds of garment.

    Raises DataError. Source: Xiao, Rasul and Vollgraf (2017), arXiv 1708.07747.
    """
    return _load_idx_dataset("fashion_mnist", FASHION_MNIST, data_dir)


def _load_idx_dataset(name: str, files: tuple[str, str, str, str], data_dir: Path | str | None) -> Dataset:
    train_x, train_y, test_x, test_y = (parse_idx(read_verified(file, data_dir), file) for file in files)
    return Dataset(
        name=name,
        train=Split(x=train_x, y=train_y.astype(np.int64)),
        test=Split(x=test_x, y=test_y.astype(np.int64)),
        classes=10,
    )


def parse_idx(compressed: bytes, where: str) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes, compressed with gzip, as a read-only array.

    IDX: two zero bytes, a type byte (8 for uint8), the rank, one big-endian uint32 a dimension,
    then the values in C order. Anything else, one byte too many included, is a DataError that
    names `where`. Source: "The IDX file format", LeCun's page of MNIST.
    """
    try:
        raw = gzip.decompress(compressed)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where} is not a complete gzip file: {error}", check="not-gzip") from error
    if len(raw) < 4 or raw[:3] != bytes([0, 0, _IDX_UINT8]):
        raise DataError(f"{where} is not an IDX file of unsigned bytes", check="not-idx")
    rank = raw[3]
    start = 4 + 4 * rank
    if rank == 0 or len(raw) < start:
        raise DataError(f"{where} ends inside its IDX header", check="idx-header")
    shape = struct.unpack_from(f">{rank}I", raw, 4)
    if len(raw) - start != math.prod(shape):
        raise DataError(
            f"{where} holds {len(raw) - start} values where its header says {math.prod(shape)}", check="idx-length"
        )
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def load_femnist(data_dir: Path | str | None = None) -> Dataset:
    """105 writers of FEMNIST: x uint8 [14708, 28, 28] and [1685, 28, 28], y in 0..61.

    Groups are writers. The polarity is LEAF's, paper is 255 and ink 0 (the reverse of MNIST), and
    so is the 90/10 split within each writer. Raises DataError.
    Source: Caldas et al. (2018), LEAF, arXiv 1812.01097; NIST Special Database 19.
    """
    raw = read_verified(FEMNIST, data_dir)
    # allow_pickle stays off: a data file never gets to run code.
    with np.load(io.BytesIO(raw), allow_pickle=False) as archive:
        images, is_test = archive["images"], archive["test"].astype(bool)
        labels = archive["labels"].astype(np.int64)
        writer = archive["writer"].astype(np.int64)
        names = tuple(str(name) for name in archive["writers"])
    everything = Split(x=images, y=labels, groups=writer)
    return Dataset(
        name="femnist",
        train=everything.take(np.flatnonzero(~is_test)),
        test=everything.take(np.flatnonzero(is_test)),
        classes=62,
        group_names=names,
    )


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
        # Members are read from the archive; nothing is unpacked onto the disk.
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
            train, test = _split(archive, _TRAIN_FILES), _split(archive, _TEST_FILES)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{CIFAR10} is not a complete tar.gz archive: {error}", check="incomplete-archive") from error
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
        raise DataError(f"{CIFAR10} holds no {name}", check="not-in-archive") from None
    stream = archive.extractfile(member) if member.isfile() else None
    if stream is None:
        raise DataError(f"{name} in {CIFAR10} is not a file", check="not-a-file")
    content = stream.read()
    if not content or len(content) % _RECORD:
        raise DataError(
            f"{name} in {CIFAR10} has {len(content)} bytes, not a number of records of {_RECORD} bytes",
            check="record-length",
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    if records[:, 0].max() >= _CLASSES:
        raise DataError(
            f"{name} in {CIFAR10} holds label {records[:, 0].max()}, but there are {_CLASSES} classes",
            check="label-range",
        )
    return records
