"""The loaders on the real files: sizes, labels, owners, and the polarity of the ink."""

import gzip
import importlib.util
import shutil
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits as known_digits
from support.raising import raises

from fedcore.data import (
    load_digits,
    load_fashion_mnist,
    load_femnist,
    load_heart_disease,
    load_mnist,
    load_shakespeare,
)
from fedcore.data.published.shakespeare import NO_TARGET, PADDING
from fedcore.errors import ConfigurationError, DataError


def test_digits_are_split_by_class_and_always_alike():
    data, again = load_digits(), load_digits()
    assert data.train.x.shape == (1438, 64)
    assert data.test.x.shape == (359, 64)
    assert data.train.x.dtype == np.float32
    assert (data.train.x.min(), data.train.x.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(data.test.x, again.test.x)
    everything = np.bincount(data.train.y) + np.bincount(data.test.y)
    np.testing.assert_array_equal(everything, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    assert np.abs(np.bincount(data.test.y) - everything / 5).max() <= 0.5


def test_digits_are_those_that_scikit_learn_loads():
    data = load_digits()
    known, labels = known_digits(return_X_y=True)
    pixels = (known / 16.0).astype(np.float32)
    # No two of its images are the same.
    row = {image.tobytes(): number for number, image in enumerate(pixels)}
    places = [[row[image.tobytes()] for image in half.x] for half in (data.train, data.test)]
    assert all(order == sorted(order) for order in places)
    assert sorted(places[0] + places[1]) == list(range(1797))
    for order, half in zip(places, (data.train, data.test), strict=True):
        assert (half.x.dtype, half.y.dtype) == (np.float32, np.int64)
        assert half.x.tobytes() == pixels[order].tobytes()
        np.testing.assert_array_equal(half.y, labels[order])


def test_digits_without_scikit_learn_or_its_file_are_a_clear_error(monkeypatch, tmp_path):
    found = ModuleSpec("sklearn", None, is_package=True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with raises(DataError, check="not-installed", match="scikit-learn"):
        load_digits()
    found.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with raises(DataError, check="unreadable", match=r"digits\.csv\.gz"):
        load_digits()
    kept = Path(tmp_path, "datasets", "data", "digits.csv.gz")
    kept.parent.mkdir(parents=True)
    kept.write_bytes(gzip.compress(b"1,2,3")[:-9])
    with raises(DataError, check="unreadable"):
        load_digits()


@pytest.mark.parametrize(
    ("load", "test_counts"),
    [
        (load_mnist, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]),
        (load_fashion_mnist, [1000] * 10),
    ],
)
def test_mnist_and_fashion_mnist(data_dir, load, test_counts):
    data = load(data_dir)
    assert data.train.x.shape == (60000, 28, 28)
    assert data.test.x.shape == (10000, 28, 28)
    assert data.train.x.dtype == np.uint8
    np.testing.assert_array_equal(np.bincount(data.test.y), test_counts)
    assert np.bincount(data.train.y).sum() == 60000
    # Paper is 0: the corner of nearly every image.
    assert np.median(data.train.x[:, 0, 0]) == 0


def test_femnist_by_writer(data_dir):
    data = load_femnist(data_dir)
    assert (len(data.train), len(data.test)) == (14708, 1685)
    assert len(data.group_names) == 105 == len(np.unique(data.train.groups))
    per_writer = np.bincount(data.train.groups) + np.bincount(data.test.groups, minlength=105)
    assert (per_writer.min(), per_writer.max()) == (5, 184)
    assert set(np.unique(data.train.y)) == set(range(62))
    # LEAF's polarity: paper is 255.
    assert np.median(data.train.x[:, 0, 0]) == 255


def test_shakespeare_by_role(data_dir):
    data = load_shakespeare(data_dir)
    assert len(data.group_names) == 1160
    for half in (data.train, data.test):
        assert half.x.shape == half.y.shape == (len(half), 80)
        assert len(np.unique(half.groups)) == 1160
        # Inside a role, the target of each character is the next input.
        np.testing.assert_array_equal(half.y[:, :-1][half.y[:, 1:] >= 0], half.x[:, 1:][half.y[:, 1:] >= 0])
        np.testing.assert_array_equal(half.x == PADDING, half.y == NO_TARGET)
        assert half.y.max() < data.classes
    known = [int((half.y != NO_TARGET).sum()) for half in (data.train, data.test)]
    # 80 % of the lines, which are of all lengths, is about 80 % of the characters.
    assert known[0] / sum(known) == pytest.approx(0.8, abs=0.02)
    with pytest.raises(ConfigurationError, match="window"):
        load_shakespeare(data_dir, window=0)


def test_heart_disease_has_the_sizes_of_flamby(data_dir):
    data = load_heart_disease(data_dir)
    assert data.group_names == ("cleveland", "hungarian", "switzerland", "va")
    np.testing.assert_array_equal(np.bincount(data.train.groups), [199, 172, 30, 85])
    np.testing.assert_array_equal(np.bincount(data.test.groups), [104, 89, 16, 45])
    assert data.train.x.shape == (486, 13)
    # All 30 training patients of Zurich and Basel are ill.
    assert data.train.y[data.train.groups == 2].all()


@pytest.mark.parametrize("standardise", ["site", "pooled"])
def test_heart_disease_is_standardised_on_training_rows(data_dir, standardise):
    data = load_heart_disease(data_dir, standardise=standardise)
    scopes = [data.train.groups == g for g in range(4)]
    if standardise == "pooled":
        scopes = [np.ones(len(data.train), bool)]
    for rows in scopes:
        x = data.train.x[rows].astype(np.float64)
        np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
        spread = x.std(axis=0, ddof=1)
        # A constant column (no cholesterol was recorded in Zurich and Basel) stays at zero.
        assert np.all(np.isclose(spread, 1, atol=1e-5) | (spread == 0))
    assert np.isfinite(data.test.x).all()


def test_heart_disease_refuses_another_standardisation(data_dir):
    with pytest.raises(ConfigurationError, match="standardise"):
        load_heart_disease(data_dir, standardise="none")


def test_an_altered_file_is_refused(data_dir, tmp_path):
    shutil.copytree(data_dir / "heart_disease", tmp_path / "heart_disease")
    file = tmp_path / "heart_disease" / "processed.va.data"
    file.chmod(0o644)
    file.write_bytes(file.read_bytes().replace(b"?", b"0", 1))
    with raises(DataError, check="wrong-hash", match=r"processed\.va\.data"):
        load_heart_disease(tmp_path)


def test_a_truncated_file_is_refused(data_dir, tmp_path):
    (tmp_path / "femnist").mkdir()
    whole = (data_dir / "femnist" / "femnist_leaf_sample.npz").read_bytes()
    (tmp_path / "femnist" / "femnist_leaf_sample.npz").write_bytes(whole[:-1])
    with raises(DataError, check="wrong-hash"):
        load_femnist(tmp_path)
