"""Exact differences: the same bits for every dtype, smaller where two models are close, and nothing else is taken."""

from __future__ import annotations

import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcore.errors import PeerError
from fedcore.state import (
    Layout,
    ModelState,
    TensorSpec,
    apply_exact_difference,
    is_exact_difference,
    sha256_file,
    write_exact_difference,
)
from fedcore.state.layout import STORAGE

BLOCK = 1 << 18
"""Elements of which the planes lie side by side."""


def saved(path: Path, state: ModelState) -> ModelState:
    state.save(path)
    return ModelState.open(path)


def both(folder: Path, base: NDArray[Any], model: NDArray[Any], **more: str) -> tuple[ModelState, ModelState]:
    """Two models of one tensor. more: its dtype, if NumPy has none of that name."""
    old, new = (ModelState.from_arrays({"w": array}, dtypes=more) for array in (base, model))
    return saved(folder / "base", old), saved(folder / "model", new)


def trained(size: int, step: float = 1e-3) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights, and those after a step of that size relative to them."""
    rng = np.random.default_rng(3)
    weights = rng.standard_normal(size)
    return weights.astype(np.float32), (weights + step * rng.standard_normal(size)).astype(np.float32)


def remade(folder: Path, base: ModelState) -> str:
    """SHA-256 of what the difference makes."""
    assert is_exact_difference(folder / "difference")
    apply_exact_difference(base, folder / "difference", folder / "again")
    return sha256_file(folder / "again")


@pytest.mark.parametrize("dtype", STORAGE)
def test_a_model_of_each_dtype_is_the_same_to_the_bit(tmp_path: Path, dtype: str) -> None:
    """Close models, of all tensors of more than one block, of one element and of none."""
    rng, width = np.random.default_rng(1), STORAGE[dtype].itemsize
    arrays: list[dict[str, NDArray[Any]]] = [{}, {}]
    for name, shape in {"large": (BLOCK + 5,), "scalar": (), "empty": (0, 3), "few": (2, 3)}.items():
        bits = np.asarray(rng.integers(0, 2 if dtype == "BOOL" else 100, shape), f"<u{width}")
        for state, kept in zip(arrays, (255, 254), strict=True):
            state[name] = np.asarray(bits & kept, bits.dtype).view(STORAGE[dtype])
    states = [
        ModelState(
            Layout(specs=tuple(TensorSpec(name=name, dtype=dtype, shape=array.shape) for name, array in state.items())),
            state,
        )
        for state in arrays
    ]
    base, model = saved(tmp_path / "base", states[0]), saved(tmp_path / "model", states[1])
    assert write_exact_difference(base, model, tmp_path / "difference")
    assert remade(tmp_path, base) == sha256_file(tmp_path / "model") != sha256_file(tmp_path / "base")


@given(
    pairs=st.lists(st.tuples(st.floats(width=32), st.floats(width=32)), min_size=1, max_size=40),
    other=st.integers(0, 2**32 - 1),
)
def test_odd_numbers_among_others_keep_their_bits(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[float, float]], other: int
) -> None:
    """Infinities, zeros of both signs, numbers below the normal ones, and NaN of any payload."""
    folder = tmp_path_factory.mktemp("odd")
    odd = np.array(pairs, np.float32)
    odd[0] = np.array([other, other ^ 0x80000000], np.uint32).view(np.float32)
    rest = np.zeros((4096, 2), np.float32)
    old, new = np.ascontiguousarray(np.concatenate([odd, rest]).T)
    base, _ = both(folder, old, new)
    assert write_exact_difference(base, ModelState.open(folder / "model"), folder / "difference")
    assert remade(folder, base) == sha256_file(folder / "model")


@pytest.mark.parametrize(("step", "least", "most"), [(1e-2, 0.6, 0.7), (1e-3, 0.5, 0.6), (0.0, 0.0, 0.01)])
def test_the_closer_two_models_are_the_smaller_is_the_difference(
    tmp_path: Path, step: float, least: float, most: float
) -> None:
    base, model = both(tmp_path, *trained(BLOCK, step))
    assert write_exact_difference(base, model, tmp_path / "difference")
    assert least < (tmp_path / "difference").stat().st_size / model.layout.nbytes < most


@pytest.mark.parametrize("size", [3, BLOCK, 40 * BLOCK], ids=["tiny", "small", "of many blocks"])
def test_models_that_are_not_close_have_none(tmp_path: Path, size: int) -> None:
    rng = np.random.default_rng(2)
    old, new = (rng.integers(0, 1 << 16, size, dtype=np.uint16) for _ in range(2))
    base, model = both(tmp_path, old, new)
    assert not write_exact_difference(base, model, tmp_path / "difference")
    assert not (tmp_path / "difference").exists()


def test_models_of_two_layouts_have_none(tmp_path: Path) -> None:
    base, model = both(tmp_path, np.zeros(9, np.float32), np.zeros(9, np.float64))
    assert not write_exact_difference(base, model, tmp_path / "difference")
    (nothing, again) = both(tmp_path, np.zeros(0), np.zeros(0))
    assert not write_exact_difference(nothing, again, tmp_path / "difference")


def planes(*parts: tuple[int, bytes]) -> bytes:
    """A file whose planes say that they have so many bytes."""
    return b"fedcore/exact/v1" + b"".join(length.to_bytes(4, "little") + part for length, part in parts)


def deflated(content: bytes) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    return deflate.compress(content) + deflate.flush()


ZEROS = deflated(bytes(1000))
PLANE = len(ZEROS), ZEROS
BOMB = deflated(bytes(900_000))
LIES = {
    "nothing": b"",
    "another file": b"fedcore/exact/v2" + planes(PLANE, PLANE)[16:],
    "one plane": planes(PLANE),
    "too long": planes(PLANE, PLANE) + b"\0",
    "a plane too many": planes(PLANE, PLANE, PLANE),
    "cut off": planes(PLANE, PLANE)[:-1],
    "cut off before a length": planes(PLANE)[:-5],
    "a raw plane cut off": planes(PLANE, (1000, bytes(999))),
    "longer than it says": planes(PLANE, (len(ZEROS) - 1, ZEROS)),
    "longer than the tensor": planes(PLANE, (1001, bytes(1001))),
    "far longer than the tensor": planes(PLANE, (2**32 - 1, b"")),
    "fewer numbers": planes(PLANE, (len(deflated(bytes(999))), deflated(bytes(999)))),
    "more numbers": planes(PLANE, (len(deflated(bytes(1001))), deflated(bytes(1001)))),
    "no numbers": planes(PLANE, (0, b"")),
    "a bomb": planes(PLANE, (len(BOMB), BOMB)),
    "an end within": planes(PLANE, (len(ZEROS) + 1, ZEROS + b"\0")),
    "without an end": planes(PLANE, (len(ZEROS) - 1, ZEROS[:-1])),
    "not deflated": planes(PLANE, (4, b"\xff\xff\xff\xff")),
}


@pytest.mark.parametrize("lie", LIES)
def test_what_is_no_difference_to_the_model_is_refused(tmp_path: Path, lie: str) -> None:
    base, _ = both(tmp_path, np.ones(1000, np.float16), np.ones(1000, np.float16))
    difference = tmp_path / "difference"
    difference.write_bytes(planes(PLANE, PLANE))
    assert remade(tmp_path, base) == sha256_file(tmp_path / "base"), "two planes of zeros are right"
    (tmp_path / "again").unlink()
    difference.write_bytes(LIES[lie])
    with pytest.raises(PeerError):
        apply_exact_difference(base, difference, tmp_path / "again")
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("plane", [deflated(bytes(20_000_000)), bytes(20_000_000)], ids=["a bomb", "a long one"])
def test_no_plane_takes_more_memory_than_the_model_has(tmp_path: Path, plane: bytes) -> None:
    """256 KiB, and not 20 MB."""
    base, _ = both(tmp_path, np.ones(BLOCK, np.float16), np.ones(BLOCK, np.float16))
    (tmp_path / "difference").write_bytes(planes((len(plane), plane)))
    tracemalloc.start()
    with pytest.raises(PeerError):
        apply_exact_difference(base, tmp_path / "difference", tmp_path / "again")
    assert tracemalloc.get_traced_memory()[1] < 8 * BLOCK
    tracemalloc.stop()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's smaps")
def test_little_of_the_models_is_in_memory(tmp_path: Path) -> None:
    base, model = both(tmp_path, *trained(8 * BLOCK))
    assert write_exact_difference(base, model, tmp_path / "difference")
    assert remade(tmp_path, base) == sha256_file(tmp_path / "model")
    assert all(resident(tmp_path / name) < base.layout.nbytes / 4 for name in ("base", "model"))


def resident(path: Path) -> int:
    """Bytes of a mapped file that this process has in memory."""
    _, _, rest = Path("/proc/self/smaps").read_text(encoding="utf-8").partition(f"{path}\n")
    return int(rest.partition("Rss:")[2].split()[0]) * 1024
