"""Data files: their folder, their SHA-256, and the download of absent ones.

A file is read once, and the bytes that were hashed are the bytes that are parsed, so a file that
changes between check and use changes nothing.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import httpx

from fedcore.errors import DataError
from fedcore.system.files import replacing

DATA_VARIABLE = "FEDCORE_DATA"
_TIMEOUT_SECONDS = 60.0


def _idx_files(folder: str) -> tuple[str, str, str, str]:
    """Training images, training labels, test images, test labels."""
    return (
        f"{folder}/train-images-idx3-ubyte.gz",
        f"{folder}/train-labels-idx1-ubyte.gz",
        f"{folder}/t10k-images-idx3-ubyte.gz",
        f"{folder}/t10k-labels-idx1-ubyte.gz",
    )


MNIST = _idx_files("mnist")
FASHION_MNIST = _idx_files("fashion_mnist")
FEMNIST = "femnist/femnist_leaf_sample.npz"
SHAKESPEARE_ROLES = "shakespeare/roles.jsonl.gz"
CIFAR10 = "cifar10/cifar-10-binary.tar.gz"
HEART_SPLIT = "heart_disease/flamby_split.csv"

UCI_HOSPITALS = tuple(
    f"heart_disease/processed.{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFile:
    """The SHA-256 of a data file, and its public address if it has one."""

    sha256: str
    url: str | None = None


def _from(mirror: str, names: Sequence[str], *digests: str) -> dict[str, KnownFile]:
    return {
        name: KnownFile(sha256=digest, url=mirror + name.rpartition("/")[2])
        for name, digest in zip(names, digests, strict=True)
    }


# MNIST, Fashion-MNIST, CIFAR-10 and the UCI files also have the MD5 values that their publishers state
# (torchvision/datasets/mnist.py, zalandoresearch/fashion-mnist README, the CIFAR-10 page, FLamby's heart disease).
KNOWN_FILES: dict[str, KnownFile] = {
    **_from(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",  # the mirror that torchvision uses first
        MNIST,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    **_from(
        # The address in its README: plain HTTP, because the host has no certificate. The digests make it safe.
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        FASHION_MNIST,
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
    **_from(
        "https://www.cs.toronto.edu/~kriz/",
        [CIFAR10],
        # MD5 on its page: c32a1d4ab5d03f1284b67883e8d87530; 170,052,171 bytes.
        "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    ),
    **_from(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease/",
        UCI_HOSPITALS,
        "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
        "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
        "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
        "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
    ),
    HEART_SPLIT: KnownFile(sha256="319fb904aa07e6b64f4aa8ba0b81bc9391b36296e86981e44817901c81424903"),
    FEMNIST: KnownFile(sha256="6ea620b1d17b8a982917d327a069eb2167d1d4bb22dd93c72925454fa7444d3a"),
    SHAKESPEARE_ROLES: KnownFile(sha256="4bd290479a008c8f3f8f4ba32fe2f71921b589afe3a61603c9ddb6b488f92f9b"),
}


def data_folder(data_dir: Path | str | None = None) -> Path:
    """The folder that holds the data sets: the argument, else FEDCORE_DATA, else a user cache."""
    if data_dir is not None:
        return Path(data_dir).expanduser()
    if named := os.environ.get(DATA_VARIABLE):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "fedcore" / "data"


def read_verified(name: str, data_dir: Path | str | None = None) -> bytes:
    """The bytes of a known file, fetched first if it is absent and has a public address.

    Raises DataError if the file is absent and cannot be fetched, cannot be read, or has another SHA-256 than it must.

    Args:
        name: path below the data folder, a key of KNOWN_FILES.
    """
    known = KNOWN_FILES[name]
    path = data_folder(data_dir) / name
    if not path.exists():
        if known.url is None:
            raise DataError(
                f"{path} is missing, and it has no public address to download it from: "
                f"set {DATA_VARIABLE} (or --data-dir) to a folder that holds {name}",
                check="no-address",
            )
        download(known.url, path, known.sha256)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != known.sha256:
        raise DataError(
            f"{path} is not the file it should be (SHA-256 {digest}, expected {known.sha256}): delete it or restore it",
            check="wrong-hash",
        )
    return content


def download(url: str, path: Path, sha256: str) -> None:
    """Fetch `url` to `path`; the file appears there only when it is complete and verified.

    Raises DataError, which says what to set if there is no network.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, mode=0o600) as file:
            digest = _stream(url, file)
            if digest != sha256:
                raise DataError(f"{url} sent other content (SHA-256 {digest}, expected {sha256})", check="wrong-hash")
    except httpx.HTTPError as error:
        raise DataError(
            f"{path} is missing and {url} cannot be fetched ({type(error).__name__}): without a "
            f"network, set {DATA_VARIABLE} (or --data-dir) to a folder that holds "
            f"{path.parent.name}/{path.name}",
            check="not-fetched",
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}", check="not-written") from error


def _stream(url: str, file: BinaryIO) -> str:
    """Write the body of `url` to `file`; the SHA-256 of what was written, in hex."""
    digest = hashlib.sha256()
    with httpx.stream("GET", url, timeout=_TIMEOUT_SECONDS, follow_redirects=True) as response:
        response.raise_for_status()
        for chunk in response.iter_raw():
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()
