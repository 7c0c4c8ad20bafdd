"""Updates that a device encodes: the processor's words, bit for bit, and its errors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the extra gpu is not installed")

from support.on_device import vector_of, words_of

from fedcore.codec import CodecSettings, DeviceVector, Encoded, Encoding, encode, encode_nothing
from fedcore.codec.blocks import BLOCK_FIELDS
from fedcore.codec.encoding import scale_groups
from fedcore.codec.gpu import device
from fedcore.errors import EncodingError
from fedcore.secagg import MaskTerm, Secret, apply_masks
from fedcore.state import ModelState

WIDTHS = (16, 21, 32, 64)


def model(seed: int, **others: np.ndarray) -> ModelState:
    """Every dtype; tensors, large and small, whose borders lie within words."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {
        "first": rng.standard_normal(1501, dtype=np.float32),
        "count": np.array([seed]),
        "half": rng.standard_normal(1030).astype(np.float16),
        "empty": np.zeros(0, np.float32),
        "short": rng.standard_normal(7, dtype=np.float32),
        "wide": rng.standard_normal(1100),
        "other": rng.standard_normal(33),
        "brain": (rng.standard_normal(1027, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16),
    }
    return ModelState.from_arrays(arrays | others, dtypes={"brain": "BF16"})


BASE, LOCAL = model(1), model(2)


def encoding_of(
    bits: int, base: ModelState = BASE, scale: float = 64.0, rotation: str = "", **settings: Any
) -> Encoding:
    return Encoding(
        settings=CodecSettings(w_max=10, **settings),
        layout=base.layout,
        n_max=3,
        field_bits=bits,
        scales=(scale,) * len(scale_groups(base.layout)),
        failures=1,
        rotation=rotation,
    )


def encoded(encoding: Encoding, *, base: ModelState = BASE, local: ModelState = LOCAL, **options: Any) -> Encoded:
    randomness = random.Random(1).randbytes
    return encode(encoding, base=base, local=local, examples=9, metrics={}, randomness=randomness, **options)


def assert_same(encoding: Encoding, *, vector: DeviceVector | None = None, **options: Any) -> Encoded:
    on_host, vector = encoded(encoding, **options), vector or vector_of(encoding.words)
    on_device = encoded(encoding, device=vector, **options)
    np.testing.assert_array_equal(words_of(vector, encoding.words), on_host.words)
    assert (on_device.clipped, on_device.shrunk, on_device.overflowed) == (
        on_host.clipped,
        on_host.shrunk,
        on_host.overflowed,
    )
    return on_host


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_words_are_those_of_the_processor(bits: int) -> None:
    assert not assert_same(encoding_of(bits), factor=0.75).clipped


@pytest.mark.parametrize("bits", WIDTHS)
def test_elements_at_the_edges_of_what_fields_hold(bits: int) -> None:
    """Ties, steps beside them, subnormal numbers, minus zero and what is beyond the scale, on either side."""
    edges = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-39, 0.5, 1.5, 2.5, -0.5, 2**22 + 0.5, 2.0**23, 2.0**60], np.float32)
    values = np.concatenate([edges, -edges, np.nextafter(edges, np.float32(1)), edges / np.float32(3 << 13)])
    base = ModelState.from_arrays({"weight": np.zeros(4096, np.float32)})
    local = np.zeros(4096, np.float32)
    local[: values.size] = values
    # A scale of 2^q makes the fields' steps powers of two, so that many of the values above are ties.
    encoding = encoding_of(bits, base, scale=float(1 << 14), clipping="warn")
    assert assert_same(encoding, base=base, local=ModelState.from_arrays({"weight": local})).clipped


def test_a_width_that_the_device_does_not_serve_is_made_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The large tensors' fields then come from the host, those of the small ones from the device."""
    monkeypatch.setattr(device, "SERVED_BITS", (32,))
    assert_same(encoding_of(16))


@pytest.mark.parametrize(
    ("bits", "settings"),
    [(8, {"field_bits": 8}), (16, {"upload_fraction": 0.25}), (64, {"upload_fraction": 0.1})],
    ids=["8 bits", "a subset in 16 bits", "a subset in the 64 bits of a first exchange"],
)
def test_an_update_that_is_rotated(bits: int, settings: dict[str, Any]) -> None:
    """The host rotates and rounds the large tensors, the device the small ones behind them; both mask all."""
    encoding = encoding_of(bits, scale=256.0, rotation="5a" * 32, **settings)
    vector = vector_of(encoding.words)
    on_host = assert_same(encoding, vector=vector, factor=0.75)
    assert len(encoding.field_sections) == 2
    # Across the border between what the two of them made.
    border, masks = encoding.sections["small"].start, [MaskTerm(sign=-1, seed=Secret(bytes(range(32))))]
    masked = on_host.words[border - 20 : border + 20].copy()
    apply_masks(masked, masks, offset=border - 20)
    there = np.zeros_like(masked)
    vector.apply_masks(there, masks, offset=border - 20)
    np.testing.assert_array_equal(there, masked)


def test_an_update_too_large_locks_the_sum_there_too() -> None:
    assert assert_same(encoding_of(16, scale=0.5)).overflowed


def test_an_update_that_is_shrunk_to_its_norm() -> None:
    assert assert_same(encoding_of(16, clip_norm=1.0)).shrunk


def test_an_update_of_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second piece begins with a block of its own, whose random bits have a nonce of their own."""
    monkeypatch.setattr(device, "PIECE_FIELDS", BLOCK_FIELDS)
    if not torch.cuda.is_available():  # few programs for the interpreter; no compiler ends with so large a one
        monkeypatch.setattr(device, "PROGRAM_FIELDS", 1 << 19)
    rng = np.random.default_rng(3)
    arrays = [{"a": rng.standard_normal(BLOCK_FIELDS - 2), "b": rng.standard_normal(1100)} for _ in range(2)]
    base, local = (ModelState.from_arrays({name: a.astype(np.float32) for name, a in one.items()}) for one in arrays)
    assert_same(encoding_of(21, base), base=base, local=local, threads=2)


@pytest.mark.parametrize(("value", "where"), [(np.nan, "local"), (-np.inf, "base")])
def test_what_is_not_finite_is_refused_by_the_same_words(value: float, where: str) -> None:
    good, bad = np.zeros((2, 1500), np.float32)
    bad[1499] = value
    states = {name: ModelState.from_arrays({"first": good, "last": good}) for name in ("base", "local")}
    states[where] = ModelState.from_arrays({"first": good, "last": bad})
    encoding = encoding_of(16, states["base"])
    with pytest.raises(EncodingError) as on_host:
        encoded(encoding, **states)
    with pytest.raises(EncodingError) as on_device:
        encoded(encoding, device=vector_of(encoding.words), **states)
    assert str(on_device.value) == str(on_host.value)


def test_nothing_goes_to_the_device_as_well() -> None:
    encoding = encoding_of(16)
    vector: DeviceVector = vector_of(encoding.words)
    words = encode_nothing(encoding, randomness=random.Random(1).randbytes, device=vector).words
    np.testing.assert_array_equal(words_of(vector, encoding.words), words)
