"""A site's own images: a folder with one folder of images for each class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedcore.data.types import Split
from fedcore.errors import DataError

_MODES: Final = {1: "L", 3: "RGB"}
_ENDINGS: Final = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def load_image_folder(
    folder: Path | str, *, classes: Sequence[str], size: tuple[int, int], channels: int = 3
) -> tuple[Split, Split]:
    """Training and test part of the images in folder/CLASS: x float32 [n, channels, height, width] in [0, 1], y int64.

    In the order of their names, every fifth image of a class goes to the test part. Raises DataError for a folder or an
    image that cannot be read, for a class that is not among `classes`, and if a part would be empty.

    Args:
        size: height and width, to which every image is resized.
        channels: 3 for colours, 1 for grey.
    """
    root = Path(folder).expanduser()
    if channels not in _MODES:
        raise DataError(f"an image has 1 or 3 channels here, not {channels}")
    if not root.is_dir():
        raise DataError(f"there is no folder {root}", check="no-folder")
    if strange := sorted({folder.name for folder in root.iterdir() if folder.is_dir()} - set(classes)):
        raise DataError(
            f"{root} has a folder {strange[0]!r}, which is no class; there are {', '.join(classes)}",
            check="no-such-class",
        )
    halves: tuple[list[Path], list[Path]] = ([], [])
    for name in classes:
        for number, path in enumerate(_images(root / name)):
            halves[number % 5 == 4].append(path)
    train, test = halves
    if not train or not test:
        raise DataError(
            f"{root} has {len(train) + len(test)} images; of one class there have to be at least 5, in {root}/"
            f"{classes[0]} for instance",
            check="too-few-images",
        )
    return _split(train, classes, size, channels), _split(test, classes, size, channels)


def _images(folder: Path) -> list[Path]:
    """Those of one class, which a site need not have."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _ENDINGS)


def _split(paths: Sequence[Path], classes: Sequence[str], size: tuple[int, int], channels: int) -> Split:
    x = np.stack([load_image(path, size=size, channels=channels) for path in paths])
    return Split(x=x, y=np.array([list(classes).index(path.parent.name) for path in paths], np.int64))


def load_image(path: Path, *, size: tuple[int, int], channels: int = 3) -> NDArray[np.float32]:
    """One image, float32 [channels, height, width] in [0, 1], resized; raises DataError if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            fitted = image.convert(_MODES[channels]).resize((size[1], size[0]))
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image: {error}", check="unreadable-image") from None
    pixels = np.asarray(fitted, np.float32).reshape(*size, channels) / 255
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))
