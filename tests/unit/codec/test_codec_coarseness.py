"""Rounding that is too much of a tensor's update: neighbours cannot cause it, and what has it is not passed on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.privacy import seeded

from fedcore.codec import CodecSettings, Decoded, Encoding, ScaleTrack, decode, encode
from fedcore.codec.fields import split_words
from fedcore.errors import RoundingTooCoarse, UpdateTooLarge
from fedcore.state import ModelState

CLIENTS, W_MAX, SIZE = 4, 1 << 17, 1500
EXAMPLES = (400, 410, 420, 430)
"""Far below w_max, as the default is."""


def exchange(encoding: Encoding, base: ModelState, locals_: list[ModelState]) -> Decoded:
    total = np.zeros(encoding.words, np.uint64)
    for number, (local, examples) in enumerate(zip(locals_, EXAMPLES, strict=True)):
        total += encode(
            encoding, base=base, local=local, examples=examples, metrics={}, randomness=seeded(number)
        ).words
    return decode(encoding, total, survivors=CLIENTS, base=base)


def updated(base: ModelState, sizes: dict[str, float], seed: int) -> ModelState:
    """Each tensor changed at random by about its size."""
    rng = np.random.default_rng(seed)
    return ModelState.from_arrays(
        {
            name: (base[name] + rng.normal(size, size, base[name].shape)).astype(np.float32)
            for name, size in sizes.items()
        }
    )


def large(encoding_bits: int, scale: float = 1.0) -> tuple[ModelState, Encoding]:
    base = ModelState.from_arrays({"embedding": np.zeros(SIZE, np.float32)})
    settings = CodecSettings(w_max=W_MAX, field_bits=16)
    return base, Encoding(
        settings=settings, layout=base.layout, n_max=CLIENTS, field_bits=encoding_bits, scales=(scale,), metrics=()
    )


def refused(encoding: Encoding, base: ModelState, change: float) -> RoundingTooCoarse:
    """Of a sum to which every client gives the same change of all elements."""
    with pytest.raises(RoundingTooCoarse) as caught:
        exchange(encoding, base, [changed(change)] * CLIENTS)
    return caught.value


def check_held(encoding: Encoding, base: ModelState, change: float) -> None:
    """The sum of the same changes is passed on."""
    decoded = exchange(encoding, base, [changed(change)] * CLIENTS)
    assert decoded.state is not None
    np.testing.assert_allclose(decoded.state["embedding"], change, rtol=0.02)


def changed(change: float) -> ModelState:
    return ModelState.from_arrays({"embedding": np.full(SIZE, change, np.float32)})


@pytest.mark.parametrize("bits", [16, 21, 32])
@pytest.mark.parametrize(("apart", "error"), [(1e3, 2e-7), (1e6, 2e-7), (1e9, 1e-4)])
def test_small_tensors_do_not_suffer_from_a_neighbour(bits: int, apart: float, error: float) -> None:
    """As a BatchNorm over raw columns has them: a variance of income beside the weights of a layer."""
    sizes = {"norm.running_var": apart, "layer.weight": 1.0}
    base = ModelState.from_arrays({name: np.zeros(12, np.float32) for name in sizes})
    track, settings = ScaleTrack(), CodecSettings(w_max=W_MAX, field_bits=bits)
    for number in range(4):
        locals_ = [updated(base, sizes, seed) for seed in range(number, number + CLIENTS)]
        decoded = None
        while decoded is None:
            encoding = track.encoding(settings, base.layout, CLIENTS, metrics=(), failures=0, again=True)
            try:
                decoded = exchange(encoding, base, locals_)
            except UpdateTooLarge as large_one:
                track.learn_overflow(encoding, large_one.statistics)
        track.learn(decoded.statistics)
        assert decoded.state is not None
        for name in sizes:
            exact = np.average([local[name].astype(np.float64) for local in locals_], axis=0, weights=EXAMPLES)
            assert np.linalg.norm(decoded.state[name] - exact) / np.linalg.norm(exact) < error, (name, number)


def test_whole_numbers_in_small_float_tensors_are_exact() -> None:
    """Adam's step counter, beside second moments and a variance that moves by millions."""
    base = ModelState.from_arrays(
        {"step": np.float32([12.0]), "second": np.zeros(5, np.float32), "variance": np.zeros(5, np.float32)}
    )
    local = ModelState.from_arrays(
        {"step": np.float32([16.0]), "second": np.full(5, 1e-3, np.float32), "variance": np.full(5, 3e6, np.float32)}
    )
    encoding = Encoding(
        settings=CodecSettings(w_max=W_MAX),
        layout=base.layout,
        n_max=CLIENTS,
        field_bits=16,
        scales=(2.0**30,),
        metrics=(),
    )
    decoded = exchange(encoding, base, [local] * CLIENTS)
    assert decoded.state is not None
    assert decoded.state["step"].tolist() == [16.0]
    np.testing.assert_allclose(decoded.state["second"], 1e-3, rtol=1e-3)


def test_the_low_digits_of_a_sum_are_not_those_of_its_smallest_term() -> None:
    """One client's value is so much larger that float32 has no digit of it where another's has all of its own."""
    size, large_one, small_one = 200, 2.0**20, 3 * 2.0**-12
    spacing = 2.0**-3  # of float32 at the large one
    base = ModelState.from_arrays({"variance": np.zeros(size, np.float32)})
    encoding = Encoding(
        settings=CodecSettings(w_max=64), layout=base.layout, n_max=2, field_bits=16, scales=(2.0**21,), metrics=()
    )
    total = np.zeros(encoding.words, np.uint64)
    for number, value in enumerate((large_one, small_one)):
        local = ModelState.from_arrays({"variance": np.full(size, value, np.float32)})
        total += encode(encoding, base=base, local=local, examples=64, metrics={}, randomness=seeded(number)).words
    whole, fractions = (part.tolist() for part in split_words(total[encoding.sections["small"]], size))
    offset, bits = 2 * encoding.levels_of(0), encoding.fraction_bits
    exact = [(steps - offset << bits) + rest for steps, rest in zip(whole, fractions, strict=True)]
    low = np.array([one % round(spacing / encoding.step(0)) * encoding.step(0) for one in exact])
    assert np.count_nonzero(np.abs(low - small_one) < small_one / 100) < size / 10
    assert len(set(low)) == size


@pytest.mark.parametrize("steps", [0.01, 0.1, 0.4])
def test_what_is_mostly_rounding_is_not_passed_on(steps: float) -> None:
    """Updates of less than a step each; in wide fields the same updates are fine."""
    base, encoding = large(16)
    change = steps * encoding.step(0) * W_MAX / max(EXAMPLES)
    error = refused(encoding, base, change)
    assert (error.tensor, error.helps) == ("embedding", True)
    check_held(dataclasses.replace(encoding, field_bits=32), base, change)


@pytest.mark.parametrize("change", [1e-9, 1e-10, 1e-12])
def test_an_update_of_which_no_step_is_left_is_repeated_in_fields_that_hold_it(change: float) -> None:
    """As a matrix of zeros has it that a small learning rate trains: a first exchange knows no magnitudes."""
    base = ModelState.from_arrays({"embedding": np.zeros(SIZE, np.float32)})
    track, settings = ScaleTrack(), CodecSettings(w_max=1 << 20)
    first = track.encoding(settings, base.layout, CLIENTS, metrics=(), failures=0, again=True)
    error = refused(first, base, change)
    assert (error.tensor, error.helps) == ("embedding", True)
    track.learn_coarse(first, error.statistics)
    check_held(track.encoding(settings, base.layout, CLIENTS, metrics=(), failures=0, again=True), base, change)


@pytest.mark.parametrize("change", [1e-20, 1e-30, 1e-40])
def test_an_update_too_small_for_any_fields_is_not_passed_on_as_none(change: float) -> None:
    base, encoding = large(64)
    assert not refused(encoding, base, change).helps


def test_what_is_lost_beside_larger_weights_is_no_harm() -> None:
    """Every other weight is zero and changes by less than the roundoff of its neighbours."""
    _, encoding = large(32)
    base = ModelState.from_arrays({"embedding": np.tile(np.float32([1, 0]), SIZE // 2)})
    local = ModelState.from_arrays({"embedding": base["embedding"] + np.tile(np.float32([0, 1e-10]), SIZE // 2)})
    decoded = exchange(encoding, base, [local] * CLIENTS)
    assert decoded.statistics.moved == (0.0,)


def test_in_the_widest_fields_nothing_helps() -> None:
    base, encoding = large(64, scale=2.0**50)
    change = 0.1 * encoding.step(0) * W_MAX / max(EXAMPLES)
    assert not refused(encoding, base, change).helps


def test_what_its_dtype_rounds_off_anyhow_is_no_harm() -> None:
    _, encoding = large(16, scale=2.0**-30)
    base = ModelState.from_arrays({"embedding": np.full(SIZE, 1e6, np.float32)})
    local = ModelState.from_arrays(
        {"embedding": np.full(SIZE, 1e6, np.float32) + np.tile(np.float32([0, 0.0625]), 750)}
    )
    scaled = dataclasses.replace(encoding, scales=(2.0**-2,))
    decoded = exchange(scaled, base, [base, base, base, local])
    assert decoded.state is not None


def test_a_tensor_that_nobody_changed_is_exact() -> None:
    base, encoding = large(16)
    decoded = exchange(encoding, base, [base] * CLIENTS)
    assert decoded.statistics.moved == (0.0,)


@pytest.mark.parametrize(("bits", "wider"), [(16, 32), (21, 32), (32, 64)])
def test_after_a_sum_that_was_too_coarse_the_fields_are_wider(bits: int, wider: int) -> None:
    base, encoding = large(bits)
    peak = np.full(SIZE, encoding.step(0), np.float32)
    local = ModelState.from_arrays({"embedding": peak * np.float32(2 * W_MAX / sum(EXAMPLES))})
    with pytest.raises(RoundingTooCoarse) as caught:
        exchange(encoding, base, [local] * CLIENTS)
    track = ScaleTrack()
    track.encoding(encoding.settings, base.layout, CLIENTS, metrics=(), failures=0)
    track.learn_coarse(encoding, caught.value.statistics)
    settings = dataclasses.replace(encoding.settings, field_bits=min(bits, 32))
    after = track.encoding(settings, base.layout, CLIENTS, metrics=(), failures=0)
    assert after.field_bits == wider


def test_a_mean_that_fades_while_updates_do_not_widens_the_fields_before_it_is_too_coarse() -> None:
    """Sites that pull in different directions, near the point where they agree: each exchange is half the last."""
    rng = np.random.default_rng(7)
    pulls = [0.1 * rng.normal(size=SIZE) for _ in range(CLIENTS)]
    middle = np.average(pulls, axis=0, weights=EXAMPLES)
    track, settings = ScaleTrack(), CodecSettings(w_max=512, field_bits=16)
    weight, widths, apart = np.zeros(SIZE), [], []
    for number in range(24):
        base = ModelState.from_arrays({"w": weight.astype(np.float32)})
        locals_ = [ModelState.from_arrays({"w": (weight + (pull - weight) / 2).astype(np.float32)}) for pull in pulls]
        encoding = track.encoding(settings, base.layout, CLIENTS, metrics=(), failures=0)
        decoded = exchange(encoding, base, locals_)
        track.learn(decoded.statistics)
        assert decoded.state is not None
        weight = decoded.state["w"].astype(np.float64)
        widths.append(encoding.field_bits)
        apart.append(float(np.abs(weight - middle).max()))
        assert number == 0 or encoding.field_bits >= widths[1]
    assert widths[1] == 16
    assert widths[-1] > 16
    assert apart[-1] < 1e-6
