"""Clients that contribute nothing, and names of metrics that travel in the sum or are part of the encoding."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.privacy import seeded
from support.raising import raises

from fedcore.codec import CodecSettings, Encoded, decode, encode, encode_nothing, first_encoding
from fedcore.codec.encoding import MOST_DIGITS
from fedcore.codec.names import NAMES_BYTES, QUERY_NAMES_BYTES, names_from_sum, names_json, names_length, names_words
from fedcore.errors import EncodingError, NothingContributed, TooFewContributed
from fedcore.state import ModelState

BASE = ModelState.from_arrays({"w": np.zeros(3000, np.float32), "n": np.zeros(2, np.int64)})
LOCAL = ModelState.from_arrays({"w": np.full(3000, 0.5, np.float32), "n": np.full(2, 4)})
UNNAMED = first_encoding(CodecSettings(w_max=100), BASE.layout, 4, failures=3)
NAMED = dataclasses.replace(UNNAMED, metrics=(("loss", None), ("pair", 2)))
METRICS: dict[str, Any] = {"loss": 2.0, "pair": [1.0, -1.0]}
NAMES = (("loss", None), ("pair", 2))
COLUMNS = ("age", "bmi", "systolic_bp", "diastolic_bp", "ldl_cholesterol", "hba1c")
FIGURES = ("mean_sum", "mean_count", "std_sum", "std_count", "std_sum_sqd")


def send(encoding: Any, seed: int = 0, metrics: dict[str, Any] | None = None, examples: int = 10) -> Encoded:
    return encode(
        encoding,
        base=BASE,
        local=LOCAL,
        examples=examples,
        metrics=METRICS if metrics is None else metrics,
        randomness=seeded(seed),
    )


def ask(encoding: Any, metrics: dict[str, Any]) -> np.ndarray:
    return encode(encoding, base=None, local=None, examples=1, metrics=metrics, randomness=seeded(0)).words


def nothing(encoding: Any, seed: int = 9) -> np.ndarray:
    return encode_nothing(encoding, randomness=seeded(seed)).words


@pytest.mark.parametrize("bits", [16, 21, 32])
@pytest.mark.parametrize("encoding", [UNNAMED, NAMED])
def test_who_contributes_nothing_changes_the_count_of_failures_alone(encoding: Any, bits: int) -> None:
    encoding = dataclasses.replace(encoding, field_bits=bits)
    one, other = send(encoding, 1).words, send(encoding, 2).words
    without = decode(encoding, one + other, survivors=2, base=BASE)
    beside = decode(encoding, one + nothing(encoding, 7) + other + nothing(encoding, 8), survivors=4, base=BASE)
    assert (without.failures, beside.failures) == (0, 2)
    assert beside.examples == without.examples == 20
    assert beside.metrics == without.metrics == METRICS
    assert beside.names == NAMES
    assert beside.state is not None
    assert without.state is not None
    for name, value in without.state.items():
        np.testing.assert_array_equal(beside.state[name], value)


def test_masks_of_failures_come_off_a_copy_of_a_sum_that_cannot_be_written_to() -> None:
    total = send(NAMED, 1).words + nothing(NAMED, 7) + send(NAMED, 2).words
    kept = total.copy()
    kept.flags.writeable = False
    mapped, held = (decode(NAMED, words, survivors=3, base=BASE) for words in (kept, total.copy()))
    np.testing.assert_array_equal(kept, total)
    assert mapped.failures == 1
    assert mapped.state is not None
    assert held.state is not None
    for name, value in held.state.items():
        np.testing.assert_array_equal(mapped.state[name], value)


def test_words_of_a_failure_go_to_a_given_array() -> None:
    out = np.full(NAMED.words, 2**64 - 1, np.uint64)
    assert encode_nothing(NAMED, randomness=seeded(9), out=out).words is out
    np.testing.assert_array_equal(out, nothing(NAMED))


def test_a_sum_of_failures_alone_says_how_many() -> None:
    with pytest.raises(NothingContributed, match=r"^2\D+2\D+$"):
        decode(NAMED, nothing(NAMED) + nothing(NAMED), survivors=2, base=BASE)


def test_a_sum_with_more_failures_than_it_tolerates_tells_their_number_only() -> None:
    encoding = dataclasses.replace(NAMED, failures=1)
    total = send(encoding, 1).words + send(encoding, 2).words
    closed = total + nothing(encoding, 7) + nothing(encoding, 8)
    failed = encoding.sections["failed"]
    assert closed[failed] == 2
    assert np.count_nonzero(closed == total) <= 1
    with pytest.raises(TooFewContributed, match=r"^2\D+4\D+1\D*$"):
        decode(encoding, closed, survivors=4, base=BASE)


@pytest.mark.parametrize("other", [{"loss": 1.0}, {"error": 1.0, "pair": [1, 2]}, {"loss": [2.0], "pair": [1, 2]}, {}])
def test_clients_that_disagree_on_names_give_a_model_without_metrics(other: dict[str, Any]) -> None:
    total = send(UNNAMED).words + send(UNNAMED, metrics=other).words + nothing(UNNAMED)
    decoded = decode(UNNAMED, total, survivors=3, base=BASE)
    assert (decoded.metrics, decoded.names) == ({}, None)
    assert decoded.state is not None
    np.testing.assert_allclose(decoded.state["w"], 0.5, atol=1e-6)


@pytest.mark.parametrize("other", [{"loss": 1.0}, {"error": 1.0, "pair": [1, 2]}, {"loss": [2.0], "pair": [1, 2]}, {}])
def test_other_names_than_those_of_the_exchange_are_refused_by_the_client(other: dict[str, Any]) -> None:
    with raises(EncodingError, check="other-metrics", match="loss.*pair:2"):
        send(NAMED, metrics=other)


def test_there_are_just_as_many_slots_as_values_of_known_names() -> None:
    sizes = {name: part.stop - part.start for name, part in NAMED.sections.items()}
    assert (sizes["metrics"], sizes["names"]) == (3, 0)
    assert UNNAMED.words - NAMED.words == (1024 - 3) + (MOST_DIGITS - 3) + NAMES_BYTES // 4
    assert sizes["keys"] == 3 * 16


@pytest.mark.parametrize("names", [(), NAMES, (("ärger", None),), (("\0", None), ("b", 31))])
def test_names_come_out_of_the_sum_that_went_in(names: Any) -> None:
    for count in (1, 3, 257, 258, 10_000, 1 << 25):
        words = names_words(names, count, NAMES_BYTES)
        assert words.size == names_length(count, NAMES_BYTES)
        for contributors in (1, count):
            assert names_from_sum(words * np.uint64(contributors), contributors, count, 32) == names


def test_names_of_a_query_have_more_room() -> None:
    """Mean and deviation of six columns, as Flower's example of analytics asks for."""
    names = {f"query_results/{column}_{one}": 1.0 for column in COLUMNS for one in FIGURES}
    query = first_encoding(CodecSettings(w_max=1, max_metrics=4096), None, 4, failures=3)
    with raises(EncodingError, check="metric-names"):
        send(UNNAMED, metrics=names)
    one = ask(query, names)
    assert one[query.sections["names"]].size == QUERY_NAMES_BYTES // 4
    assert decode(query, one + ask(query, names), survivors=2, base=None, sums=True).metrics == dict.fromkeys(
        names, 2.0
    )
    with raises(EncodingError, check="metric-names", match="4000"):
        ask(query, {f"{number}" + "x" * 190: 1.0 for number in range(25)})


def test_names_that_are_too_long_are_refused() -> None:
    with raises(EncodingError, check="metric-names", match="1000.*train-metrics"):
        send(UNNAMED, metrics={f"{number}" + "x" * 190: 1.0 for number in range(6)})
    with raises(EncodingError, check="metric-name"):
        send(UNNAMED, metrics={"x" * 201: 1.0})
    with raises(EncodingError, check="metric-name", match="'x'"):
        send(UNNAMED, metrics={"x": []})


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[", b"{}", b"3", b"[3]", b"[[]]", b'[["a"]]', b'[["a", null]]', b'[["b",null],["a",null]]', b'[["a",0]]',
        b'[["a",true]]', b'[["a",1.0]]', b'[["a",33]]', b'[["",null]]', b'[["a",null],["a",null]]', b'[[1,null]]',
        b'[["\xc3\xa4",null]]', b"[" * 1000, b'[["a",1]]\0x', b'[["a",1e0]]', b"NaN",
    ],
)  # fmt: skip
def test_what_is_no_canonical_list_of_names_is_none(text: bytes) -> None:
    fields = np.zeros(NAMES_BYTES, np.uint16)
    fields[: len(text)] = np.frombuffer(text, np.uint8)
    assert names_from_sum(fields.view(np.uint64) * np.uint64(3), 3, 4, 32) is None


def test_a_sum_that_does_not_divide_is_none() -> None:
    words = names_words(NAMES, 4, NAMES_BYTES) * np.uint64(3)
    words[5] += np.uint64(1)
    assert names_from_sum(words, 3, 4, 32) is None
    words[5] += np.uint64(3 * 256 - 1)
    assert names_from_sum(words, 3, 4, 32) is None
    assert len(names_json(NAMES)) < NAMES_BYTES
