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
from fedcore.codec.scaling.ladder import NARROW_LADDER, SMALL_LADDER, WIDE_LADDER, Ladder
from fedcore.codec.scaling.scales import HEADROOM
from fedcore.codec.scaling.statistics import read_rungs, read_statistics
from fedcore.errors import EncodingError, RoundingTooCoarse, UpdateTooLarge, UsageError
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
    values = 0.1 * rng.standard_normal(2000)
    return state(values, 2.0**-12 * rng.permutation(values))


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
    assert widths[0] == 32
    assert widths[2:] == [16, 16, 16]
    assert max(errors) < tolerance
    # The two layers differ four thousand-fold and have the same relative error at the end.
    assert errors[-1] == pytest.approx(errors[-2], rel=0.2)


def test_one_round_is_wide_in_cohorts_of_any_size() -> None:
    for n in (2, 8, 100):
        codec = CodecSettings(w_max=W_MAX)
        rng = np.random.default_rng(n)
        updates = [loud_and_quiet(rng) for _ in range(n)]
        encoding = first_encoding(codec, updates[0].layout, n)
        widths = []
        for _ in range(4):
            widths.append(encoding.field_bits)
            encoding = following(codec, updates[0].layout, n, exchange(encoding, updates)[1])
        assert widths == [32, 16, 16, 16]


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
    assert HEADROOM <= encoding.scales[0] <= 2 * HEADROOM


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
    assert encoding.field_bits == 16
    with pytest.raises(RoundingTooCoarse) as refused:  # nothing is left of them in narrow fields
        exchange(encoding, quiet)
    encoding = following(codec, loud[0].layout, 3, refused.value.statistics, settled=True)
    widths = [encoding.field_bits]
    for _ in range(20):
        encoding = following(codec, loud[0].layout, 3, exchange(encoding, quiet)[1], settled=True)
        widths.append(encoding.field_bits)
    assert (set(widths[:7]), widths[-1]) == ({32}, 16)


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
    asleep = [state(0.1 * rng.standard_normal(50), np.zeros(50), 0.01 * rng.standard_normal(50)) for _ in range(4)]
    encoding = first_encoding(codec, shape, 4)
    for _ in range(3):
        encoding = following(codec, shape, 4, exchange(encoding, asleep)[1])
    assert encoding.scales[1] == sorted(encoding.scales)[0]
    awake = [state(update["t0"], 0.005 * rng.standard_normal(50), update["t2"]) for update in asleep]
    mean, statistics = exchange(encoding, awake)
    exact = np.mean([update["t1"] for update in awake], axis=0)
    assert statistics.clipped[1] == 0
    assert np.abs(mean["t1"] - exact).max() < 0.001


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
    assert statistics.peaks == (0.5,)


@pytest.mark.parametrize("ladder", [NARROW_LADDER, WIDE_LADDER, SMALL_LADDER])
@given(st.lists(st.floats(0, 5e4), min_size=1, max_size=30), st.integers(0, 2**32))
def test_a_sum_reads_as_the_highest_rung(ladder: Ladder, ratios: list[float], seed: int) -> None:
    """But for what chance makes of it, which is a rung lower once in 64 times."""
    rungs = [ladder.rung_of(ratio) for ratio in ratios]
    highest = max(rungs)
    assert max(ratios) <= ladder.top_of(highest) or highest == len(ladder.tops)
    reads = [summed(ladder, rungs, stream(seed + number)) for number in range(5)]
    assert all(read <= highest for read in reads)
    assert sorted(reads)[2] == highest


def summed(ladder: Ladder, rungs: list[int], randomness: Callable[[int], bytes]) -> int:
    elements = [ladder.element(rung, randomness) for rung in rungs]
    assert all(len(element) == ladder.words for element in elements)
    return ladder.read([sum(column) % 2**64 for column in zip(*elements, strict=True)])


@pytest.mark.parametrize("ladder", [NARROW_LADDER, WIDE_LADDER])
def test_rungs_are_powers_of_two_around_what_is_usual(ladder: Ladder) -> None:
    for exponent in range(-9, 3):
        rung = ladder.rung_of(2.0**exponent)
        assert ladder.top_of(rung) == 2.0**exponent or exponent > 1
        assert (rung <= ladder.fitting) == (exponent <= 0)
    assert ladder.rung_of(1.0001) == ladder.fitting + 1
    assert ladder.rung_of(math.inf) == len(ladder.tops)
    assert (ladder.rung_of(0.0), ladder.top_of(0)) == (0, 0.0)
    assert ladder.rung_of(1e-200) == 1


def test_a_sum_tells_the_highest_rung_and_nothing_of_the_others() -> None:
    """Two cohorts with one highest rung, one client on it or all of them: the words of their sums are alike."""
    ladder, chance, count = NARROW_LADDER, random.Random(1), 20_000
    counts = []
    for rungs in ([9, 1, 1], [9, 9, 9]):
        sums = [ladder.element(9, chance.randbytes)[0] for _ in range(count)]
        for rung in rungs[1:]:
            sums = [(one + ladder.element(rung, chance.randbytes)[0]) % 2**64 for one in sums]
        # The six bits that rung 9 has and rung 8 has not, the six above them, and the highest six.
        counts.append([np.bincount([one >> shift & 63 for one in sums], minlength=64) for shift in (10, 16, 58)])
    for one, other in zip(*counts, strict=True):
        assert float(((one - other) ** 2 / (one + other)).sum()) < 63 + 5 * math.sqrt(2 * 63)


def test_statistics_of_another_model_are_refused() -> None:
    updates = [loud_and_quiet(np.random.default_rng(0))]
    statistics = exchange(first_encoding(CodecSettings(w_max=W_MAX), updates[0].layout, 3), updates)[1]
    with raises(UsageError, check="other-tensors"):
        following(CodecSettings(), state(np.zeros(1)).layout, 3, statistics)


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
    count = encoding.n_max - failures
    ratios = [size * chance.random() / scale for scale in encoding.scales]
    large = count if any(ratio > 1 for ratio in ratios) else 0
    clips = encoding.settings.clips
    return read_statistics(
        encoding,
        contributors=count,
        failures=failures,
        large=0 if clips else large,
        peaks=[
            word
            for ladder, ratio in zip(encoding.ladders, ratios, strict=True)
            for word in ladder.element(ladder.rung_of(ratio), chance.randbytes)
        ],
        clipped=[count if ratio > 1 else 0 for ratio in ratios] if clips else [],
        shrunk=0,
    )


def test_scales_off_the_rule_are_refused() -> None:
    layout = state(np.zeros(1), np.zeros(1)).layout
    first = first_encoding(CodecSettings(w_max=W_MAX), layout, 3)
    assert first.scales == (1.0, 1.0)
    assert first.field_bits == 32

    def at(*scales: float, bits: int = 16) -> Encoding:
        return dataclasses.replace(first, scales=scales, field_bits=bits)

    for wrong in (at(1.0, 1.0, bits=21), at(1.0, 0.5, bits=32), at(16.0, 0.5, bits=64)):
        with raises(EncodingError, check="first-scales"):
            check_scales(wrong, None, exchange=1)
    assert check_scales(at(1.0, 2.0**20, bits=64), None, exchange=1).falls == 0, "after an overflow"
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


def test_small_tensors_have_no_statistics() -> None:
    """But for one bit: whether any of them exceeded their scale, which has 2^12 times the room of their mean."""
    base = ModelState.from_arrays({"a": np.zeros(3, np.float32), "b": np.zeros(5, np.float32)})
    track = ScaleTrack()
    for number in range(6):
        size = 1e6 if number == 4 else 1.0
        local = ModelState.from_arrays({"a": np.full(3, size, np.float32), "b": np.full(5, 0.01, np.float32)})
        encoding = track.encoding(CodecSettings(w_max=W_MAX), base.layout, 3, metrics=(), failures=0)
        sent = [
            encode(encoding, base=base, local=local, examples=W_MAX, metrics={}, randomness=stream(seed)).words
            for seed in range(3)
        ]
        assert encoding.sections["peaks"].stop - encoding.sections["peaks"].start == 1
        rung = read_rungs(encoding, sent[0][encoding.sections["peaks"]].tolist())
        assert rung == [int(number == 4)]
        total = np.sum(sent, axis=0, dtype=np.uint64)
        if number == 4:
            with pytest.raises(UpdateTooLarge) as refused:
                decode(encoding, total, survivors=3, base=base)
            assert refused.value.statistics.peaks == (0.0,)
            track.learn_overflow(encoding, refused.value.statistics)
            continue
        assert number == 0 or 2.0**12 <= encoding.scales[0] / 3 <= 2.0**40
        track.learn(decode(encoding, total, survivors=3, base=base).statistics)


@pytest.mark.parametrize("size", [1e-12, 1e-9, 1e-4, 1.0, 1e4, 1e9, 1e12])
@pytest.mark.parametrize("examples", [1, 400])
def test_small_tensors_of_any_size_are_exact_to_float32(size: float, examples: int) -> None:
    """From the second exchange on; the first knows nothing, and has 2^-57 in the usual units."""
    rng, base = np.random.default_rng(3), ModelState.from_arrays({"b": np.zeros(64, np.float32)})
    plan = EncodingPlan(JobSettings())
    for number in range(4):
        locals_ = [ModelState.from_arrays({"b": rng.normal(0, size, 64).astype(np.float32)}) for _ in range(4)]
        decoded = None
        while decoded is None:
            encoding = plan.encoding("train", base.layout, 4)
            assert isinstance(encoding, Encoding)
            words = [
                encode(encoding, base=base, local=one, examples=examples, metrics={}, randomness=stream(seed)).words
                for seed, one in enumerate(locals_)
            ]
            total = np.sum(words, axis=0, dtype=np.uint64)
            try:
                decoded = decode(encoding, total, survivors=4, base=base)
            except UpdateTooLarge as error:
                plan.learn_overflow("train", encoding, error.statistics)
            except RoundingTooCoarse as error:
                assert (number, size, examples) == (0, 1e-12, 1)
                plan.learn_coarse("train", encoding, error.statistics)
                break
        if decoded is None or decoded.state is None:
            continue
        plan.learn("train", encoding, decoded)
        exact = np.mean([one["b"].astype(np.float64) for one in locals_], axis=0)
        error = np.linalg.norm(decoded.state["b"] - exact) / np.linalg.norm(exact)
        assert error < 2.0**-23 or number == 0, (number, error)
