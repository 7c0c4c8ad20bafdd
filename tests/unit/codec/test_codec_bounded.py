"""Updates with a bound on their norm: words, pads, sums, failures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter
from support.privacy import seeded

from fedcore.codec import (
    AnyEncoding,
    BoundedEncoding,
    CodecSettings,
    bounded_encoding,
    decode,
    encode,
    encode_nothing,
    pads_of,
    steps_of,
    summed_steps,
)
from fedcore.errors import EncodingError, NothingContributed, PeerError
from fedcore.state import ModelState

CLIP = 2.0
SETTINGS = CodecSettings(w_max=64, clip_norm=CLIP)


def model(rows: int, fill: float = 0.0) -> ModelState:
    return ModelState.from_arrays({"w": np.full((rows, 3), fill, np.float32), "b": np.full(rows % 2, fill, np.float32)})


def encoding_of(state: ModelState, n: int = 4) -> BoundedEncoding:
    return bounded_encoding(SETTINGS, state.layout, n, clip=CLIP)


def moved(state: ModelState, rng: np.random.Generator, size: float) -> ModelState:
    return ModelState.from_arrays(
        {name: (value + size * rng.standard_normal(value.shape)).astype(np.float32) for name, value in state.items()}
    )


def update_of(base: ModelState, local: ModelState) -> NDArray[np.float64]:
    names = [spec.name for spec in base.layout.floats]
    return np.concatenate([(local[name] - base[name]).ravel().astype(np.float64) for name in names])


def words_of(encoding: BoundedEncoding, base: ModelState, local: ModelState, *, seed: int, factor: float = 1.0):
    return encode(
        encoding, base=base, local=local, examples=3, metrics={"loss": 1.0}, randomness=seeded(seed), factor=factor
    ).words


@given(rows=st.integers(1, 40), n=st.integers(1, 5), failed=st.integers(0, 3), size=st.floats(0.001, 10))
@settings(max_examples=40, deadline=None)
def test_the_mean_is_that_of_clipped_updates(rows: int, n: int, failed: int, size: float) -> None:
    base, rng = model(rows, 0.5), np.random.default_rng(rows)
    encoding = encoding_of(base, n + failed)
    locals_ = [moved(base, rng, size) for _ in range(n)]
    vectors = [words_of(encoding, base, local, seed=i) for i, local in enumerate(locals_)]
    vectors += [encode_nothing(encoding, randomness=seeded(90 + i)).words for i in range(failed)]
    total = np.sum(vectors, axis=0, dtype=np.uint64)
    decoded = decode(encoding, total, survivors=n + failed, base=base)
    expected = np.zeros(sum(spec.size for spec in base.layout.floats))
    for local in locals_:
        update = update_of(base, local)
        expected += update * min(1.0, CLIP / np.linalg.norm(update)) / n
    assert decoded.state is not None
    assert np.abs(update_of(base, decoded.state) - expected).max() <= encoding.step + 1e-6
    assert (decoded.failures, decoded.examples) == (failed, n)


@pytest.mark.parametrize("rows", [4, 5], ids=["even", "odd"])
def test_steps_and_pads_are_those_of_the_words(rows: int) -> None:
    base = model(rows)
    encoding = encoding_of(base)
    vectors = [words_of(encoding, base, moved(base, np.random.default_rng(i), 1.0), seed=i) for i in range(3)]
    for words in vectors:
        steps = steps_of(encoding, words).astype(object).ravel()
        assert sum(step * step for step in steps) <= encoding.norm_squared
        assert len(pads_of(encoding, words)) == encoding.projections
    assert len({pads_of(encoding, words).tobytes() for words in vectors}) == len(vectors)
    joined = [steps_of(encoding, words).astype(np.uint64) @ np.array([1, 1 << 32], np.uint64) for words in vectors]
    total = np.sum(vectors, axis=0, dtype=np.uint64)
    assert np.array_equal(summed_steps(encoding, total, 3), np.sum(joined, axis=0, dtype=np.uint64))


def test_a_factor_makes_an_update_shorter_after_it_was_clipped() -> None:
    base = model(30)
    encoding, local = encoding_of(base), moved(base, np.random.default_rng(1), 5.0)
    words = words_of(encoding, base, local, seed=1, factor=0.25)
    norm = np.linalg.norm(steps_of(encoding, words).astype(np.float64)) * encoding.step
    assert norm == pytest.approx(CLIP / 4, rel=0.05)


def test_all_failed() -> None:
    base = model(3)
    encoding = encoding_of(base)
    total = 3 * encode_nothing(encoding, randomness=seeded(1)).words
    with pytest.raises(NothingContributed):
        decode(encoding, total, survivors=3, base=base)


@pytest.mark.parametrize("place", ["a coordinate", "the padding"])
def test_a_sum_that_honest_clients_cannot_make(place: str) -> None:
    base = model(4)
    encoding = encoding_of(base)
    words = words_of(encoding, base, base, seed=1)
    lanes = words[: encoding.packed_words].view(np.uint32)
    lanes[0 if place == "a coordinate" else -1] += np.uint32(2 * encoding.offset + 1)
    with pytest.raises(PeerError):
        decode(encoding, words, survivors=1, base=base)


def test_integer_tensors_are_refused() -> None:
    state = ModelState.from_arrays({"w": np.zeros(4, np.float32), "count": np.zeros(1, np.int64)})
    with pytest.raises(EncodingError) as refused:
        encoding_of(state)
    assert refused.value.check == "integer-tensor"


def test_a_sum_that_could_wrap_is_refused() -> None:
    with pytest.raises(EncodingError) as refused:
        bounded_encoding(SETTINGS, model(2_000_000).layout, 1 << 16, clip=CLIP)
    assert refused.value.check == "bounded-sum-wraps"


def test_it_travels_as_json() -> None:
    form, encoding = TypeAdapter(AnyEncoding), encoding_of(model(4))
    again = form.validate_json(form.dump_json(encoding))
    assert again == encoding
    assert again.canonical() == encoding.canonical()


def test_every_parameter_is_in_its_hash() -> None:
    base = encoding_of(model(4))
    others = [
        encoding_of(model(5)),
        encoding_of(model(4), 5),
        bounded_encoding(SETTINGS, model(4).layout, 4, clip=1.0),
        bounded_encoding(CodecSettings(w_max=65, clip_norm=CLIP), model(4).layout, 4, clip=CLIP),
    ]
    assert len({one.canonical() for one in (base, *others)}) == 1 + len(others)
