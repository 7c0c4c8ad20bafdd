"""Sums of encodings decode to the weighted mean, for every width and dtype."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.encodings import following

from fedcore.codec import (
    CodecSettings,
    Decoded,
    Encoding,
    decode,
    encode,
    first_encoding,
)
from fedcore.codec.blocks import BLOCK_FIELDS
from fedcore.codec.encoding import SMALL_TENSOR, scale_groups
from fedcore.codec.names import NAMES_BYTES
from fedcore.codec.scaling import coarseness
from fedcore.codec.scaling.error_bound import error_bound, error_bound_of
from fedcore.codec.scaling.widths import FIRST_SMALL_SCALE
from fedcore.state import ModelState, sha256_file

WIDTHS = (16, 21, 32, 64)


def stream(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def to_bfloat16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Truncation is good enough to make test values."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def model(rng: np.random.Generator, shift: float = 0.0) -> ModelState:
    """One tensor of each kind, with a 0-dimensional, an empty and a multi-block one among them."""

    def real(*shape: int) -> NDArray[np.float64]:
        return rng.standard_normal(shape) * 0.05 + shift

    arrays = {
        "conv.weight": real(7, 3, 3).astype(np.float32),
        "norm.num_batches_tracked": np.array(rng.integers(0, 1000), np.int64),
        "scalar": np.float32(real()).reshape(()),
        "empty": np.zeros((0, 5), np.float32),
        "half": real(1100).astype(np.float16),
        "brain": to_bfloat16(real(1031)),
        "double": real(2, 2),
        "big": real(BLOCK_FIELDS + 5).astype(np.float32),
        "mask": rng.random(6) > 0.5,
        "bytes": rng.integers(0, 256, 9, dtype=np.uint8),
        "huge": rng.integers(1 << 63, (1 << 63) + 1000, 3, dtype=np.uint64),
    }
    return ModelState.from_arrays(arrays, dtypes={"brain": "BF16"})


SCALES = len(scale_groups(model(np.random.default_rng(0)).layout))
"""Three large tensors, and the small ones together."""
WIDEST = (8.0,) * SCALES


def floats(state: ModelState, name: str) -> NDArray[np.float64]:
    """Values of a floating point tensor as float64, flat."""
    if state[name].dtype == np.float64:
        return state[name].reshape(-1)
    return state.float32(name).astype(np.float64)


def run_round(
    encoding: Encoding,
    base: ModelState,
    locals_: list[ModelState],
    examples: list[int],
    out_path: Path | None = None,
) -> Decoded:
    total = np.zeros(encoding.words, np.uint64)
    for index, (local, count) in enumerate(zip(locals_, examples, strict=True)):
        encoded = encode(
            encoding,
            base=base,
            local=local,
            examples=count,
            metrics={"loss": float(index), "per_class": [0.5, index]},
            randomness=stream(index),
        )
        total += encoded.words
    return decode(encoding, total, survivors=len(locals_), base=base, out_path=out_path)


def assert_within_bound(
    encoding: Encoding, base: ModelState, locals_: list[ModelState], examples: list[int], decoded: Decoded
) -> None:
    assert decoded.state is not None
    bound = error_bound_of(encoding, decoded, base, locals_, examples)
    for spec in encoding.floats:
        mean = sum(
            count * (floats(local, spec.name) - floats(base, spec.name))
            for local, count in zip(locals_, examples, strict=True)
        ) / sum(examples)
        error = np.abs(floats(decoded.state, spec.name) - (floats(base, spec.name) + mean))
        assert math.isfinite(bound[spec.name])
        assert error.max(initial=0) <= bound[spec.name], spec.name


@pytest.mark.parametrize("bits", WIDTHS)
def test_round_trip_of_every_dtype(bits: int, tmp_path: Path) -> None:
    base, *locals_ = (model(np.random.default_rng(seed)) for seed in range(4))
    examples = [10, 250, 40]
    encoding = Encoding(
        settings=CodecSettings(w_max=250), layout=base.layout, n_max=5, field_bits=bits, scales=(0.5,) * SCALES
    )
    decoded = run_round(encoding, base, locals_, examples)
    assert decoded.state is not None
    assert decoded.examples == 300
    assert decoded.state.layout == base.layout
    assert_within_bound(encoding, base, locals_, examples, decoded)
    for name in ("norm.num_batches_tracked", "mask", "bytes", "huge"):
        stacked = [[int(value) for value in local[name].reshape(-1)] for local in locals_]
        means = [
            sum(n * v for n, v in zip(examples, column, strict=True)) / 300 for column in zip(*stacked, strict=True)
        ]
        got = [int(value) for value in decoded.state[name].reshape(-1)]
        # One unit of slack above 2^53, where the expectation in float64 is not exact.
        slack = 2048 if name == "huge" else 0.5
        assert all(abs(one - mean) <= slack for one, mean in zip(got, means, strict=True)), name
    assert decoded.metrics["loss"] == pytest.approx((250 + 2 * 40) / 300, abs=1e-9)
    assert decoded.metrics["per_class"] == pytest.approx([0.5, (250 + 2 * 40) / 300], abs=1e-9)
    written = run_round(encoding, base, locals_, examples, tmp_path / "one")
    assert written.state is not None
    assert written.state.path == tmp_path / "one"
    decoded.state.save(tmp_path / "two")
    assert sha256_file(tmp_path / "one") == sha256_file(tmp_path / "two")


@pytest.mark.parametrize("bits", WIDTHS)
def test_no_change_decodes_to_the_same_bits(bits: int) -> None:
    base = model(np.random.default_rng(1))
    encoding = Encoding(
        settings=CodecSettings(), layout=base.layout, n_max=100, field_bits=bits, scales=(8.0,) * SCALES
    )
    decoded = run_round(encoding, base, [base, base, base], [3, 0, 100])
    assert decoded.state is not None
    for name in base:
        assert decoded.state[name].tobytes() == base[name].tobytes(), name


def test_a_client_without_examples_contributes_nothing() -> None:
    base, local, other = (model(np.random.default_rng(seed)) for seed in range(3))
    encoding = first_encoding(CodecSettings(w_max=100), base.layout, 3)
    alone = run_round(encoding, base, [local], [50])
    both = run_round(encoding, base, [local, other], [50, 0])
    assert alone.state is not None
    assert both.state is not None
    for name in base:
        np.testing.assert_array_equal(alone.state[name], both.state[name])


@st.composite
def heavy_tailed(draw: st.DrawFn) -> tuple[int, int, list[list[float]], list[int]]:
    """(field bits, n_max, deltas of each client, examples): tails, zeros, constants, spikes."""
    clients = draw(st.integers(1, 6))
    size = draw(st.integers(1, 9))
    value = st.one_of(
        st.just(0.0),
        st.floats(-1.0, 1.0, width=32),
        st.floats(-(2.0**-20), 2.0**-20, width=32),
        st.sampled_from([1.0, -1.0, 1e-30, -1e-38]),
    )
    rows = st.one_of(st.lists(value, min_size=size, max_size=size), value.map(lambda one: [one] * size))
    deltas = [draw(rows) for _ in range(clients)]
    examples = [draw(st.integers(0, 1000)) for _ in range(clients)]
    examples[0] = max(examples[0], 1)
    return draw(st.sampled_from(WIDTHS)), draw(st.integers(clients, 500)), deltas, examples


@given(heavy_tailed(), st.floats(-100, 100, width=32))
def test_sums_stay_within_the_stated_bound(case: tuple[int, int, list[list[float]], list[int]], start: float) -> None:
    bits, n_max, deltas, examples = case
    size = max(len(deltas[0]), SMALL_TENSOR)
    base = ModelState.from_arrays({"w": np.full(size, start, np.float32)})
    rows = [np.pad(np.array(row, np.float32), (0, size - len(row))) for row in deltas]
    locals_ = [ModelState.from_arrays({"w": base["w"] + row}) for row in rows]
    encoding = Encoding(
        settings=CodecSettings(w_max=1000), layout=base.layout, n_max=n_max, field_bits=bits, scales=(1.01,)
    )
    with patch.object(coarseness, "MOST_ROUNDING", math.inf):  # what is mostly rounding keeps the bound, too
        decoded = run_round(encoding, base, locals_, examples)
    assert_within_bound(encoding, base, locals_, examples, decoded)


def test_the_bound_is_tight_enough_to_mean_something() -> None:
    rng = np.random.default_rng(5)
    base = ModelState.from_arrays({"w": rng.standard_normal(20_000).astype(np.float32)})
    local = ModelState.from_arrays({"w": base["w"] + rng.uniform(-1, 1, 20_000).astype(np.float32)})
    encoding = Encoding(settings=CodecSettings(w_max=100), layout=base.layout, n_max=2, field_bits=16, scales=(1.0,))
    decoded = run_round(encoding, base, [local], [100])
    assert decoded.state is not None
    bound = error_bound(encoding, survivors=1, examples=100, statistics=decoded.statistics, base=base)["w"]
    error = np.abs(decoded.state["w"] - local["w"]).max()
    assert bound / 2 < error <= bound


def test_the_bound_without_statistics_or_base_is_the_general_one() -> None:
    base = model(np.random.default_rng(1))
    encoding = first_encoding(CodecSettings(w_max=100), base.layout, 3)
    bound = error_bound(encoding, survivors=2, examples=100)
    scale = encoding.scales[-1]
    assert scale == FIRST_SMALL_SCALE
    assert bound["conv.weight"] == pytest.approx(2 * encoding.step(SCALES - 1) + 2**-22 * 2 * scale)
    assert bound["mask"] == 0.5
    assert error_bound(encoding, survivors=2, examples=50)["half"] == pytest.approx(2 * bound["half"])
    assert error_bound(encoding, survivors=2, examples=100, base=base)["brain"] > 2 * bound["brain"]


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("n_max", [1, 2, 7, 8, 64, 100])
def test_sums_at_the_edge_of_the_field_are_exact(bits: int, n_max: int) -> None:
    """Everyone at +max, at -max, and beside each other, with n = n_max clients."""
    extremes = np.tile(np.array([1, -1, 1, 1, -1, -1, 0], np.float32), SMALL_TENSOR // 7 + 1)
    base = ModelState.from_arrays({"w": np.zeros_like(extremes), "b": np.zeros(7, np.float32)})
    local = ModelState.from_arrays({"w": extremes, "b": extremes[:7]})
    encoding = Encoding(
        settings=CodecSettings(w_max=64), layout=base.layout, n_max=n_max, field_bits=bits, scales=(1.0, 1.0)
    )
    decoded = run_round(encoding, base, [local] * n_max, [64] * n_max)
    assert decoded.state is not None
    for name in base:
        np.testing.assert_array_equal(decoded.state[name], local[name])
    assert decoded.statistics.clipped == (0, 0)


def test_masks_that_cancel_modulo_2_64_leave_the_sum() -> None:
    base, *locals_ = (model(np.random.default_rng(seed)) for seed in range(3))
    encoding = first_encoding(CodecSettings(w_max=100), base.layout, 2)
    mask = np.frombuffer(os.urandom(8 * encoding.words), np.uint64)
    parts = [
        encode(encoding, base=base, local=local, examples=9, metrics={}, randomness=stream(i))
        for i, local in enumerate(locals_)
    ]
    plain = decode(encoding, parts[0].words + parts[1].words, survivors=2, base=base)
    masked = (parts[0].words + mask) + (parts[1].words - mask)
    unmasked = decode(encoding, masked, survivors=2, base=base)
    assert plain.state is not None
    assert unmasked.state is not None
    assert all(plain.state[name].tobytes() == unmasked.state[name].tobytes() for name in base)


def test_encode_writes_into_a_used_buffer() -> None:
    base, local = (model(np.random.default_rng(seed)) for seed in range(2))
    for bits in WIDTHS:
        encoding = Encoding(
            settings=CodecSettings(), layout=base.layout, n_max=4, field_bits=bits, scales=(8.0,) * SCALES
        )
        out = np.full(encoding.words, 2**64 - 1, np.uint64)
        used = encode(encoding, base=base, local=local, examples=5, metrics={}, randomness=stream(1), out=out)
        fresh = encode(encoding, base=base, local=local, examples=5, metrics={}, randomness=stream(1))
        assert used.words is out
        np.testing.assert_array_equal(used.words, fresh.words)
        assert "words" not in repr(used)


def test_the_difference_of_float16_tensors_is_taken_in_float32() -> None:
    """999.9 is no float16; the nearest is 1000."""
    base = ModelState.from_arrays({"w": np.array([1000.0], np.float16)})
    local = ModelState.from_arrays({"w": np.array([0.1], np.float16)})
    encoding = Encoding(settings=CodecSettings(w_max=1), layout=base.layout, n_max=1, field_bits=32, scales=(1024.0,))
    decoded = run_round(encoding, base, [local], [1])
    assert decoded.state is not None
    assert decoded.state["w"] == local["w"]


def test_l2_clipping_shrinks_the_whole_update_and_is_reported() -> None:
    base = ModelState.from_arrays({"a": np.zeros(3, np.float32), "b": np.zeros(1), "n": np.array(0)})
    local = ModelState.from_arrays({"a": np.array([3, 0, 0], np.float32), "b": np.array([4.0]), "n": np.array(10)})
    codec = CodecSettings(w_max=10, clip_norm=1.0)
    encoding = first_encoding(codec, base.layout, 2)
    decoded = run_round(encoding, base, [local], [10])
    assert decoded.state is not None
    np.testing.assert_allclose(decoded.state["a"], [0.6, 0, 0], atol=1e-6)
    np.testing.assert_allclose(decoded.state["b"], [0.8], atol=1e-6)
    assert int(decoded.state["n"]) == 10
    assert decoded.statistics.shrunk == 1
    bound = error_bound(encoding, survivors=1, examples=10, statistics=decoded.statistics)
    assert math.isinf(bound["a"])
    small = ModelState.from_arrays({"a": np.array([0.5, 0, 0], np.float32), "b": np.array([0.5]), "n": np.array(10)})
    decoded = run_round(encoding, base, [small], [10])
    assert decoded.state is not None
    assert decoded.statistics.shrunk == 0
    np.testing.assert_allclose(decoded.state["b"], [0.5], atol=1e-6)


def test_metrics_alone_need_no_model() -> None:
    encoding = first_encoding(CodecSettings(max_metrics=4), None, 10)
    words = np.zeros(encoding.words, np.uint64)
    for examples, accuracy in ((100, 0.5), (300, 1.0)):
        encoded = encode(
            encoding,
            base=None,
            local=None,
            examples=examples,
            metrics={"accuracy": accuracy, "loss": -accuracy, "confusion": [1, np.float32(2.5)]},
            randomness=stream(1),
        )
        words += encoded.words
    assert encoding.words == 4 + 2 * 4 + NAMES_BYTES // 4
    assert decode(encoding, words, survivors=2, base=None).names == (
        ("accuracy", None),
        ("confusion", 2),
        ("loss", None),
    )
    decoded = decode(encoding, words, survivors=2, base=None)
    assert decoded.metrics == {"accuracy": 0.875, "confusion": [1.0, 2.5], "loss": -0.875}
    assert decoded.state is None
    assert decoded.examples == 400


def test_integer_means_round_to_nearest_with_ties_to_the_global_model() -> None:
    base = ModelState.from_arrays({"n": np.array([0, 0, 0, 0, 10], np.int32), "m": np.array([True, False])})
    up = ModelState.from_arrays({"n": np.array([1, -1, 3, -3, 13], np.int32), "m": np.array([False, True])})
    encoding = first_encoding(CodecSettings(w_max=10), base.layout, 2)
    tied = run_round(encoding, base, [up, base], [5, 5])
    assert tied.state is not None
    assert tied.state["n"].tolist() == [0, 0, 1, -1, 11]
    assert tied.state["m"].tolist() == [True, False]
    won = run_round(encoding, base, [up, base], [6, 4])
    assert won.state is not None
    assert won.state["n"].tolist() == [1, -1, 2, -2, 12]
    assert won.state["m"].tolist() == [False, True]
    assert tied.rounded == won.rounded == ("n", "m")


def test_integers_that_all_clients_count_alike_are_exact_at_any_weights() -> None:
    base = ModelState.from_arrays({"n": np.array([2**53 + 1, -7]), "m": np.array([True, False])})
    up = ModelState.from_arrays({"n": np.array([2**53 + 8, -9]), "m": np.array([False, False])})
    encoding = first_encoding(CodecSettings(w_max=10), base.layout, 3)
    alike = run_round(encoding, base, [up, up, up], [7, 3, 1])
    assert alike.state is not None
    assert {name: values.tolist() for name, values in alike.state.items()} == {
        name: values.tolist() for name, values in up.items()
    }
    assert alike.rounded == ()


def test_errors_average_out_over_rounds() -> None:
    """A weight far below one step still reaches its target: the rounding has no bias."""
    target = np.array([2e-2, -4e-2, 1e-2, 0.0] * 2000, np.float32)
    base = ModelState.from_arrays({"w": np.zeros(8000, np.float32)})
    local = ModelState.from_arrays({"w": target})
    encoding = Encoding(settings=CodecSettings(w_max=10), layout=base.layout, n_max=4000, field_bits=16, scales=(1.0,))
    assert encoding.step(0) > 0.1
    decoded = run_round(encoding, base, [local] * 200, [10] * 200)
    assert decoded.state is not None
    means = decoded.state["w"].reshape(-1, 4).mean(axis=0)
    np.testing.assert_allclose(means, target[:4], atol=1e-4)
    assert means[3] == 0


def test_the_statistics_name_what_the_next_round_needs() -> None:
    base, local = (model(np.random.default_rng(seed)) for seed in range(2))
    codec = CodecSettings(w_max=100)
    decoded = run_round(first_encoding(codec, base.layout, 2), base, [local], [100])
    next_one = following(codec, base.layout, 2, decoded.statistics)
    assert next_one.field_bits == 16
    again = run_round(next_one, base, [local, local], [100, 100])
    assert again.statistics.clipped == (0,) * SCALES
    assert_within_bound(next_one, base, [local, local], [100, 100], again)
