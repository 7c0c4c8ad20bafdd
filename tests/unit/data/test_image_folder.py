"""A site's own folder of images."""

import numpy as np
import pytest
from PIL import Image
from support.raising import raises

from fedcore.data import load_image_folder
from fedcore.errors import DataError


@pytest.fixture
def folder(tmp_path):
    for name, grey in (("cat", 0), ("dog", 255)):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.new("L", (20, 10), grey).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_every_fifth_image_of_a_class_is_for_testing(folder):
    train, test = load_image_folder(folder, classes=("dog", "cat"), size=(4, 6), channels=3)
    assert train.x.shape == (8, 3, 4, 6)
    assert train.x.dtype == np.float32
    assert test.y.tolist() == [0, 1]
    assert np.array_equal(train.x.mean(axis=(1, 2, 3)), 1.0 - train.y)


def test_what_cannot_be_read_is_refused_by_name(folder, tmp_path):
    with raises(DataError, check="no-such-class", match="'dog'"):
        load_image_folder(folder, classes=("cat",), size=(4, 4))
    with raises(DataError, check="no-folder"):
        load_image_folder(tmp_path / "nowhere", classes=("cat",), size=(4, 4))
    with raises(DataError, check="too-few-images", match=r"\b0\b"):
        load_image_folder(tmp_path / "cat", classes=("cat",), size=(4, 4))
    (folder / "cat" / "0.png").write_bytes(b"no image")
    with raises(DataError, check="unreadable-image", match=r"0\.png"):
        load_image_folder(folder, classes=("cat", "dog"), size=(4, 4))
