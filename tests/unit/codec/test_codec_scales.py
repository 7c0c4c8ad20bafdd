"""How scales follow magnitudes over rounds: nothing crushed, nothing clipped twice."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.encodings import following
from support.raising import raises

from fedcore.codec import (
    CodecSettings,
    Decoded,
    Encoding,
    MagnitudeStatistics,
    ScaleMemory,
    ScaleTrack,
    check_scales,
    decode,
    encode,
    first_encoding,
)
from fedcore.codec.encoding import SMALL_TENSOR
from fedcore.codec.scaling.scales import HEADROOM
from fedcore.codec.scaling.statistics import (
    power_of_two,
    power_word,
    read_statistics,
    size_fraction_bits,
    size_range,
    size_word,
)
from fedcore.errors import EncodingError, UsageError
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState

W_MAX = 100


def stream(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def state(*tensors: NDArray[np.float32]) -> ModelState:
    """Large tensors, each with a scale of its own: those that are short are filled up with zeros."""
    padded = (np.pad(tensor, (0, max(SMALL_TENSOR - tensor.size, 0))) for tensor in tensors)
    return ModelState.from_arrays({f"t{i}": tensor.astype(np.float32) for i, tensor in enumerate(padded)})


def exchange(
    encoding: Encoding, updates: list[ModelState], examples: list[int] | None = None
) -> tuple[ModelState, MagnitudeStatistics]:
    """One round from an all-zero model, so that the decoded state is the mean update."""
    base = ModelState.from_arrays({name: np.zeros_like(array) for name, array in updates[0].items()})
    words = np.zeros(encoding.words, np.uint64)
    for index, local in enumerate(updates):
        count = examples[index] if examples else W_MAX
        words += encode(encoding, base=base, local=local, examples=count, metrics={}, randomness=stream(index)).words
    decoded = decode(encoding, words, survivors=len(updates), base=base)
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
        encoding = following(codec, updates[0].layout, n, statistics)
    assert widths[0] == 64
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
            encoding = following(codec, updates[0].layout, n, exchange(encoding, updates)[1])
        assert widths == [64] + [32] * (wide - 1) + [16] * (4 - wide)


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
        encoding = following(codec, updates[0].layout, len(maxima), exchange(encoding, updates)[1])
    grown = [state(np.array([value, -value / 3, 0]) * growth) for value in maxima]
    assert exchange(encoding, grown)[1].clipped == (0,)


@pytest.mark.parametrize("n", [4, 16, 64])
def test_in_the_steady_state_the_scale_is_near_the_largest_client(n: int) -> None:
    codec = CodecSettings(w_max=W_MAX)
    updates = [state(np.array([0.5 + 0.5 * (i == 0)])) for i in range(n)]
    encoding = first_encoding(codec, updates[0].layout, n)
    for _ in range(4):
        encoding = following(codec, updates[0].layout, n, exchange(encoding, updates)[1])
    # In small cohorts the bound is the sum, of numbers rounded up to powers of two.
    assert HEADROOM <= encoding.scales[0] <= 2 * HEADROOM * (n**0.25 if n >= 8 else n / 2 + 0.5)


def grown_few(update: ModelState, growth: float) -> ModelState:
    """The same with eight elements that grew: clipped, where that is too much, and still sent."""
    few = update["t0"].copy()
    few[:8] = growth
    return state(few, update["t1"])


@pytest.mark.parametrize("growth", [100.0, 1e6])
def test_clipping_is_counted_and_the_scale_widens_past_it(growth: float) -> None:
    codec = CodecSettings(w_max=W_MAX, clipping="warn")
    rng = np.random.default_rng(0)
    updates = [loud_and_quiet(rng) for _ in range(4)]
    layout = updates[0].layout
    encoding = first_encoding(codec, layout, 4)
    for _ in range(3):
        encoding = following(codec, layout, 4, exchange(encoding, updates)[1])
    grown = [grown_few(update, growth) for update in updates]
    mean, statistics = exchange(encoding, grown)
    assert statistics.clipped == (32, 0)
    assert np.abs(mean["t0"]).max() <= encoding.scales[0] * (1 + 1e-6)
    rounds = 0
    while statistics.clipped[0]:
        encoding = following(codec, layout, 4, statistics)
        statistics = exchange(encoding, grown)[1]
        rounds += 1
    assert rounds <= (1 if growth <= 100 else 3)


def test_an_update_of_which_much_would_be_clipped_is_not_sent() -> None:
    codec = CodecSettings(w_max=W_MAX, clipping="warn")
    for size, most in ((SMALL_TENSOR, 10), (5000, 50), (10, 8)):
        layout = ModelState.from_arrays({"w": np.zeros(size, np.float32)}).layout
        encoding = Encoding(settings=codec, layout=layout, n_max=3, field_bits=16, scales=(1.0,))
        base = ModelState.from_arrays({"w": np.zeros(size, np.float32)})
        for clipped in (most, most + 1):
            values = np.zeros(size, np.float32)
            values[:clipped] = -1.5
            local = ModelState.from_arrays({"w": values})
            sent: dict[str, Any] = {"base": base, "local": local, "examples": W_MAX, "metrics": {}}
            if clipped == most:
                assert encode(encoding, **sent, randomness=stream(1)).clipped == most
                continue
            with raises(EncodingError, check="mostly-clipped", match=f"{clipped} of {size}"):
                encode(encoding, **sent, randomness=stream(1))


def test_scales_double_while_clients_fail_up_to_a_limit() -> None:
    """The failure may be for want of room; and a client that always fails must not take all precision."""
    codec = CodecSettings(w_max=W_MAX, clipping="warn")
    updates = [state(np.array([1.0]))] * 3
    layout = updates[0].layout
    encoding = first_encoding(codec, layout, 4)
    found = []
    for _ in range(10):
        statistics = dataclasses.replace(exchange(encoding, updates)[1], failures=1)
        encoding = following(codec, layout, 4, statistics, settled=bool(found))
        found.append(encoding.scales[0])
    assert found[:3] == [16.0, 32.0, 64.0]
    assert found[-1] == 16 * 16.0
    for _ in range(10):
        encoding = following(codec, layout, 4, exchange(encoding, updates)[1], settled=True)
        found.append(encoding.scales[0])
    assert found[10:13] == [128.0, 64.0, 32.0]
    assert found[-1] == 8.0
    assert encoding.field_bits == 16


def test_fields_are_wide_while_a_scale_is_held_up() -> None:
    codec = CodecSettings(w_max=W_MAX)
    loud, quiet = [state(np.array([1.0]))] * 3, [state(np.array([1e-5]))] * 3
    encoding = following(codec, loud[0].layout, 3, exchange(first_encoding(codec, loud[0].layout, 3), loud)[1])
    widths = [encoding.field_bits]
    for _ in range(20):
        encoding = following(codec, loud[0].layout, 3, exchange(encoding, quiet)[1], settled=True)
        widths.append(encoding.field_bits)
    assert (widths[0], set(widths[1:8]), widths[-1]) == (16, {32}, 16)


def test_a_scale_after_clipping_leaves_room_for_further_growth() -> None:
    codec = CodecSettings(w_max=W_MAX, clipping="warn")
    layout = state(np.zeros(1)).layout
    tight = Encoding(settings=codec, layout=layout, n_max=2, field_bits=16, scales=(1.0,))
    clipped = exchange(tight, [state(np.array([1.5]))] * 2)[1]
    clean = exchange(tight, [state(np.array([0.99]))] * 2)[1]
    after_clip = following(codec, layout, 2, clipped).scales[0] / clipped.peaks[0]
    after_clean = following(codec, layout, 2, clean).scales[0] / clean.peaks[0]
    assert after_clip == pytest.approx(2 * after_clean)


def test_a_silent_tensor_is_scaled_like_the_others_and_can_wake() -> None:
    codec = CodecSettings(w_max=W_MAX)
    rng = np.random.default_rng(0)
    shape = state(np.zeros(50), np.zeros(50), np.zeros(50)).layout
    asleep = [state(rng.standard_normal(50), np.zeros(50), 0.1 * rng.standard_normal(50)) for _ in range(4)]
    encoding = first_encoding(codec, shape, 4)
    for _ in range(3):
        encoding = following(codec, shape, 4, exchange(encoding, asleep)[1])
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
    track = ScaleTrack()
    assert track.encoding(codec, updates[0].layout, 2, metrics=None, failures=0) == encoding
    track.learn(exchange(encoding, updates)[1])
    assert track.encoding(codec, updates[0].layout, 2, metrics=None, failures=0) == encoding


def test_clients_that_are_missing_are_allowed_for() -> None:
    codec = CodecSettings(w_max=W_MAX)
    updates = [state(np.array([1.0]))] * 4
    layout = updates[0].layout
    wide = Encoding(settings=codec, layout=layout, n_max=64, field_bits=16, scales=(2.0,))
    statistics = exchange(wide, updates)[1]
    few = following(codec, layout, 4, statistics).scales[0]
    many = following(codec, layout, 64, statistics).scales[0]
    assert many == pytest.approx(2 * few)
    assert following(codec, layout, 2, statistics).scales[0] == few


def test_a_weight_of_zero_and_unequal_weights_follow_w_times_delta() -> None:
    codec = CodecSettings(w_max=W_MAX)
    updates = [state(np.array([1.0])), state(np.array([100.0]))]
    encoding = Encoding(settings=codec, layout=updates[0].layout, n_max=2, field_bits=32, scales=(1.0,))
    statistics = exchange(encoding, updates, [50, 0])[1]
    assert statistics.sizes[0] == pytest.approx(0.5)
    assert statistics.peaks[0] == pytest.approx(0.5, rel=1e-6)


@given(st.lists(st.floats(0, 5e4), min_size=1, max_size=30), st.integers(30, 4096))
def test_the_peak_is_never_below_the_largest_client(ratios: list[float], n_max: int) -> None:
    beyond = sum(ratio > 1 for ratio in ratios)
    layout = state(np.zeros(1)).layout
    encoding = Encoding(settings=CodecSettings(), layout=layout, n_max=n_max, field_bits=32, scales=(0.5,))
    statistics = read_statistics(
        encoding,
        contributors=len(ratios),
        failures=0,
        large=beyond,
        sizes=[sum(size_word(ratio, n_max) for ratio in ratios)],
        powers=[sum(power_word(ratio, n_max) for ratio in ratios)],
        clipped=[beyond],
        shrunk=0,
    )
    # Beyond 2^14 times the scale the statistic saturates, and the scale grows step by step.
    assert statistics.peaks[0] >= 0.5 * min(max(ratios), 2**14) * (1 - 1e-12)
    assert statistics.peaks[0] <= statistics.sizes[0]
    for word in (size_word(math.inf, n_max), power_word(math.inf, n_max)):
        assert n_max * word < 2**63
    assert statistics.saturated == (statistics.sizes[0] >= 2**13,)


def test_statistics_of_another_model_are_refused() -> None:
    updates = [loud_and_quiet(np.random.default_rng(0))]
    statistics = exchange(first_encoding(CodecSettings(w_max=W_MAX), updates[0].layout, 3), updates)[1]
    with raises(UsageError, check="other-tensors"):
        following(CodecSettings(), state(np.zeros(1)).layout, 3, statistics)


def measured_cohort(ratio: float, n: int) -> MagnitudeStatistics:
    """Statistics of `n` clients with the same largest value, a part `ratio` of the scale."""
    layout = state(np.zeros(1)).layout
    encoding = Encoding(settings=CodecSettings(), layout=layout, n_max=n, field_bits=16, scales=(1.0,))
    return read_statistics(
        encoding,
        contributors=n,
        failures=0,
        large=0,
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
    assert following(CodecSettings(), layout, 1000, measured).field_bits == 16
    assert following(CodecSettings(), layout, 1000, estimated).field_bits == 32


def test_silence_is_zero_and_a_whisper_is_not() -> None:
    assert (size_word(0.0, 8), power_word(0.0, 8)) == (0, 0)
    assert (size_word(1e-200, 8), power_word(1e-200, 8)) == (1, 1)


def test_the_server_keeps_the_rule_that_every_client_checks() -> None:
    """Whoever takes part, whenever, in whatever cohort: no honest client refuses the scales of an honest server."""
    for seed in range(30):
        chance = random.Random(seed)
        plan = EncodingPlan(
            JobSettings(w_max=W_MAX, clipping=chance.choice(["repeat", "warn"]), field_bits=chance.choice([16, 32]))
        )
        layout = state(np.zeros(SMALL_TENSOR), np.zeros(2000)).layout
        memories: dict[int, ScaleMemory] = {}
        size = 1.0
        for exchange in range(1, 40):
            cohort = chance.sample(range(12), chance.choice([3, 8, 12]))
            encoding = plan.encoding("train", layout, len(cohort))
            assert isinstance(encoding, Encoding)
            for client in cohort:
                if chance.random() < 0.8:  # the others drop out before they get the task
                    memories[client] = check_scales(encoding, memories.get(client), exchange=exchange)
            if chance.random() < 0.2:  # the exchange fails
                continue
            size *= chance.choice([0.01, 0.5, 1.0, 1.0, 3.0])
            told = told_by(encoding, chance, size, failures=chance.choice([0, 0, 0, 1]))
            if any(told.clipped) and not encoding.settings.clips:
                plan.learn_overflow("train", encoding, told)
                continue
            plan.learn("train", encoding, Decoded(
                examples=1, failures=told.failures, lost_norm=0.0, metrics={}, names=(), state=None, statistics=told
            ))  # fmt: skip


def told_by(encoding: Encoding, chance: random.Random, size: float, *, failures: int) -> MagnitudeStatistics:
    """What a sum tells of clients with the same updates, up to `size` under each scale."""
    count, n_max = encoding.n_max - failures, encoding.n_max
    ratios = [size * chance.random() / scale for scale in encoding.scales]
    large = count if any(ratio > 1 for ratio in ratios) else 0
    return read_statistics(
        encoding,
        contributors=count,
        failures=failures,
        large=0 if encoding.settings.clips else large,
        sizes=[count * size_word(ratio, n_max, size_range(encoding.field_bits)) for ratio in ratios],
        powers=[count * power_word(ratio, n_max) for ratio in ratios] if n_max >= 8 else [],
        clipped=[count if ratio > 1 else 0 for ratio in ratios],
        shrunk=0,
    )


def test_scales_off_the_rule_are_refused() -> None:
    layout = state(np.zeros(1), np.zeros(1)).layout
    first = first_encoding(CodecSettings(w_max=W_MAX), layout, 3)
    assert first.scales == (16.0, 16.0)
    assert first.field_bits == 64

    def at(*scales: float, bits: int = 16) -> Encoding:
        return dataclasses.replace(first, scales=scales, field_bits=bits)

    for wrong in (at(16.0, 16.0, bits=32), at(16.0, 8.0, bits=64)):
        with raises(EncodingError, check="first-scales"):
            check_scales(wrong, None, exchange=1)
    assert check_scales(at(16.0, 2.0**20, bits=64), None, exchange=1).falls == 0, "after an overflow"
    with raises(EncodingError, check="scale-power-of-two", match=r"'t1'.*0\.3"):
        check_scales(at(8.0, 0.3), None, exchange=7)
    memory = check_scales(first, None, exchange=1)
    for exchange, scale in ((2, 2.0**-9), (3, 2.0**-12), (4, 2.0**-13), (5, 4.0), (6, 2.0), (9, 0.25)):
        memory = check_scales(at(scale, 1.0), memory, exchange=exchange)
    with raises(EncodingError, check="scale-too-low", match=r"'t0'.*0\.0625.*0\.25"):
        check_scales(at(0.0625, 1.0), memory, exchange=10)
    assert check_scales(at(0.125, 64.0), memory, exchange=10).scales == (0.125, 64.0)


def test_small_tensors_cannot_be_asked_for_apart() -> None:
    base = ModelState.from_arrays({"a": np.zeros(1000, np.float32), "b": np.zeros(1), "c": np.zeros(5000)})
    with raises(EncodingError, check="scale-count", match=r"3\D+2"):
        Encoding(settings=CodecSettings(), layout=base.layout, n_max=3, field_bits=16, scales=(1.0, 1.0, 1.0))


@given(st.floats(1e-6, 100.0))
def test_below_eight_clients_a_magnitude_is_told_as_a_power_of_two(value: float) -> None:
    for n_max in (2, 3, 7):
        words = {size_word(ratio, n_max) for ratio in (value, value * 1.0001)}
        told = [math.ldexp(word, -size_fraction_bits(n_max)) for word in words]
        assert all(power_of_two(one) == one and value <= one <= 2.001 * value for one in told)
    layout = state(np.zeros(1)).layout
    sizes = {n: first_encoding(CodecSettings(), layout, n).sections["powers"] for n in (7, 8)}
    assert [part.stop - part.start for part in sizes.values()] == [0, 1]
