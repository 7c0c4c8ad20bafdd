"""The distance of two models as their sketches tell it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import EncodingError
from fedcore.state import ModelState, Sketch, Sketcher
from fedcore.state.sketch import BUCKETS

SIZE = 3000
SHARE = 0.15
"""By how much a distance may be wrong: five standard errors."""


def state(values: np.ndarray, **others: np.ndarray) -> ModelState:
    return ModelState.from_arrays({"w": values, **others})


def sketch(sketcher: Sketcher, model: ModelState) -> Sketch:
    made = sketcher.sketch(model)
    assert made is not None
    return made


DIFFERENCES = st.one_of(
    st.integers(0, 2**32).map(lambda seed: np.random.default_rng(seed).standard_normal(SIZE)),
    st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from([1.0, -1.0, 1e3]), min_size=1, max_size=8).map(
        lambda elements: np.bincount(list(elements), list(elements.values()), SIZE)
    ),
    st.sampled_from([2, 8, 64, BUCKETS]).map(lambda stride: (np.arange(SIZE) % stride == 0) * 0.5),
    st.just(np.ones(SIZE)),
)


@given(difference=DIFFERENCES, seed=st.binary(min_size=32, max_size=32))
def test_a_distance_is_right_within_15_percent(difference: np.ndarray, seed: bytes) -> None:
    """Of any difference that does not know the seed: random ones, a few elements alone, all alike."""
    base, sketcher = np.linspace(-1.0, 1.0, SIZE), Sketcher(seed)
    true = float(np.linalg.norm(difference))
    found = sketch(sketcher, state(base)).distance(sketch(sketcher, state(base + difference)))
    assert abs(found - true) <= SHARE * true


def test_a_small_model_is_its_own_sketch() -> None:
    sketcher = Sketcher(bytes(32))
    one, other = sketch(sketcher, state(np.arange(14.0))), sketch(sketcher, state(np.arange(14.0) + 1))
    assert one.distance(other) == math.sqrt(14)
    assert one.values.size == 14


@pytest.mark.parametrize("dtype", ["<f4", "<f2", "<f8"])
def test_many_tensors_count_as_one_row_of_elements(dtype: str) -> None:
    values = np.random.default_rng(1).standard_normal(200_000).astype(dtype)
    names = {f"t{index}": part.copy() for index, part in enumerate(np.split(values, [3, 700, 70_000, 140_001]))}
    sketcher, many = Sketcher(bytes(32)), ModelState.from_arrays(names)
    assert np.array_equal(sketch(sketcher, many).values, sketch(sketcher, state(values)).values)


def test_bfloat16_counts_by_its_values() -> None:
    values = np.random.default_rng(2).standard_normal(SIZE).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    widened = (bits.astype(np.uint32) << 16).view(np.float32)
    sketcher, brief = Sketcher(bytes(32)), ModelState.from_arrays({"w": bits}, dtypes={"w": "BF16"})
    assert np.array_equal(sketch(sketcher, brief).values, sketch(sketcher, state(widened)).values)


def test_a_change_next_to_a_huge_element_shows() -> None:
    """As the statistics of raw columns are in BatchNorm."""
    huge = np.zeros(SIZE)
    huge[7] = 1e10
    sketcher = Sketcher(bytes(32))
    moved = huge + np.where(np.arange(SIZE) == 9, 1e-3, 0)
    assert sketch(sketcher, state(huge)).distance(sketch(sketcher, state(moved))) == pytest.approx(1e-3, rel=SHARE)


def test_elements_that_are_not_finite_count_as_zero() -> None:
    """A mask of minus infinity, as attention has it, hides no distance."""
    masked = np.full(SIZE, -np.inf)
    masked[::2] = 0
    sketcher, zero = Sketcher(bytes(32)), np.zeros(SIZE)
    one = sketch(sketcher, state(zero, mask=masked))
    assert one.distance(sketch(sketcher, state(zero + 1, mask=masked))) == pytest.approx(math.sqrt(SIZE), rel=SHARE)


@pytest.mark.parametrize("size", [14, SIZE])
def test_the_largest_floats(size: int) -> None:
    sketcher = Sketcher(bytes(32))
    assert sketch(sketcher, state(np.full(size, 3.4e38, np.float32))).values.max() > 1e38
    huge = sketcher.sketch(state(np.full(size, 1.7e308)))
    assert huge is None or np.isfinite(huge.values).all()


def test_integers_have_no_distance() -> None:
    assert Sketcher(bytes(32)).sketch(state(np.arange(5))) is None


def test_other_layouts_and_seeds_are_infinitely_far() -> None:
    one = sketch(Sketcher(bytes(32)), state(np.zeros(SIZE)))
    assert one.distance(sketch(Sketcher(b"1" * 32), state(np.zeros(SIZE)))) == math.inf
    assert one.distance(sketch(Sketcher(bytes(32)), state(np.zeros(SIZE + 1)))) == math.inf


def test_a_sketch_as_text_is_the_same_sketch() -> None:
    one = sketch(Sketcher(bytes(32)), state(np.linspace(0, 1, SIZE)))
    again = Sketch.from_text(one.to_text(), seed=one.seed, layout=one.layout)
    assert one.distance(again) == 0
    for damaged in ("x", one.to_text()[:-1], one.to_text() * 2, ""):
        with pytest.raises(EncodingError):
            Sketch.from_text(damaged, seed="", layout="")


def test_who_knows_the_seed_can_deceive_a_sketch() -> None:
    """So it is secret: a step along what the sketch does not see looks like none."""
    sketcher, size = Sketcher(bytes(32)), BUCKETS + 1
    columns = [sketch(sketcher, state(row)).values for row in np.eye(size)]
    _, _, directions = np.linalg.svd(np.array(columns).T)
    unseen = directions[-1]
    hidden = sketch(sketcher, state(unseen)).distance(sketch(sketcher, state(np.zeros(size))))
    assert hidden < 1e-9
    shown = sketch(Sketcher(b"1" * 32), state(unseen)).distance(sketch(Sketcher(b"1" * 32), state(np.zeros(size))))
    assert shown == pytest.approx(1, rel=SHARE)
