"""What the codec refuses, on both sides, and that it says why."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.raising import raises

from fedcore.codec import CodecSettings, Encoded, Encoding, decode, encode, first_encoding
from fedcore.errors import EncodingError, PeerError, RoundFailed, UsageError
from fedcore.state import ModelState

BASE = ModelState.from_arrays({"w": np.zeros(3, np.float32), "n": np.zeros(2, np.int64)})
CODEC = CodecSettings(w_max=100, metric_max=1000.0, max_metrics=3)
ENCODING = first_encoding(CODEC, BASE.layout, 4)


def stream(seed: int) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def encode_with(**changes: Any) -> Encoded:
    arguments: dict[str, Any] = {
        "base": BASE,
        "local": BASE,
        "examples": 10,
        "metrics": {"loss": 1.0},
        "randomness": stream(1),
    }
    return encode(changes.pop("encoding", ENCODING), **(arguments | changes))


def local_with(**changes: Any) -> ModelState:
    return ModelState.from_arrays({name: np.asarray(changes.get(name, BASE[name])) for name in BASE})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("examples", [0, 10])
def test_not_finite_updates_are_refused_at_the_client(dtype: Any, value: float, examples: int) -> None:
    """An update with NaN or infinity never leaves the client."""
    base = ModelState.from_arrays({"layer.weight": np.zeros(5, dtype)})
    bad = np.zeros(5, dtype)
    bad[3] = value
    encoding = first_encoding(CODEC, base.layout, 4)
    with raises(EncodingError, check="not-finite", match=r"'layer\.weight'"):
        encode_with(
            encoding=encoding, base=base, local=ModelState.from_arrays({"layer.weight": bad}), examples=examples
        )
    with raises(EncodingError, check="global-not-finite", match=r"'layer\.weight'"):
        encode_with(
            encoding=encoding, base=ModelState.from_arrays({"layer.weight": bad}), local=base, examples=examples
        )


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80])
def test_not_finite_bfloat16_is_refused(bits: int) -> None:
    dtypes = {"w": "BF16"}
    base = ModelState.from_arrays({"w": np.zeros(2, np.uint16)}, dtypes=dtypes)
    local = ModelState.from_arrays({"w": np.array([0, bits], np.uint16)}, dtypes=dtypes)
    with raises(EncodingError, check="not-finite", match="'w'"):
        encode_with(encoding=first_encoding(CODEC, base.layout, 4), base=base, local=local)


def test_a_difference_that_overflows_float32_is_refused() -> None:
    low = ModelState.from_arrays({"w": np.array([-3e38], np.float32)})
    high = ModelState.from_arrays({"w": np.array([3e38], np.float32)})
    with raises(EncodingError, check="not-finite"):
        encode_with(encoding=first_encoding(CODEC, low.layout, 4), base=low, local=high)


def test_values_that_no_scale_holds_are_refused() -> None:
    base = ModelState.from_arrays({"w": np.zeros(2, np.float32)})
    local = ModelState.from_arrays({"w": np.array([-3e38, 3e38], np.float32)})
    with raises(EncodingError, check="update-beyond-scales", match=r"3e\+37"):
        encode_with(encoding=first_encoding(CODEC, base.layout, 4), base=base, local=local)


@pytest.mark.parametrize("examples", [-1, 101, 10.0, 10.5, True, None, "10", float("nan")])
def test_examples_that_are_no_count_within_w_max_are_refused(examples: Any) -> None:
    with raises(EncodingError, check="examples"):
        encode_with(examples=examples)


def test_examples_may_be_a_numpy_integer_and_reach_w_max() -> None:
    words = encode_with(examples=np.int64(100)).words
    assert words[ENCODING.sections["examples"]].tolist() == [100]


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"loss": float("nan")}, {"check": "metric-not-finite", "match": "'loss'.*nan"}),
        ({"loss": [1.0, float("inf")]}, {"check": "metric-not-finite", "match": "'loss'.*inf"}),
        ({"loss": 1000.5}, {"check": "metric-max", "match": r"'loss'.*1000\.5"}),
        ({"loss": -1000.5}, {"check": "metric-max", "match": r"'loss'.*-1000\.5"}),
        ({"loss": -(10**400)}, {"check": "metric-not-finite", "match": "'loss'"}),
        ({"loss": "low"}, {"check": "metric-type", "match": "'loss'.*str"}),
        ({"loss": True}, {"check": "metric-type", "match": "'loss'.*bool"}),
        ({"loss": None}, {"check": "metric-type", "match": "'loss'.*NoneType"}),
        ({"loss": [[1.0]]}, {"check": "metric-type", "match": "'loss'.*list"}),
        ({"a": [1, 2], "b": [3, 4]}, {"check": "metric-count", "match": "4.*max-metrics.*3"}),
    ],
)
def test_bad_metrics_are_refused_by_name(metrics: dict[str, Any], reason: dict[str, str]) -> None:
    with raises(EncodingError, **reason):
        encode_with(metrics=metrics)


def test_a_model_of_another_shape_dtype_or_order_is_refused() -> None:
    wrong = {
        "shape": {"w": np.zeros(4, np.float32), "n": np.zeros(2, np.int64)},
        "dtype": {"w": np.zeros(3, np.float64), "n": np.zeros(2, np.int64)},
        "order": {"n": np.zeros(2, np.int64), "w": np.zeros(3, np.float32)},
        "missing": {"w": np.zeros(3, np.float32)},
    }
    for arrays in wrong.values():
        state = ModelState.from_arrays(arrays)
        with pytest.raises(EncodingError, match="trained"):
            encode_with(local=state)
        with pytest.raises(EncodingError, match="global"):
            encode_with(base=state)


def test_integer_changes_that_could_overflow_are_refused() -> None:
    largest = ((1 << 63) - 1) // ENCODING.n_max // 100
    encode_with(local=local_with(n=np.array([largest, -largest])), examples=100)
    for value in (largest + 1, -largest - 1):
        with raises(EncodingError, check="integer-overflow", match="'n'"):
            encode_with(local=local_with(n=np.array([0, value])), examples=100)


def test_integer_differences_that_wrap_int64_are_refused() -> None:
    base = ModelState.from_arrays({"n": np.array([-(1 << 63)])})
    local = ModelState.from_arrays({"n": np.array([(1 << 63) - 1])})
    with raises(EncodingError, check="integer-overflow", match="'n'"):
        encode_with(encoding=first_encoding(CODEC, base.layout, 1), base=base, local=local, examples=1)


def test_edge_sums_of_integers_are_exact() -> None:
    largest = ((1 << 63) - 1) // ENCODING.n_max // 100
    local = local_with(n=np.array([largest, -largest]))
    parts = [encode_with(local=local, examples=100) for _ in range(4)]
    total = np.sum([part.words for part in parts], axis=0, dtype=np.uint64)
    decoded = decode(ENCODING, total, survivors=4, base=BASE)
    assert decoded.state is not None
    assert decoded.state["n"].tolist() == [largest, -largest]
    assert decoded.rounded == ()


def test_arguments_that_do_not_belong_together_are_our_callers_fault() -> None:
    metrics_only = first_encoding(CODEC, None, 4)
    with raises(UsageError, check="metrics-only"):
        encode_with(encoding=metrics_only)
    with raises(UsageError, check="states-missing"):
        encode_with(local=None)
    for out in (np.zeros(3, np.uint64), np.zeros(ENCODING.words), np.zeros(2 * ENCODING.words, np.uint64)[::2]):
        with raises(UsageError, check="vector-form"):
            encode_with(out=out)
        with raises(UsageError, check="vector-form"):
            decode(ENCODING, out, survivors=1, base=BASE)
    encoded = encode_with()
    for survivors in (0, 5):
        with pytest.raises(UsageError, match="survivors"):
            decode(ENCODING, encoded.words, survivors=survivors, base=BASE)
    with raises(UsageError, check="global-model"):
        decode(ENCODING, encoded.words, survivors=1, base=None)


def test_a_sum_is_not_added_to_another_model() -> None:
    encoded = encode_with()
    other = ModelState.from_arrays({"v": np.zeros(3, np.float32), "n": np.zeros(2, np.int64)})
    with raises(EncodingError, check="tensor-names", match="'w'.*'v'"):
        decode(ENCODING, encoded.words, survivors=1, base=other)


def decode_altered(section: str, value: int, index: int = 0, encoding: Encoding = ENCODING) -> None:
    encoded = encode_with(encoding=encoding)
    words = encoded.words.copy()
    words[encoding.sections[section].start + index] = value
    decode(encoding, words, survivors=1, base=BASE)


@pytest.mark.parametrize(
    ("section", "value", "index", "reason"),
    [
        ("failed", 2, 0, {"check": "malformed-update", "match": "failure"}),
        ("examples", 101, 0, {"check": "malformed-update", "match": "examples"}),
        ("shrunk", 2, 0, {"check": "malformed-update", "match": "clipped"}),
        ("peaks", 1, 0, {"check": "malformed-update", "match": "small"}),
        ("peaks", 2**63, 0, {"check": "malformed-update", "match": "small"}),
        ("metrics", 2**62, 0, {"check": "malformed-update", "match": "'loss'"}),
        ("metrics", 2**64 - 2**62, 0, {"check": "malformed-update", "match": "'loss'"}),
        ("metrics", 1, 2, {"check": "metrics-beyond-names"}),
        ("small", 2**63, 0, {"check": "malformed-update", "match": "'w'"}),
        ("small", 2**32 - 1, 3, {"check": "malformed-update", "match": "'w'"}),
        ("small", 2**32, 4, {"check": "padding"}),
        ("integers", 2**63 - 1, 0, None),
    ],
)
def test_sums_that_no_honest_cohort_makes_are_refused(
    section: str, value: int, index: int, reason: dict[str, str] | None
) -> None:
    if reason is None:
        decode_altered(section, value, index)
        return
    with raises(PeerError, **reason):
        decode_altered(section, value, index)


def test_padding_that_is_not_zero_is_refused() -> None:
    base = ModelState.from_arrays({"w": np.zeros(1025, np.float32)})
    encoding = Encoding(settings=CODEC, layout=base.layout, n_max=4, field_bits=16, scales=(8.0,))
    words = encode_with(encoding=encoding, base=base, local=base).words
    words[encoding.sections["packed"].stop - 1] |= np.uint64(1 << 63)
    with raises(PeerError, check="padding"):
        decode(encoding, words, survivors=1, base=base)


def test_more_clipped_elements_than_there_are_are_refused() -> None:
    clipping = dataclasses.replace(ENCODING, settings=dataclasses.replace(ENCODING.settings, clipping="warn"))
    with raises(PeerError, check="malformed-update", match="small"):
        decode_altered("clipped", 4, encoding=clipping)


def test_an_integer_mean_outside_its_dtype_is_refused() -> None:
    for dtype, value, sums in (
        (np.uint8, 250, 10 * 6),
        (np.bool_, 1, 10),
        (np.int64, 2**63 - 1, 10),
        (np.uint64, 0, 2**64 - 10),
    ):
        base = ModelState.from_arrays({"n": np.array([value], dtype)})
        encoding = first_encoding(CODEC, base.layout, 4)
        words = encode_with(encoding=encoding, base=base, local=base, metrics={}).words
        words[encoding.sections["integers"]] = sums
        with raises(PeerError, check="malformed-update", match="'n'"):
            decode(encoding, words, survivors=1, base=base)


def test_a_mask_left_in_the_sum_is_noticed() -> None:
    encoded = encode_with()
    words = encoded.words + np.random.default_rng(0).integers(0, 1 << 64, ENCODING.words, np.uint64)
    with pytest.raises(PeerError):
        decode(ENCODING, words, survivors=1, base=BASE)


def test_a_cohort_without_examples_ends_the_round() -> None:
    encoded = encode_with(examples=0)
    with raises(RoundFailed, check="no-examples"):
        decode(ENCODING, encoded.words, survivors=1, base=BASE)


def test_a_float16_mean_that_overflows_names_the_tensor() -> None:
    base = ModelState.from_arrays({"head": np.array([65504], np.float16)})
    local = ModelState.from_arrays({"head": np.array([65504], np.float16)})
    encoding = first_encoding(CodecSettings(w_max=1), base.layout, 1)
    encoded = encode_with(encoding=encoding, base=base, local=local, examples=1, metrics={})
    words = encoded.words.copy()
    words[0] = 2 * encoding.levels
    with raises(EncodingError, check="dtype-overflow", match="'head'"):
        decode(encoding, words, survivors=1, base=base)
