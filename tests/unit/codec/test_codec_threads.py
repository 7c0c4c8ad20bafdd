"""Long vectors in blocks, on several threads: the same words, the same state, the same error."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.raising import raises

from fedcore.codec import CodecSettings, Encoding, decode, encode
from fedcore.codec.blocks import BLOCK_FIELDS, FieldSection, blocks
from fedcore.codec.encoding import scale_groups
from fedcore.codec.fields import unpack
from fedcore.errors import EncodingError, PeerError, UsageError
from fedcore.state import Layout, ModelState, TensorSpec

WIDTHS = (16, 21, 32, 64)
THREADS = (2, 3, 8)
N_MAX = 3


def stream(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def model(seed: int) -> ModelState:
    """Four blocks; borders of tensors lie beside those of blocks and in the midst of words."""
    rng = np.random.default_rng(seed)
    arrays = {
        "first": rng.standard_normal(BLOCK_FIELDS + 1, dtype=np.float32),
        "count": np.array([seed]),
        "half": rng.standard_normal(1030).astype(np.float16),
        "empty": np.zeros(0, np.float32),
        "short": rng.standard_normal(7, dtype=np.float32),
        "other": rng.standard_normal(1000),
        "wide": rng.standard_normal(BLOCK_FIELDS // 2),
        "brain": (rng.standard_normal(BLOCK_FIELDS, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16),
        "last": rng.standard_normal((BLOCK_FIELDS + 1) // 2, dtype=np.float32),
    }
    return ModelState.from_arrays(arrays, dtypes={"brain": "BF16"})


BASE, LOCAL = model(1), model(2)


def encoding_of(bits: int, layout: Layout = BASE.layout, **settings: float) -> Encoding:
    return Encoding(
        settings=CodecSettings(w_max=10, clipping="warn", **settings),
        layout=layout,
        n_max=N_MAX,
        field_bits=bits,
        scales=(4.0,) * len(scale_groups(layout)),
    )


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("settings", [{}, {"clip_norm": 5.0}])
def test_the_words_do_not_depend_on_the_threads(bits: int, settings: dict[str, float]) -> None:
    encoding = encoding_of(bits, **settings)
    alone = encode(encoding, base=BASE, local=LOCAL, examples=9, metrics={}, randomness=stream(1))
    assert alone.shrunk is bool(settings)
    for threads in THREADS:
        shared = encode(
            encoding,
            base=BASE,
            local=LOCAL,
            examples=9,
            metrics={},
            randomness=stream(1),
            out=np.full(encoding.words, 2**64 - 1, np.uint64),
            threads=threads,
        )
        np.testing.assert_array_equal(shared.words, alone.words)
        assert (shared.clipped, shared.shrunk) == (alone.clipped, alone.shrunk)


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_decoded_state_does_not_depend_on_the_threads(bits: int, tmp_path: Path) -> None:
    encoding = encoding_of(bits)
    words = encode(encoding, base=BASE, local=LOCAL, examples=9, metrics={}, randomness=stream(1)).words
    alone = decode(encoding, words, survivors=1, base=BASE)
    for threads in THREADS:
        path = tmp_path / str(threads)
        for out_path in (None, path):
            shared = decode(encoding, words, survivors=1, base=BASE, out_path=out_path, threads=threads)
            assert alone.state is not None
            assert shared.state is not None
            assert all(shared.state[name].tobytes() == alone.state[name].tobytes() for name in BASE)
            assert dataclasses.replace(shared, state=None) == dataclasses.replace(alone, state=None)


def test_a_mapped_sum_is_released_as_the_model_is() -> None:
    """However large they are, of neither there are more than two blocks in memory."""
    blocks = 5
    base = ModelState.from_arrays({"w": np.zeros(blocks * BLOCK_FIELDS, np.float32)})
    encoding = encoding_of(16, base.layout)
    words = encode(encoding, base=base, local=base, examples=9, metrics={}, randomness=stream(1)).words
    released: list[str] = []
    decode(encoding, words, survivors=1, base=base, release=lambda: released.append("sum"))
    assert len(released) == blocks // 2


@pytest.mark.parametrize("bits", WIDTHS)
def test_no_two_pieces_are_rounded_by_the_same_bits(bits: int) -> None:
    base = ModelState.from_arrays({"w": np.zeros(3 * BLOCK_FIELDS, np.float32)})
    encoding = encoding_of(bits, base.layout)
    half = np.full(3 * BLOCK_FIELDS, 0.5 * encoding.step(0), np.float32)
    local = ModelState.from_arrays({"w": half})
    words = encode(encoding, base=base, local=local, examples=10, metrics={}, randomness=stream(1), threads=2).words
    fields = unpack(words[encoding.sections["packed"]], bits, 0, half.size)
    ups = (fields > encoding.levels).reshape(3, BLOCK_FIELDS)
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert abs(float((ups[one] == ups[other]).mean()) - 0.5) < 5 * 0.5 / BLOCK_FIELDS**0.5


def test_a_piece_ends_with_a_word() -> None:
    assert all(BLOCK_FIELDS % (64 // bits) == 0 for bits in WIDTHS)


@given(
    st.lists(
        st.sampled_from([0, 1, 2, 1000, BLOCK_FIELDS - 1, BLOCK_FIELDS, BLOCK_FIELDS + 1, 3 * BLOCK_FIELDS]), max_size=7
    )
)
def test_pieces_cover_every_element_once_in_order(sizes: list[int]) -> None:
    tensors = tuple((index, TensorSpec(name=f"t{index}", dtype="F32", shape=(n,))) for index, n in enumerate(sizes))
    cut = blocks(FieldSection(name="packed", field_bits=21, levels=3, tensors=tensors))
    assert [block.number for block in cut] == list(range(-(-sum(sizes) // BLOCK_FIELDS)))
    spans = [span for block in cut for span in block.spans]
    places = [*(span.position for span in spans), sum(sizes)]
    assert [after - before for before, after in pairwise(places)] == [span.stop - span.start for span in spans]
    assert all(span.position // BLOCK_FIELDS == block.number for block in cut for span in block.spans)
    assert all(
        (span.position + span.stop - span.start - 1) // BLOCK_FIELDS == span.position // BLOCK_FIELDS for span in spans
    )
    for index, size in enumerate(sizes):
        covered = [(span.start, span.stop) for span in spans if span.index == index]
        borders = [0, *(stop for _, stop in covered)]
        assert [start for start, _ in covered] == borders[:-1]
        assert borders[-1] == size


def with_nan(name: str, state: ModelState) -> ModelState:
    arrays = {key: array.copy() for key, array in state.items()}
    arrays[name][-1] = np.nan
    return ModelState.from_arrays(arrays, dtypes={"brain": "BF16"})


@pytest.mark.parametrize("threads", [1, *THREADS])
def test_the_first_error_in_the_order_of_the_tensors_is_the_one_that_is_raised(threads: int) -> None:
    local = with_nan("last", with_nan("wide", LOCAL))
    with raises(EncodingError, check="not-finite", match="'wide'"):
        encode(encoding_of(16), base=BASE, local=local, examples=1, metrics={}, randomness=stream(1), threads=threads)
    encoding = encoding_of(16)
    words = encode(encoding, base=BASE, local=LOCAL, examples=1, metrics={}, randomness=stream(1)).words
    words[[(BLOCK_FIELDS + 4000) // 4, 2 * BLOCK_FIELDS // 4]] = 2**64 - 1
    with raises(PeerError, check="malformed-update", match="'wide'"):
        decode(encoding, words, survivors=1, base=BASE, threads=threads)


def test_threads_are_counted_from_one() -> None:
    with pytest.raises(UsageError, match="threads"):
        encode(encoding_of(16), base=BASE, local=LOCAL, examples=1, metrics={}, randomness=stream(1), threads=0)
