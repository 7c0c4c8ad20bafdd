"""CIFAR-10's reader on small archives in the official format, made here."""

import hashlib
import io
import tarfile

import numpy as np
import pytest
from support.raising import raises

from fedcore.data import client_data, files, load_cifar10
from fedcore.errors import DataError
from fedcore.training.losses import as_features
from fedcore.training.models import resnet18_groupnorm

TRAIN = [f"cifar-10-batches-bin/data_batch_{number}.bin" for number in range(1, 6)]
TEST = "cifar-10-batches-bin/test_batch.bin"
PER_FILE = 6


def records(seed, n=PER_FILE):
    """Records [n, 3073] of the binary version: a label below ten, then 3,072 pixels."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, 256, (n, 3073), dtype=np.uint8)
    drawn[:, 0] %= 10
    return drawn


def members():
    return {name: records(seed).tobytes() for seed, name in enumerate([*TRAIN, TEST])}


def packed(contents):
    """The bytes of a tar.gz with the given files; None stands for a folder of that name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in {"cifar-10-batches-bin/batches.meta.txt": b"airplane\n", **contents}.items():
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type = tarfile.DIRTYPE
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts an archive where the loader looks, and its digest in the place of the official one."""

    def put(raw):
        known = files.KnownFile(sha256=hashlib.sha256(raw).hexdigest())
        monkeypatch.setitem(files.KNOWN_FILES, files.CIFAR10, known)
        (tmp_path / "cifar10").mkdir()
        (tmp_path / files.CIFAR10).write_bytes(raw)
        return tmp_path

    return put


def test_files_follow_one_another_and_planes_stay_planes(install):
    data = load_cifar10(install(packed(members())))
    assert data.train.x.shape == (5 * PER_FILE, 3, 32, 32)
    assert data.test.x.shape == (PER_FILE, 3, 32, 32)
    assert (data.train.x.dtype, data.train.y.dtype, data.classes) == (np.uint8, np.int64, 10)
    fourth = records(3)
    np.testing.assert_array_equal(data.train.y[3 * PER_FILE : 4 * PER_FILE], fourth[:, 0])
    # Green, row 5, column 7 of the second image of the fourth file.
    assert data.train.x[3 * PER_FILE + 1, 1, 5, 7] == fourth[1, 1 + 1024 + 5 * 32 + 7]
    np.testing.assert_array_equal(data.test.y, records(5)[:, 0])


def test_a_clients_images_go_into_the_resnet(install):
    import torch

    data = load_cifar10(install(packed(members())))
    train, test = client_data(data, "iid", client=1, clients=3, seed=0)
    assert (len(train), len(test)) == (10, 2)
    model = resnet18_groupnorm(data.classes, width=4)
    assert model(as_features(torch.tensor(train.x))).shape == (10, 10)


def without(name):
    contents = members()
    del contents[name]
    return contents


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (without(TRAIN[3]), {"check": "not-in-archive", "match": r"data_batch_4\.bin"}),
        (without(TEST), {"check": "not-in-archive", "match": r"test_batch\.bin"}),
        ({**members(), TRAIN[0]: records(0).tobytes()[:-1]}, {"check": "record-length", "match": "3073"}),
        ({**members(), TRAIN[0]: b""}, {"check": "record-length", "match": r"\b0\b"}),
        ({**members(), TRAIN[0]: bytes([10]) + bytes(3072)}, {"check": "label-range", "match": r"\b10\b"}),
        ({**members(), TRAIN[0]: None}, {"check": "not-a-file"}),
    ],
)
def test_another_archive_is_refused(install, contents, message):
    with raises(DataError, **message):
        load_cifar10(install(packed(contents)))


@pytest.mark.parametrize("keep", [0, 100, -2000])
def test_a_broken_archive_is_refused(install, keep):
    raw = packed(members())
    with raises(DataError, check="incomplete-archive"):
        load_cifar10(install(raw[:keep]))


def test_an_altered_archive_is_refused_before_it_is_opened(install, tmp_path):
    install(packed(members()))
    (tmp_path / files.CIFAR10).write_bytes(packed(without(TEST)))
    with raises(DataError, check="wrong-hash"):
        load_cifar10(tmp_path)


def test_the_official_archive_has_an_address_and_a_digest():
    known = files.KNOWN_FILES[files.CIFAR10]
    assert known.url == "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    assert known.sha256 == "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
