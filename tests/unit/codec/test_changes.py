"""A change makes of the model before what the server decoded, to the bit; what is none is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedcore.codec import CodecSettings, Encoding, decode, encode, rotation_seed
from fedcore.codec.means.change import apply_change, is_change, write_change
from fedcore.errors import FedcoreError
from fedcore.state import ModelState, sha256_file, write_difference

EXAMPLES = (3, 500, 77)
SIZE = 100_000


def arrays(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    return {
        "weight": rng.standard_normal((SIZE // 100, 100)).astype(np.float32),
        "brain": rng.integers(0, 1 << 14, 1500, dtype=np.uint16),
        "double": rng.standard_normal(1100),
        "bias": rng.standard_normal(10).astype(np.float32),
        "count": np.array(7, np.int64),
    }


def model(rng: np.random.Generator) -> ModelState:
    return ModelState.from_arrays(arrays(rng), dtypes={"brain": "BF16"})


def encoding_of(state: ModelState, bits: int, fraction: float = 0.0) -> Encoding:
    settings = CodecSettings(field_bits=bits, w_max=500, upload_fraction=fraction)
    rotation = rotation_seed("ab" * 32) if settings.compresses else ""
    return Encoding(
        settings=settings,
        layout=state.layout,
        n_max=3,
        field_bits=bits,
        scales=(64.0, 2.0**60, 64.0, 64.0),
        rotation=rotation,
    )


def made(folder: Path, bits: int = 16, fraction: float = 0.0) -> tuple[ModelState, ModelState, bool]:
    """A model, the next one, whether there is a change of the one to the other; the files are in `folder`."""
    rng = np.random.default_rng(5)
    model(rng).save(folder / "base")
    base = ModelState.open(folder / "base")
    encoding, total = encoding_of(base, bits, fraction), 0
    for examples in EXAMPLES:
        local = {name: array if name == "brain" else (array * 1.5).astype(array.dtype) for name, array in base.items()}
        update = ModelState.from_arrays(local, dtypes={"brain": "BF16"})
        words = encode(
            encoding, base=base, local=update, examples=examples, metrics={"loss": 0.5}, randomness=os.urandom
        ).words
        total = total + words
    decoded = decode(encoding, np.asarray(total), survivors=3, base=base, out_path=folder / "mean")
    assert decoded.state is not None
    is_there = write_change(
        encoding, np.asarray(total), decoded.state, folder / "change", survivors=3, examples=decoded.examples
    )
    return base, decoded.state, is_there


@pytest.mark.parametrize(("bits", "fraction", "most"), [(16, 0.0, 0.55), (12, 0.0, 0.45), (8, 0.25, 0.31)])
def test_the_change_makes_the_mean_to_the_bit(tmp_path: Path, bits: int, fraction: float, most: float) -> None:
    base, mean, is_there = made(tmp_path, bits, fraction)
    assert is_there
    assert (tmp_path / "change").stat().st_size < most * (tmp_path / "mean").stat().st_size
    change = ModelState.open(tmp_path / "change")
    assert is_change(change)
    apply_change(base, change, tmp_path / "again")
    assert sha256_file(tmp_path / "again") == sha256_file(tmp_path / "mean")
    assert not np.array_equal(mean["weight"], base["weight"])


def test_fields_as_wide_as_the_model_make_no_change(tmp_path: Path) -> None:
    _, _, is_there = made(tmp_path, bits=32)
    assert not is_there
    assert not (tmp_path / "change").exists()


def test_a_difference_in_bfloat16_is_no_change(tmp_path: Path) -> None:
    base, mean, _ = made(tmp_path)
    write_difference(base, mean, tmp_path / "difference", tmp_path / "sent")
    assert not is_change(ModelState.open(tmp_path / "difference"))


def other_terms(change: ModelState, **terms: Any) -> ModelState:
    """The same fields that claim to mean something else."""
    said = json.loads(change["fedcore/terms"].tobytes()) | terms
    tensors = {**change, "fedcore/terms": np.frombuffer(json.dumps(said).encode(), np.uint8)}
    return ModelState.from_arrays(tensors, dtypes={"brain": "BF16"} if "brain" in change else {})


@pytest.mark.parametrize("terms", [{"survivors": 0}, {"survivors": 4}, {"examples": 0}, {"examples": "3"}, {"more": 1}])
def test_terms_that_no_sum_has_are_refused(tmp_path: Path, terms: dict[str, Any]) -> None:
    base, _, _ = made(tmp_path)
    with pytest.raises(FedcoreError):
        apply_change(base, other_terms(ModelState.open(tmp_path / "change"), **terms), tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_change_to_another_layout_is_refused(tmp_path: Path) -> None:
    base, _, _ = made(tmp_path)
    change = ModelState.open(tmp_path / "change")
    with pytest.raises(FedcoreError):
        apply_change(base.only({"weight", "bias"}), change, tmp_path / "again")
    with pytest.raises(FedcoreError):
        apply_change(base, change.only({"fedcore/terms", "bias"}), tmp_path / "again")


def test_fields_beyond_those_of_a_sum_are_refused(tmp_path: Path) -> None:
    base, _, _ = made(tmp_path)
    change = ModelState.open(tmp_path / "change")
    fields = change["fedcore/fields"].copy()
    fields[0] = np.uint64(0xFFFF)
    with pytest.raises(FedcoreError):
        apply_change(base, ModelState.from_arrays({**change, "fedcore/fields": fields}), tmp_path / "again")
