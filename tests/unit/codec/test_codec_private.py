"""Noised words: what is in them, what they add up to, and which parameters are refused."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from support.encodings import encoding_from_json, encoding_to_json
from support.privacy import CODEC, encoding_for, plan, seeded, weights
from support.raising import raises

from fedcore.codec import (
    CodecSettings,
    Encoding,
    PrivateEncoding,
    decode,
    encode,
    encode_nothing,
    first_encoding,
    private_encoding,
    release_of,
)
from fedcore.codec.bounded.grid import round_within_norm
from fedcore.codec.privacy import BLOCK, ROUNDING, KeyStream, accounting, noise_bound
from fedcore.errors import EncodingError, NothingContributed, PeerError, UsageError
from fedcore.state import ModelState

QUIET = 2.0**-9
"""A noise multiplier at which the noise is a few steps wide, so that a sum shows what was put in."""


def words_of(encoding: PrivateEncoding, local: ModelState, seed: int = 0, **changes: Any) -> np.ndarray:
    base = weights(size=encoding.coordinates - 1)
    arguments = {"base": base, "local": local, "examples": 1, "metrics": {}, "randomness": seeded(seed), **changes}
    return encode(encoding, **arguments).words


def total_of(encoding: PrivateEncoding, updates: list[ModelState]) -> np.ndarray:
    return np.sum([words_of(encoding, update, seed) for seed, update in enumerate(updates)], axis=0, dtype=np.uint64)


def mean_of(encoding: PrivateEncoding, updates: list[ModelState]) -> np.ndarray:
    total = total_of(encoding, updates)
    base = weights(size=encoding.coordinates - 1)
    decoded = decode(encoding, total, survivors=len(updates), base=base)
    assert decoded.state is not None
    return np.asarray(decoded.state["weight"], np.float64)


class TestSums:
    def test_the_mean_is_unweighted_and_clipped(self) -> None:
        encoding = encoding_for(3, n_max=3, noise_clients=2, dp_noise_multiplier=QUIET)
        # Norms 0.5, 5 and 0: the second is shrunk to 1.
        mean = mean_of(encoding, [weights(0.3, 0.4, 0), weights(0, 3, 4), weights(0, 0, 0)])
        np.testing.assert_allclose(mean, [0.1, (0.4 + 0.6) / 3, 0.8 / 3], atol=12 * encoding.step)

    def test_the_number_of_examples_is_not_in_the_words(self) -> None:
        encoding = encoding_for(50)
        update = weights(*np.linspace(0, 0.1, 50))
        one = words_of(encoding, update, examples=1, metrics={"loss": 1.0})
        other = words_of(encoding, update, examples=999, metrics={"acc": 0.5})
        np.testing.assert_array_equal(one, other)

    def test_noise_and_rounding_have_no_bias(self) -> None:
        size = 200_000
        encoding = encoding_for(size, n_max=2, noise_clients=2)
        update = weights(*np.full(size, 0.3 * encoding.step))
        mean = mean_of(encoding, [update, update])
        deviation = math.sqrt(encoding.release.variance / 2 + 0.25) * encoding.step
        assert abs(mean.mean() - 0.3 * encoding.step) < 5 * deviation / math.sqrt(size)

    @pytest.mark.parametrize("mechanism", ["skellam", "discrete-gaussian"])
    @pytest.mark.parametrize("survivors", [3, 4, 6])
    def test_whoever_drops_out_the_noise_is_at_least_the_claimed_one(self, mechanism: str, survivors: int) -> None:
        """Six clients, three of them sure: the variance of the sum is that of as many shares as there are survivors."""
        size = 40_000
        encoding = encoding_for(size, n_max=6, noise_clients=3, dp_mechanism=mechanism)
        zero = weights(size=size)
        total = mean_of(encoding, [zero] * survivors) * survivors / encoding.step
        claimed = encoding.release.total_variance
        assert claimed == pytest.approx(encoding.release.norm_squared)  # a noise multiplier of 1
        error = 5 * math.sqrt(2 / size)
        assert total.var() == pytest.approx(claimed * survivors / 3, rel=error)
        assert total.var() >= claimed * (1 - error)

    def test_both_kinds_of_model_storage(self, tmp_path: Any) -> None:
        encoding = encoding_for(70_000)
        total = total_of(encoding, [weights(1.0, size=70_000)] * 3)
        base = weights(size=70_000)
        kept = decode(encoding, total, survivors=3, base=base)
        filed = decode(encoding, total, survivors=3, base=base, out_path=tmp_path / "mean")
        assert kept.state is not None
        assert filed.state is not None
        np.testing.assert_array_equal(kept.state["weight"], filed.state["weight"])
        assert filed.examples == kept.examples == 3

    def test_dtypes_stay(self) -> None:
        arrays = {
            "half": np.zeros((2, 3), np.float16),
            "wide": np.zeros(5, np.float64),
            "one": np.zeros((), np.float32),
        }
        base = ModelState.from_arrays(arrays)
        local = ModelState.from_arrays({name: array + array.dtype.type(0.25) for name, array in arrays.items()})
        encoding = private_encoding(CODEC, base.layout, 2, plan=plan(dp_noise_multiplier=QUIET), noise_clients=2)
        words = sum(words_of(encoding, local, seed, base=base) for seed in range(2))
        decoded = decode(encoding, words, survivors=2, base=base)
        assert decoded.state is not None
        for name, array in arrays.items():
            assert decoded.state[name].dtype == array.dtype
            np.testing.assert_allclose(decoded.state[name], array + 0.25, atol=0.02)


class TestMetrics:
    encoding = private_encoding(
        CODEC,
        None,
        3,
        plan=plan(dp_noise_multiplier=QUIET, dp_metric_bound=2.0),
        noise_clients=2,
        metrics=(("acc", None), ("pair", 2)),
    )

    def send(self, metrics: dict[str, Any], seed: int) -> Any:
        return encode(self.encoding, base=None, local=None, examples=7, metrics=metrics, randomness=seeded(seed))

    def test_means_are_unweighted_and_each_value_is_clipped(self) -> None:
        reports = [{"acc": 0.5, "pair": [1.0, 50.0]}, {"acc": 0.7, "pair": [-9.0, 0.0]}]
        sent = [self.send(metrics, seed) for seed, metrics in enumerate(reports)]
        total = sent[0].words + sent[1].words
        decoded = decode(self.encoding, total, survivors=2, base=None)
        assert decoded.examples == 2
        assert decoded.metrics["acc"] == pytest.approx(0.6, abs=0.05)
        assert decoded.metrics["pair"] == pytest.approx([(1 - 2) / 2, 1.0], abs=0.05)

    def test_the_noise_is_on_every_slot(self) -> None:
        """On that of failures, too: a client that failed shows as little as one that did not."""
        loud = dataclasses.replace(self.encoding, release=dataclasses.replace(self.encoding.release, variance=1e6))
        for words in (
            encode_nothing(loud, randomness=seeded(1)).words,
            encode(
                loud, base=None, local=None, examples=1, metrics={"acc": 0.0, "pair": [0.0, 0.0]}, randomness=seeded(1)
            ).words,
        ):
            lanes = words.view(np.uint32)
            assert np.unique(lanes).size == lanes.size == loud.coordinates

    @pytest.mark.parametrize("value", [math.nan, math.inf, True, "x", 2.0**30])
    def test_a_metric_that_is_none(self, value: Any) -> None:
        with pytest.raises(EncodingError, match="'acc'"):
            self.send({"acc": value, "pair": [0.0, 0.0]}, 0)

    def test_other_metrics_than_those_of_the_exchange(self) -> None:
        with raises(EncodingError, check="other-metrics", match="acc.*loss.*acc.*pair:2"):
            self.send({"acc": 0.5, "loss": 0.5}, 0)


class TestFailures:
    @pytest.mark.parametrize("size", [3, 999, 2**17 + 5])
    def test_who_contributes_nothing_sends_the_bound_in_a_coordinate_of_its_own(self, size: int) -> None:
        """Same shape, same range, the same noise; before it, a norm within that of any update."""
        encoding = encoding_for(size, dp_noise_multiplier=2.0**-9)
        lanes = np.zeros(encoding.coordinates, np.int32)
        values = np.append(np.zeros(size), encoding.clip)
        round_within_norm(
            encoding, lanes, lambda: iter(np.split(values, range(BLOCK, size, BLOCK))), 1 / encoding.step, seeded(3)
        )
        assert int(lanes.astype(np.int64) @ lanes.astype(np.int64)) <= encoding.release.norm_squared
        nothing = encode_nothing(encoding, randomness=seeded(4)).words
        update = words_of(encoding, weights(*[1.0] * min(size, 999), size=size))
        assert nothing.shape == update.shape
        for words in (nothing, update):
            signed = words.view(np.uint32)[: encoding.coordinates].astype(np.int64) - encoding.offset
            assert np.abs(signed).max() <= encoding.offset
        assert abs(int(signed[-1])) < encoding.release.scale // 2

    @pytest.mark.parametrize("failed", [0, 1, 2, 3])
    def test_the_sum_tells_about_how_many(self, failed: int) -> None:
        encoding = encoding_for(50, dp_noise_multiplier=QUIET)
        total = total_of(encoding, [weights(*[0.01] * 50)] * (3 - failed)) if failed < 3 else 0
        for seed in range(failed):
            total = total + encode_nothing(encoding, randomness=seeded(100 + seed)).words
        if failed == 3:
            with pytest.raises(NothingContributed, match="3 of 3"):
                decode(encoding, total, survivors=3, base=weights(size=50))
            return
        decoded = decode(encoding, total, survivors=3, base=weights(size=50))
        assert (decoded.examples, decoded.failures) == (3, failed)
        assert decoded.state is not None
        np.testing.assert_allclose(decoded.state["weight"], 0.01 * (3 - failed) / 3, atol=0.01)

    def test_what_the_noise_may_account_for_is_no_failure(self) -> None:
        """Else every other exchange of a run with sound clients would warn of one."""
        encoding = encoding_for(3, n_max=4)
        for seed in range(20):
            parts = [words_of(encoding, weights(size=3), seed * 10 + client) for client in range(4)]
            total = np.sum(parts, axis=0, dtype=np.uint64)
            assert decode(encoding, total, survivors=4, base=weights(size=3)).failures == 0

    @pytest.mark.parametrize(
        ("multiplier", "said", "told"),
        [(4.0, 100.0, 0), (0.9, 4.1, 4), (0.1, 4.1, "ends")],
        ids=["noise above the cohort", "three deviations", "six deviations"],
    )
    def test_noise_alone_ends_no_run(self, multiplier: float, said: float, told: int | str) -> None:
        """What the coordinate of failures of a sum over 4 clients says, in clients, and what is made of it."""
        encoding = encoding_for(3, n_max=4, dp_noise_multiplier=multiplier)
        parts = [words_of(encoding, weights(size=3), client) for client in range(4)]
        total = np.sum(parts, axis=0, dtype=np.uint64)
        lanes = total.view(np.uint32)
        lanes[encoding.coordinates - 1] = 4 * encoding.offset + round(said * encoding.clip / encoding.step)
        if told == "ends":
            with pytest.raises(NothingContributed):
                decode(encoding, total, survivors=4, base=weights(size=3))
        else:
            assert decode(encoding, total, survivors=4, base=weights(size=3)).failures == told


class TestSensitivity:
    @pytest.mark.parametrize("values", [[1.0], [1e30] * 9, [1e-30] * 9, [0.0] * 9, list(np.linspace(-1, 1, 999))])
    def test_no_update_is_longer_than_the_sensitivity(self, values: list[float]) -> None:
        encoding = encoding_for(len(values), dp_noise_multiplier=2.0**-9)
        lanes = np.zeros(encoding.coordinates, np.int32)
        vector = np.array(values, np.float64)
        norm = max(float(np.sqrt(vector @ vector)), 1.0)
        round_within_norm(encoding, lanes, lambda: iter((vector,)), encoding.release.scale / norm, seeded(3))
        assert int(lanes.astype(np.int64) @ lanes.astype(np.int64)) <= encoding.release.norm_squared

    def test_a_rounding_that_came_out_too_long_is_done_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With a bound that half of all roundings miss: those that are kept do not."""
        values = np.full(512, 31.5)
        encoding = encoding_for(values.size)
        limit = int(values @ values) + values.size // 4
        attempts: list[int] = []
        fill = KeyStream.fill

        def counted(self: KeyStream, out: np.ndarray) -> None:
            attempts.append(out.size)
            fill(self, out)

        monkeypatch.setattr(KeyStream, "fill", counted)
        monkeypatch.setattr(accounting, "rounded_norm_squared", lambda scale, dimension: limit)
        for seed in range(20):
            lanes = np.zeros(values.size, np.int32)
            round_within_norm(encoding, lanes, lambda: iter((values,)), 1.0, seeded(seed))
            assert int(lanes.astype(np.int64) @ lanes) <= limit
        assert len(attempts) > 25

    def test_an_update_that_was_not_clipped_is_never_sent(self) -> None:
        """However wrong the clipping is: the check on the integers does not depend on it."""
        encoding = encoding_for(3)
        vector = np.array([0.0, 1.0, 0.0])
        lanes = np.zeros(3, np.int32)
        with raises(UsageError, check="longer-than-clipping"):
            round_within_norm(encoding, lanes, lambda: iter((vector,)), encoding.release.scale * 1.1, seeded(4))

    def test_an_update_with_nan(self) -> None:
        with raises(EncodingError, check="not-finite"):
            words_of(encoding_for(2), weights(1.0, math.nan))

    def test_rounding_has_a_stream_of_its_own(self) -> None:
        """Fixed randomness shows it: with one stream for both, noise and rounding would be correlated."""
        encoding = encoding_for(1000)
        fixed = bytes(range(32))
        one = words_of(encoding, weights(size=1000), randomness=lambda size: fixed[:size])
        noise = one[:-1].view(np.uint32).astype(np.int64) - encoding.offset
        dice = np.empty(1000, np.uint32)
        KeyStream(lambda size: fixed[:size], ROUNDING).fill(dice)
        assert abs(np.corrcoef(noise, dice)[0, 1]) < 0.2


class TestWrapping:
    def test_the_worst_sum_fits(self) -> None:
        """Every client at the largest value that it can have: still no carry into the next lane."""
        encoding = encoding_for(4, n_max=1000, noise_clients=700)
        largest = math.isqrt(encoding.release.norm_squared) + noise_bound("skellam", encoding.release.variance)
        assert encoding.offset == largest
        assert 1000 * 2 * largest < 1 << 32

    def test_parameters_that_could_wrap_are_refused(self) -> None:
        limit = encoding_for(10**6, n_max=30_000, noise_clients=20_000)
        assert 30_000 * 2 * limit.offset < 1 << 32
        with raises(EncodingError, check="noised-sum-wraps"):
            encoding_for(10**6, n_max=300_000, noise_clients=20_000)

    def test_a_sum_out_of_range_is_no_sum(self) -> None:
        encoding = encoding_for(3)
        total = total_of(encoding, [weights(size=3)] * 2)
        total[0] += np.uint64(2 * 2 * encoding.offset + 1)
        with raises(PeerError, check="malformed-update"):
            decode(encoding, total, survivors=2, base=weights(size=3))

    def test_padding_is_checked(self) -> None:
        encoding = encoding_for(4)
        total = total_of(encoding, [weights(size=4)] * 2)
        total[2] ^= np.uint64(1 << 60)
        with raises(PeerError, check="padding"):
            decode(encoding, total, survivors=2, base=weights(size=4))


class TestParameters:
    def test_integer_tensors_are_refused(self) -> None:
        layout = ModelState.from_arrays({"w": np.zeros(3, np.float32), "batches": np.array(0, np.int64)}).layout
        with raises(EncodingError, check="integer-tensor", match="'batches'"):
            private_encoding(CODEC, layout, 3, plan=plan(), noise_clients=2)

    def test_more_shares_than_clients(self) -> None:
        with raises(EncodingError, check="noise-shares", match=r"4\D+3"):
            encoding_for(3, n_max=3, noise_clients=4)

    def test_json_and_back(self) -> None:
        encoding = encoding_for(5)
        assert encoding_from_json(json.loads(json.dumps(encoding_to_json(encoding)))) == encoding
        other = first_encoding(CODEC, weights(1.0).layout, 3)
        assert isinstance(encoding_from_json(encoding_to_json(other)), Encoding)
        assert release_of(other) is None
        assert release_of(encoding) == encoding.release

    @pytest.mark.parametrize(
        ("key", "value", "error"),
        [
            ("n_max", 0, EncodingError), ("n_max", True, EncodingError), ("clip", 0.0, EncodingError),
            ("clip", math.nan, EncodingError), ("clip", "1", EncodingError), ("field_bits", 16, EncodingError),
            ("settings", 3, EncodingError), ("release", {}, EncodingError), ("clipp", 1.0, EncodingError),
            ("layout", None, EncodingError), ("layout", 3, EncodingError),
        ],
    )  # fmt: skip
    def test_nonsense_from_a_server(self, key: str, value: object, error: type[Exception]) -> None:
        with pytest.raises(error):
            encoding_from_json({**encoding_to_json(encoding_for(5)), key: value})

    def test_ctx_binds_every_parameter(self) -> None:
        encoding = encoding_for(5)
        noise = encoding.release
        others = [
            dataclasses.replace(encoding, n_max=4),
            dataclasses.replace(encoding, clip=2.0),
            dataclasses.replace(encoding, settings=CodecSettings(clip_norm=1.0, max_metrics=5)),
            dataclasses.replace(encoding, layout=ModelState.from_arrays({"v": np.zeros(5, np.float32)}).layout),
            *(
                dataclasses.replace(encoding, release=dataclasses.replace(noise, **change))
                for change in (
                    {"variance": noise.variance / 2}, {"shares": 2}, {"scale": 2048},
                    {"mechanism": "discrete-gaussian"},
                )
            ),
        ]  # fmt: skip
        digests = {made.canonical() for made in (encoding, *others)}
        assert len(digests) == len(others) + 1

    def test_arguments_that_do_not_belong_together(self) -> None:
        encoding = encoding_for(3)
        with pytest.raises(UsageError):
            words_of(encoding, weights(size=3), base=None)
        with pytest.raises(UsageError):
            words_of(encoding, weights(size=3), out=np.zeros(1, np.uint64))
        for survivors, base, words in (
            (0, weights(size=3), encoding.words),
            (2, None, encoding.words),
            (2, weights(size=3), 1),
        ):
            with pytest.raises(UsageError):
                decode(encoding, np.zeros(words, np.uint64), survivors=survivors, base=base)

    def test_words_can_go_to_a_given_array(self) -> None:
        encoding = encoding_for(3)
        out = np.full(encoding.words, 7, np.uint64)
        words = words_of(encoding, weights(size=3), out=out)
        assert words is out
        np.testing.assert_array_equal(out, words_of(encoding, weights(size=3)))
