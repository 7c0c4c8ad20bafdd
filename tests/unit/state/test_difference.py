"""Models as 16-bit differences: the same bits on both sides, an error that stays within its bound and never adds up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedcore.errors import PeerError, UsageError
from fedcore.state import (
    ModelState,
    add_difference,
    can_differ,
    difference_bytes,
    rounded,
    sha256_file,
    write_difference,
)


def state(folder: Path, name: str, **arrays: np.ndarray) -> ModelState:
    ModelState.from_arrays(arrays).save(folder / name)
    return ModelState.open(folder / name)


def values(seed: int, scale: float = 1.0, size: int = 5000) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def bound(base: np.ndarray, model: np.ndarray, sent: np.ndarray) -> np.ndarray:
    old, new, got = (array.astype(np.float64) for array in (base, model, sent))
    return (2**-8 + 2**-22) * np.abs(new - old) + 2**-24 * np.abs(got) + 2.0**-134


def test_both_sides_have_the_same_file(tmp_path: Path) -> None:
    counts = np.arange(7)
    base = state(tmp_path, "base", weight=values(1), counts=counts, half=values(2, size=9).astype(np.float16))
    model = state(
        tmp_path, "model", weight=base["weight"] + values(3, 0.01), counts=counts + 1, half=base["half"] * np.float16(2)
    )
    write_difference(base, model, tmp_path / "difference", tmp_path / "sent")
    add_difference(base, ModelState.open(tmp_path / "difference"), tmp_path / "made")
    sent = ModelState.open(tmp_path / "sent")
    assert (tmp_path / "made").read_bytes() == (tmp_path / "sent").read_bytes()
    assert sha256_file(tmp_path / "sent") == rounded(base, model).sha256()
    assert (sent["counts"] == counts + 1).all()
    assert (sent["half"] == model["half"]).all()
    assert ModelState.open(tmp_path / "difference").layout.nbytes == difference_bytes(model.layout) == 2 * 5000 + 74
    error = np.abs(sent["weight"].astype(np.float64) - model["weight"])
    assert (error <= bound(base["weight"], model["weight"], sent["weight"])).all()
    assert error.max() > 0, "it is rounded"


@pytest.mark.parametrize("scale", [1e-30, 1e-5, 1.0, 1e30])
def test_the_bound_holds_at_every_magnitude(scale: float) -> None:
    base, model = values(1, scale), values(1, scale) + values(2, scale * 1e-3)
    sent = rounded(ModelState.from_arrays({"w": base}), ModelState.from_arrays({"w": model}))["w"]
    assert (np.abs(sent.astype(np.float64) - model) <= bound(base, model, sent)).all()


def test_what_is_sent_is_the_base_and_the_difference_as_bfloat16_in_one_sum() -> None:
    """Whoever had other bits would fetch the whole model instead, and nothing else would tell."""
    base, model = values(1, 1e-3), values(2)
    difference = torch.from_numpy(model - base).to(torch.bfloat16).to(torch.float32).numpy()
    sent = rounded(ModelState.from_arrays({"w": base}), ModelState.from_arrays({"w": model}))["w"]
    np.testing.assert_array_equal(sent, base + difference)


def test_errors_do_not_add_up() -> None:
    """After a hundred steps the error is that of the last one, whose step is a thousand times smaller than the way."""
    model = values(1)
    sent = ModelState.from_arrays({"w": model})
    for step in range(100):
        before, model = sent["w"].astype(np.float64), model + values(10 + step, 0.1 if step < 99 else 1e-4)
        sent = rounded(sent, ModelState.from_arrays({"w": model}))
    assert (np.abs(sent["w"] - model) <= bound(before, model, sent["w"])).all()
    assert np.abs(sent["w"] - model).max() < 1e-5


def test_a_tensor_whose_difference_is_not_finite_goes_whole(tmp_path: Path) -> None:
    base = state(tmp_path, "base", a=values(1), b=np.array([1, np.inf, -3e38], np.float32))
    model = state(tmp_path, "model", a=values(2), b=np.array([2, np.nan, 3e38], np.float32))
    write_difference(base, model, tmp_path / "difference", tmp_path / "sent")
    add_difference(base, ModelState.open(tmp_path / "difference"), tmp_path / "made")
    assert (tmp_path / "made").read_bytes() == (tmp_path / "sent").read_bytes()
    np.testing.assert_array_equal(ModelState.open(tmp_path / "made")["b"], model["b"])
    dtypes = [spec.dtype for spec in ModelState.open(tmp_path / "difference").layout.specs]
    assert dtypes == ["F32", "BF16"] or dtypes == ["BF16", "F32"]


def test_nothing_but_the_same_tensors_has_a_difference(tmp_path: Path) -> None:
    one, other = (ModelState.from_arrays({name: values(1)}) for name in "ab")
    whole = ModelState.from_arrays({"a": np.arange(3)})
    assert not can_differ(one, other)
    assert not can_differ(whole, whole)
    with pytest.raises(UsageError):
        rounded(one, other)


@pytest.mark.parametrize(
    "arrays",
    [
        {"b": values(1)},
        {"w": values(1, size=10)},
        {"w": values(1).astype(np.float64)},
        {"w": values(1), "b": values(1)},
    ],
)
def test_a_difference_to_another_model_is_refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    base = ModelState.from_arrays({"w": values(1)})
    with pytest.raises(PeerError):
        add_difference(base, ModelState.from_arrays(arrays), tmp_path / "made")
    assert not (tmp_path / "made").exists()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's smaps")
def test_little_of_both_files_is_in_memory_once_the_model_is_made(tmp_path: Path) -> None:
    values = np.ones(1 << 21, np.float32)
    for number, name in enumerate(("base", "model")):
        ModelState.from_arrays({"w": values + np.float32(number)}).save(tmp_path / name)
    base, model = (ModelState.open(tmp_path / name) for name in ("base", "model"))
    write_difference(base, model, tmp_path / "difference", tmp_path / "sent")
    difference = ModelState.open(tmp_path / "difference")
    add_difference(base, difference, tmp_path / "made")
    assert resident(tmp_path / "base") + resident(tmp_path / "difference") < 1 << 20
    assert sha256_file(tmp_path / "made") == sha256_file(tmp_path / "sent")


def resident(path: Path) -> int:
    """Bytes of a mapped file that this process has in memory."""
    _, _, rest = Path("/proc/self/smaps").read_text(encoding="utf-8").partition(f"{path}\n")
    return int(rest.partition("Rss:")[2].split()[0]) * 1024
