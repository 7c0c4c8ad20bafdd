"""Compressed uploads: rotated, in few bits, or a subset of the coordinates; against the definition and the bound."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.raising import raises

from fedcore.codec import (
    CodecSettings,
    Decoded,
    Encoding,
    auto_field_bits,
    decode,
    encode,
    encode_nothing,
    first_encoding,
    rotation_seed,
)
from fedcore.codec.rotation import UNIT, Rotation, Unit, cuts, rows_of
from fedcore.codec.scaling.error_bound import error_bound
from fedcore.errors import EncodingError, PeerError, UpdateTooLarge
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState, TensorSpec

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "rotation_v1.json").read_text(encoding="utf-8"))
SEED = rotation_seed("ab" * 32)


def stream(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def unit(size: int, *, number: int = 0, share: float = 1.0) -> Unit:
    spec = TensorSpec(name="w", dtype="F32", shape=(size,))
    return Unit(number=number, index=0, spec=spec, start=0, stop=size, position=0, sent_share=share, per_word=8)


def state(values: NDArray[np.floating]) -> ModelState:
    return ModelState.from_arrays({"w": values.astype(np.float32)})


def encoding_of(size: int, *, n_max: int = 3, scale: float = 1.0, bits: int = 8, fraction: float = 0.0) -> Encoding:
    return Encoding(
        settings=CodecSettings(field_bits=bits, w_max=100, upload_fraction=fraction),
        layout=state(np.zeros(size)).layout,
        n_max=n_max,
        field_bits=bits,
        scales=(scale,),
        rotation=SEED,
    )


def summed(encoding: Encoding, base: ModelState, updates: Sequence[ModelState], *, seed: int = 0) -> Decoded:
    words = np.zeros(encoding.words, np.uint64)
    for index, local in enumerate(updates):
        words += encode(
            encoding, base=base, local=local, examples=100, metrics={}, randomness=stream(seed + index)
        ).words
    return decode(encoding, words, survivors=len(updates), base=base)


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: str(case["size"]))
def test_signs_rows_and_transform_are_those_of_the_vectors(case: dict[str, Any]) -> None:
    assert rotation_seed(case["model"]) == case["seed"]
    one, rotation = unit(case["size"], number=case["number"], share=case["share"]), Rotation(case["seed"])
    assert one.rows == case["rows"]
    flat = rotation.matrix(one)
    flat[: one.size] = (37 * np.arange(one.size) % 101 - 50) / 64
    rotation.rotate(one, flat)
    np.testing.assert_allclose(flat[: len(case["rotated"])], case["rotated"], atol=1e-5)
    assert rotation.subset(one).tolist() == case["sent"]


@pytest.mark.parametrize("size", [1024, 1025, 7850, UNIT - 1, UNIT])
def test_a_rotation_keeps_lengths_spreads_a_spike_and_comes_back(size: int) -> None:
    one, rotation = unit(size), Rotation(SEED)
    assert one.size <= one.rows * one.columns <= size * 17 / 16
    spike = np.zeros(size, np.float32)
    spike[size // 2] = 1
    flat = rotation.matrix(one)
    flat[:size] = spike
    rotation.rotate(one, flat)
    assert np.abs(flat).max() == pytest.approx(one.rows**-0.5)
    assert float(flat @ flat) == pytest.approx(1)
    rotation.rotate_back(one, flat)
    np.testing.assert_allclose(flat[:size], spike, atol=1e-6)


@given(st.integers(1024, 1 << 30))
def test_a_tensor_is_cut_into_units_without_a_gap_or_a_crumb(size: int) -> None:
    count = -(-size // UNIT)
    few = cuts(size) if count < 100 else [*cuts(size)[:3], *cuts(size)[-3:]]
    assert few[0][0] == 0
    assert few[-1][1] == size
    assert all(size // count <= stop - start <= UNIT for start, stop in few)
    assert all(rows_of(stop - start) >= 64 for start, stop in few)


def test_the_rows_of_a_smaller_share_are_among_those_of_a_larger_one() -> None:
    rotation = Rotation(SEED)
    shares = [set(rotation.subset(unit(20_000, number=3, share=share)).tolist()) for share in (0.05, 0.1, 0.5, 1.0)]
    assert all(small < large for small, large in itertools.pairwise(shares))
    assert [len(share) for share in shares] == [52, 103, 512, 1024]
    assert rotation.subset(unit(20_000, number=4, share=0.1)).tolist() != sorted(shares[1])


@pytest.mark.parametrize("fraction", [0.5, 0.25, 0.1, 0.05])
@pytest.mark.parametrize("n", [3, 10, 40, 200])
def test_an_upload_takes_its_part_of_float32_at_every_width(fraction: float, n: int) -> None:
    bits = auto_field_bits(n, fraction)
    codec = CodecSettings(field_bits=bits, upload_fraction=fraction)
    layout = state(np.zeros(200_000)).layout
    for width in (bits, 16, 32, 64):
        if width < bits:
            continue
        encoding = dataclasses.replace(first_encoding(codec, layout, n, metrics=(), rotation=SEED), field_bits=width)
        assert encoding.words * 8 <= 1.03 * fraction * layout.nbytes + 100


def test_auto_takes_what_the_cohort_leaves_room_for() -> None:
    assert [auto_field_bits(n, 0.0) for n in (2, 18, 19, 73, 74, 292, 293, 5000)] == [8, 8, 10, 10, 12, 12, 16, 21]
    assert [auto_field_bits(10, fraction) for fraction in (0.05, 0.25, 0.34, 0.4, 0.5, 1.0)] == [8, 8, 10, 12, 16, 16]
    with raises(EncodingError, check="cohort-too-large"):
        auto_field_bits(1 << 29, 0.0)


@given(
    st.sampled_from([(8, 18), (10, 73), (12, 292), (16, 500)]),
    st.integers(1, 3),
    st.sampled_from(["normal", "spike", "constant", "zero"]),
    st.integers(0, 1 << 32),
)
@settings(max_examples=30)
def test_sums_stay_within_the_stated_bound(width: tuple[int, int], clients: int, kind: str, seed: int) -> None:
    (bits, most), rng, size = width, np.random.default_rng(seed), 1100
    shapes = {"normal": rng.standard_normal(size), "spike": np.eye(1, size)[0], "constant": np.ones(size)}
    rows = [shapes.get(kind, np.zeros(size)) * rng.random() for _ in range(clients)]
    base = state(rng.standard_normal(size))
    updates = [state(base["w"] + row) for row in rows]
    encoding = encoding_of(size, n_max=int(rng.integers(clients, most)), scale=16.0, bits=bits, fraction=1.0)
    decoded = summed(encoding, base, updates)
    assert decoded.state is not None
    bound = error_bound(encoding, survivors=clients, examples=100 * clients, statistics=decoded.statistics, base=base)[
        "w"
    ]
    exact = np.mean([local["w"].astype(np.float64) for local in updates], axis=0)
    assert np.abs(decoded.state["w"] - exact).max() <= bound
    if kind == "zero":
        assert decoded.state["w"].tobytes() == base["w"].tobytes()


@pytest.mark.parametrize("fraction", [0.0, 0.1])
def test_the_expectation_over_rounding_and_subsets_is_the_mean(fraction: float) -> None:
    size, rounds = 4096, 60
    base, update = state(np.zeros(size)), state(np.where(np.arange(size) % 5, 0.1, -0.3))
    total, squares = np.zeros(size), 0.0
    for number in range(rounds):
        encoding = encoding_of(size, scale=2.0, fraction=fraction)
        encoding = dataclasses.replace(encoding, rotation=rotation_seed(f"{number:064x}"))
        decoded = summed(encoding, base, [update] * 2, seed=2 * number)
        assert decoded.state is not None
        total += decoded.state["w"]
        squares += float(np.square(decoded.state["w"] - update["w"]).mean())
    deviation = (squares / rounds / rounds) ** 0.5
    assert np.abs(total / rounds - update["w"]).max() < 6 * deviation


def test_the_error_of_a_subset_vanishes_with_the_mean_and_not_with_each_update() -> None:
    size, rng = 5000, np.random.default_rng(1)
    base, apart = state(np.zeros(size)), rng.standard_normal(size)
    decoded = summed(encoding_of(size, scale=8.0, bits=16, fraction=0.05), base, [state(apart), state(-apart)])
    assert decoded.state is not None
    assert np.abs(decoded.state["w"]).max() < 0.2, "all clients send the same coordinates"


def test_the_words_depend_on_no_number_of_threads_and_clients_that_fail_change_nothing() -> None:
    size, rng = 150_000, np.random.default_rng(2)
    base, local = state(rng.standard_normal(size)), state(rng.standard_normal(size))
    encoding = dataclasses.replace(encoding_of(size, scale=16.0, fraction=0.2), failures=1)
    one, three = (
        encode(encoding, base=base, local=local, examples=7, metrics={}, randomness=stream(1), threads=threads).words
        for threads in (1, 3)
    )
    assert one.tobytes() == three.tobytes()
    alone = decode(encoding, one.copy(), survivors=1, base=base, threads=3).state
    nothing = encode_nothing(encoding, randomness=stream(4)).words
    both = decode(encoding, one + nothing, survivors=2, base=base).state
    assert alone is not None
    assert both is not None
    assert alone["w"].tobytes() == both["w"].tobytes()


def test_what_exceeds_its_scale_closes_the_sum_and_fits_the_next() -> None:
    plan, base = EncodingPlan(JobSettings(field_bits=8, w_max=100)), state(np.zeros(2000))
    updates, widths = [state(np.random.default_rng(i).standard_normal(2000) * 0.01) for i in range(3)], []
    for number in range(4):
        encoding = plan.encoding("train", base.layout, 3, model=f"{number:064x}")
        assert isinstance(encoding, Encoding)
        widths.append(encoding.field_bits)
        if number == 2:
            updates = [state(one["w"] * 100) for one in updates]
            with pytest.raises(UpdateTooLarge) as closed:
                summed(encoding, base, updates)
            plan.learn_overflow("train", encoding, closed.value.statistics)
            encoding = plan.encoding("train", base.layout, 3, model=f"{number:064x}")
            assert isinstance(encoding, Encoding)
        plan.learn("train", encoding, summed(encoding, base, updates))
    assert widths[:3] == [32, 8, 8]


def test_a_malformed_sum_is_refused() -> None:
    base = state(np.zeros(1200))
    for bits in (8, 10, 12):
        encoding = encoding_of(1200, bits=bits, fraction=0.2)
        words = encode(encoding, base=base, local=base, examples=1, metrics={}, randomness=stream(1)).words
        for word, value in ((0, (1 << 60) - 1), (encoding.sections["packed"].stop - 1, 0)):
            wrong = words.copy()
            wrong[word] = value
            with raises(PeerError, check="malformed-update", match="'w'"):
                decode(encoding, wrong, survivors=1, base=base)
        if 64 % bits:
            words[3] |= np.uint64(1 << 63)
            with raises(PeerError, check="padding"):
                decode(encoding, words, survivors=1, base=base)


def test_an_evaluation_may_ask_more_clients_than_narrow_fields_hold() -> None:
    codec = CodecSettings(field_bits=8)
    assert first_encoding(codec, None, 1000, metrics=()).words > 0
    with raises(EncodingError, check="too-few-bits", match="field-bits"):
        first_encoding(codec, state(np.zeros(2000)).layout, 19, rotation=SEED)
