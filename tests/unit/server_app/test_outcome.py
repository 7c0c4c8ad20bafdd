"""The end of an exchange, written down and read again: the same result, or the same error."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fedcore.codec import Decoded, MagnitudeStatistics
from fedcore.errors import (
    CohortTooSmall,
    ConfigurationError,
    NothingContributed,
    RepliesDiffer,
    RoundFailed,
    RoundingTooCoarse,
    TooFewContributed,
    UpdateTooLarge,
)
from fedcore.run.engine.outcome import AggregateResult, ExchangeFailure, ExchangeOutcome, ExchangeUsage, StoredReply
from fedcore.run.plain import reply_error
from fedcore.secagg import Fault
from fedcore.state import ModelState
from fedcore.wire.uploads import WithdrawalReason, WithdrawIn
from server_app.exchanges.outcome import result_of

STATISTICS = MagnitudeStatistics(
    contributors=3,
    failures=1,
    field_bits=16,
    scales=(0.1, 1e-300),
    peaks=(2.0**-40, 7e22),
    measured=(True, False),
    saturated=(False, True),
    clipped=(0, 4),
    shrunk=1,
    moved=(0.25, 0.0),
)


def again(end: ExchangeOutcome) -> ExchangeOutcome:
    """As a database gives it back."""
    return ExchangeOutcome.from_json(json.loads(json.dumps(end.to_json(), allow_nan=False)))


async def nowhere(key: str) -> Path:
    raise AssertionError(f"{key} was fetched")


@pytest.mark.parametrize(
    "error",
    [
        RoundFailed("who cheated: client-3"),
        NothingContributed(3, 3, estimated=True),
        RepliesDiffer(),
        TooFewContributed(2, 4, tolerated=1),
        UpdateTooLarge(2, 4, STATISTICS),
        RoundingTooCoarse("layer.weight", 0.8, helps=True, statistics=STATISTICS),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_failure_is_raised_again_as_it_was(error: RoundFailed) -> None:
    end = again(ExchangeOutcome(failure=ExchangeFailure.of(error), survivors=(1, 4), unmasked=True))
    with pytest.raises(RoundFailed) as raised:
        await result_of(end, nowhere)
    assert type(raised.value) is type(error)
    assert str(raised.value) == str(error)
    assert vars(raised.value) == vars(error)
    assert (end.survivors, end.unmasked) == ((1, 4), True)


def test_statistics_that_an_earlier_version_stored_are_read() -> None:
    """They held the sums of the clients' largest changes, too."""
    end = ExchangeOutcome(failure=ExchangeFailure.of(UpdateTooLarge(2, 4, STATISTICS)))
    kept = json.loads(json.dumps(end.to_json()))
    kept["failure"]["statistics"]["sizes"] = [0.3, 1 / 3]
    assert ExchangeOutcome.from_json(kept) == end


def test_any_other_failure_is_told_in_words() -> None:
    end = again(
        ExchangeOutcome(
            failure=ExchangeFailure.of(CohortTooSmall("share", 1, 3), "1 client was left, silent: client-2")
        )
    )
    assert end.failure == ExchangeFailure(kind="RoundFailed", reason="1 client was left, silent: client-2")


async def test_a_sum_comes_back_with_the_same_bits(tmp_path: Path) -> None:
    state = ModelState.from_arrays({"weight": np.linspace(0, 1, 7, dtype=np.float32)})
    state.save(tmp_path / "mean")
    decoded = Decoded(
        examples=64,
        failures=1,
        lost_norm=1 / 3,
        metrics={"loss": 0.1, "pair": [1.0, 2 / 3]},
        names=(("loss", None), ("pair", 2)),
        statistics=STATISTICS,
        state=state,
        rounded=("batches",),
    )
    usage = ExchangeUsage({"input": 1.5, "result": 0.25}, {1: 3, 2: 4}, {1: 5})
    end = again(
        ExchangeOutcome(
            total=AggregateResult.of(decoded, "runs/a/exchanges/1/mean", "ab" * 32),
            survivors=(1, 2),
            blamed={3: Fault.WRONG_SHARE},
            withdrawals={4: WithdrawIn(reason=WithdrawalReason.POLICY, check="too-long", asked=2.5, allowed=1.5)},
            common=WithdrawalReason.POLICY,
            usage=usage,
        )
    )

    async def fetch(key: str) -> Path:
        assert key == "runs/a/exchanges/1/mean"
        return tmp_path / "mean"

    result = await result_of(end, fetch)
    assert result.decoded is not None
    assert result.decoded.state is not None
    assert dict(result.decoded.state)["weight"].tobytes() == state["weight"].tobytes()
    for name in ("examples", "failures", "lost_norm", "metrics", "names", "statistics", "rounded"):
        assert getattr(result.decoded, name) == getattr(decoded, name)
    assert (result.survivors, result.examples) == ({1, 2}, 64)
    assert (end.usage.seconds, end.usage.up, end.blamed) == (1.75, {1: 3, 2: 4}, {3: Fault.WRONG_SHARE})
    assert end.withdrawals[4].asked == 2.5


async def test_plain_replies_come_back_with_numbers_that_json_does_not_know(tmp_path: Path) -> None:
    replies = (
        StoredReply(node=1, content="one", examples=3, metrics={"loss": math.nan, "all": [math.inf, -math.inf]}),
        StoredReply(node=2, error=reply_error(2, "it broke")),
    )
    result = await result_of(
        again(ExchangeOutcome(replies=replies, survivors=(1,))), lambda key: in_folder(tmp_path, key)
    )
    one, two = result.plain
    assert (one.content, one.examples, one.error) == (tmp_path / "one", 3, None)
    assert math.isnan(one.metrics["loss"])  # type: ignore[arg-type]
    assert one.metrics["all"] == [math.inf, -math.inf]
    assert (two.content, two.error) == (None, reply_error(2, "it broke"))
    assert (result.survivors, result.examples) == ({1}, 3)


async def in_folder(folder: Path, key: str) -> Path:
    return folder / key


def test_what_is_no_end_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'survivors'"):
        ExchangeOutcome.from_json({"survivors": "all"})
