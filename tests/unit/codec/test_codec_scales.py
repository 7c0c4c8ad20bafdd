"""How scales follow magnitudes over rounds: nothing crushed, nothing clipped twice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedcore.codec import CodecSettings, Encoding, Statistics, decode, encode, first_encoding, next_encoding
from fedcore.codec.statistics import HEADROOM, power_word, read_statistics, size_word
from fedcore.errors import UsageError
from fedcore.state import ModelState

W_MAX = 100


def stream(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def state(*tensors: NDArray[np.float32]) -> ModelState:
    return ModelState.from_arrays({f"t{i}": tensor.astype(np.float32) for i, tensor in enumerate(tensors)})


def exchange(
    encoding: Encoding, updates: list[ModelState], examples: list[int] | None = None
) -> tuple[ModelState, Statistics]:
    """One round from an all-zero model, so that the decoded state is the mean update."""
    base = ModelState.from_arrays({name: np.zeros_like(array) for name, array in updates[0].items()})
    words = np.zeros(encoding.words, np.uint64)
    for index, local in enumerate(updates):
        count = examples[index] if examples else W_MAX
        words += encode(encoding, base=base, local=local, examples=count, metrics={}, randomness=stream(index)).words
    decoded = decode(encoding, words, survivors=len(updates), base=base, metric_names=())
    assert decoded.state is not None
    return decoded.state, decoded.statistics


def loud_and_quiet(rng: np.random.Generator) -> ModelState:
    return state(rng.standard_normal(2000), 1e-6 * rng.standard_normal(2000))


@pytest.mark.parametrize(("n", "tolerance"), [(2, 0.01), (8, 0.02), (100, 0.05)])
def test_a_quiet_layer_keeps_its_relative_precision(n: int, tolerance: float) -> None:
    codec = CodecSettings(w_max=W_MAX)
    rng = np.random.default_rng(n)
    updates = [loud_and_quiet(rng) for _ in range(n)]
    encoding = first_encoding(codec, updates[0].layout, n)
    widths = []
    errors = []
    for _ in range(5):
        mean, statistics = exchange(encoding, updates)
        for name in mean:
            exact = np.mean([update[name].astype(np.float64) for update in updates], axis=0)
            largest = np.mean([np.abs(update[name]).max() for update in updates])
            errors.append(float(np.sqrt(np.mean((mean[name] - exact) ** 2)) / largest))
        widths.append(encoding.field_bits)
        assert statistics.clipped == (0, 0)
        encoding = next_encoding(codec, updates[0].layout, n, statistics)
    assert widths[0] == 32
    assert widths[2:] == [16, 16, 16]
    assert max(errors) < tolerance
    # The two layers differ a million-fold and have the same relative error at the end.
    assert errors[-1] == pytest.approx(errors[-2], rel=0.2)


def test_small_cohorts_need_one_wide_round_large_ones_two() -> None:
    for n, wide in ((8, 1), (100, 2)):
        codec = CodecSettings(w_max=W_MAX)
        rng = np.random.default_rng(n)
        updates = [loud_and_quiet(rng) for _ in range(n)]
        encoding = first_encoding(codec, updates[0].layout, n)
        widths = []
        for _ in range(4):
            widths.append(encoding.field_bits)
            encoding = next_encoding(codec, updates[0].layout, n, exchange(encoding, updates)[1])
        assert widths == [32] * wide + [16] * (4 - wide)


@given(
    st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=12),
    st.floats(1.0, HEADROOM - 0.01),
    st.integers(0, 2),
)
def test_an_update_that_less_than_doubles_is_never_clipped(maxima: list[float], growth: float, warm_up: int) -> None:
    codec = CodecSettings(w_max=W_MAX)
    updates = [state(np.array([value, -value / 3, 0])) for value in maxima]
    encoding = first_encoding(codec, updates[0].layout, len(maxima))
    for _ in range(1 + warm_up):
        encoding = next_encoding(codec, updates[0].layout, len(maxima), exchange(encoding, updates)[1])
    grown = [state(np.array([value, -value / 3, 0]) * growth) for value in maxima]
    assert exchange(encoding, grown)[1].clipped == (0,)


@pytest.mark.parametrize("n", [4, 16, 64])
def test_in_the_steady_state_the_scale_is_near_the_largest_client(n: int) -> None:
    codec = CodecSettings(w_max=W_MAX)
    updates = [state(np.array([0.5 + 0.5 * (i == 0)])) for i in range(n)]
    encoding = first_encoding(codec, updates[0].layout, n)
    for _ in range(4):
        encoding = next_encoding(codec, updates[0].layout, n, exchange(encoding, updates)[1])
    assert HEADROOM <= encoding.scales[0] <= HEADROOM * n**0.25


@pytest.mark.parametrize("growth", [3.0, 100.0, 1e6])
def test_clipping_is_counted_and_the_scale_widens_past_it(growth: float) -> None:
    codec = CodecSettings(w_max=W_MAX)
    rng = np.random.default_rng(0)
    updates = [loud_and_quiet(rng) for _ in range(4)]
    layout = updates[0].layout
    encoding = first_encoding(codec, layout, 4)
    for _ in range(3):
        encoding = next_encoding(codec, layout, 4, exchange(encoding, updates)[1])
    grown = [state(update["t0"] * np.float32(growth), update["t1"]) for update in updates]
    mean, statistics = exchange(encoding, grown)
    clipped = sum(int((np.abs(update["t0"]) > encoding.scales[0]).sum()) for update in grown)
    assert statistics.clipped == (clipped, 0)
    assert clipped > 0
    assert np.abs(mean["t0"]).max() <= encoding.scales[0] * (1 + 1e-6)
    rounds = 0
    while statistics.clipped[0]:
        encoding = next_encoding(codec, layout, 4, statistics)
        statistics = exchange(encoding, grown)[1]
        rounds += 1
    assert rounds <= (1 if growth <= 100 else 3)


def test_a_scale_after_clipping_leaves_room_for_further_growth() -> None:
    codec = CodecSettings(w_max=W_MAX)
    layout = state(np.zeros(1)).layout
    tight = Encoding(settings=codec, layout=layout, n_max=2, field_bits=16, scales=(1.0,))
    clipped = exchange(tight, [state(np.array([1.5]))] * 2)[1]
    clean = exchange(tight, [state(np.array([0.99]))] * 2)[1]
    after_clip = next_encoding(codec, layout, 2, clipped).scales[0] / clipped.peaks[0]
    after_clean = next_encoding(codec, layout, 2, clean).scales[0] / clean.peaks[0]
    assert after_clip == pytest.approx(2 * after_clean)


def test_a_silent_tensor_is_scaled_like_the_others_and_can_wake() -> None:
    codec = CodecSettings(w_max=W_MAX)
    rng = np.random.default_rng(0)
    shape = state(np.zeros(50), np.zeros(50), np.zeros(50)).layout
    asleep = [state(rng.standard_normal(50), np.zeros(50), 0.1 * rng.standard_normal(50)) for _ in range(4)]
    encoding = first_encoding(codec, shape, 4)
    for _ in range(3):
        encoding = next_encoding(codec, shape, 4, exchange(encoding, asleep)[1])
    assert encoding.scales[1] == sorted(encoding.scales)[0]
    awake = [state(update["t0"], 0.05 * rng.standard_normal(50), update["t2"]) for update in asleep]
    mean, statistics = exchange(encoding, awake)
    exact = np.mean([update["t1"] for update in awake], axis=0)
    assert statistics.clipped[1] == 0
    assert np.abs(mean["t1"] - exact).max() < 0.01


def test_when_every_tensor_was_silent_nothing_is_learned() -> None:
    codec = CodecSettings(w_max=W_MAX)
    updates = [state(np.zeros(3), np.zeros(2))] * 2
    encoding = first_encoding(codec, updates[0].layout, 2)
    following = next_encoding(codec, updates[0].layout, 2, exchange(encoding, updates)[1])
    assert following == encoding


def test_clients_that_are_missing_are_allowed_for() -> None:
    codec = CodecSettings(w_max=W_MAX)
    updates = [state(np.array([1.0]))] * 4
    layout = updates[0].layout
    wide = Encoding(settings=codec, layout=layout, n_max=64, field_bits=16, scales=(2.0,))
    statistics = exchange(wide, updates)[1]
    few = next_encoding(codec, layout, 4, statistics).scales[0]
    many = next_encoding(codec, layout, 64, statistics).scales[0]
    assert many == pytest.approx(2 * few)
    assert next_encoding(codec, layout, 2, statistics).scales[0] == few


def test_a_weight_of_zero_and_unequal_weights_follow_w_times_delta() -> None:
    codec = CodecSettings(w_max=W_MAX)
    updates = [state(np.array([1.0])), state(np.array([100.0]))]
    encoding = Encoding(settings=codec, layout=updates[0].layout, n_max=2, field_bits=32, scales=(1.0,))
    statistics = exchange(encoding, updates, [50, 0])[1]
    assert statistics.sizes[0] == pytest.approx(0.5)
    assert statistics.peaks[0] == pytest.approx(0.5, rel=1e-6)
    assert statistics.examples == 50


@given(st.lists(st.floats(0, 5e3), min_size=1, max_size=30), st.integers(30, 4096))
def test_the_peak_is_never_below_the_largest_client(ratios: list[float], n_max: int) -> None:
    layout = state(np.zeros(1)).layout
    encoding = Encoding(settings=CodecSettings(), layout=layout, n_max=n_max, field_bits=32, scales=(0.5,))
    statistics = read_statistics(
        encoding,
        survivors=len(ratios),
        examples=1,
        sizes=[sum(size_word(ratio, n_max) for ratio in ratios)],
        powers=[sum(power_word(ratio, n_max) for ratio in ratios)],
        clipped=[0],
        shrunk=0,
    )
    # Beyond 1,024 times the scale the statistic saturates, and the scale grows step by step.
    assert statistics.peaks[0] >= 0.5 * min(max(ratios), 1024) * (1 - 1e-12)
    assert statistics.peaks[0] <= statistics.sizes[0]
    for word in (size_word(math.inf, n_max), power_word(math.inf, n_max)):
        assert n_max * word < 2**63


def test_statistics_of_another_model_are_refused() -> None:
    updates = [loud_and_quiet(np.random.default_rng(0))]
    statistics = exchange(first_encoding(CodecSettings(w_max=W_MAX), updates[0].layout, 3), updates)[1]
    with pytest.raises(UsageError, match="other tensors"):
        next_encoding(CodecSettings(), state(np.zeros(1)).layout, 3, statistics)


def measured_cohort(ratio: float, n: int) -> Statistics:
    """Statistics of `n` clients with the same largest value, a part `ratio` of the scale."""
    layout = state(np.zeros(1)).layout
    encoding = Encoding(settings=CodecSettings(), layout=layout, n_max=n, field_bits=16, scales=(1.0,))
    return read_statistics(
        encoding,
        survivors=n,
        examples=1,
        sizes=[n * size_word(ratio, n)],
        powers=[n * power_word(ratio, n)],
        clipped=[0],
        shrunk=0,
    )


def test_the_configured_width_is_used_once_magnitudes_are_measured_however_coarse() -> None:
    layout = state(np.zeros(1)).layout
    measured, estimated = measured_cohort(0.1, 1000), measured_cohort(1e-5, 1000)
    assert measured.measured == (True,)
    assert estimated.measured == (False,)
    assert next_encoding(CodecSettings(), layout, 1000, measured).field_bits == 16
    assert next_encoding(CodecSettings(), layout, 1000, estimated).field_bits == 32


def test_silence_is_zero_and_a_whisper_is_not() -> None:
    assert (size_word(0.0, 8), power_word(0.0, 8)) == (0, 0)
    assert (size_word(1e-200, 8), power_word(1e-200, 8)) == (1, 1)
