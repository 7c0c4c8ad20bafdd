"""Apps that use all of Flower, in simulate: own records, errors, own loops, and the legacy API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.raising import raises

from fedcore.errors import AppError, RunFailed

Simulate = Callable[..., Any]
APPS = Path(__file__).parents[2] / "apps"
RECORDS, LEGACY = APPS / "records", APPS / "legacy"
PLAIN = {"aggregation": "plain"}


def test_every_record_comes_back_and_each_node_gets_its_own(
    simulate: Simulate, capsys: pytest.CaptureFixture[str]
) -> None:
    done = simulate(3, app=RECORDS, settings=PLAIN)
    assert "echoed 3 of 3" in capsys.readouterr().out
    assert len(done.of("exchange-done")) == 1, "different contents are one exchange"


def test_several_messages_to_a_node_are_as_many_exchanges(
    simulate: Simulate, capsys: pytest.CaptureFixture[str]
) -> None:
    done = simulate(3, app=RECORDS, settings=PLAIN, messages=2)
    assert "echoed 6 of 6" in capsys.readouterr().out
    assert len(done.of("exchange-done")) == 2


def test_an_error_of_a_client_reaches_the_server_app(simulate: Simulate, capsys: pytest.CaptureFixture[str]) -> None:
    done = simulate(3, app=RECORDS, settings=PLAIN, raises=1)
    out = capsys.readouterr().out
    assert "node 2: error 2, ValueError: no data here" in out
    assert "echoed 2 of 3" in out
    assert done.of("exchange-done")[0]["survivors"] == ["client-1", "client-3"]


def test_a_run_without_a_single_reply_fails_for_the_first_reason(simulate: Simulate) -> None:
    with raises(RunFailed, check="no-reply", match="ValueError"):
        simulate(1, app=RECORDS, settings=PLAIN, raises=0, **{"min-nodes": 1})


EXAMPLES = np.array([10, 20, 30])
ROUND = float((EXAMPLES * [0.25, 0.5, 0.75]).sum() / EXAMPLES.sum())


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
@pytest.mark.parametrize("strategy", ["FedAvg", "FedAvgM"])
def test_a_legacy_app_trains(simulate: Simulate, aggregation: str, strategy: str) -> None:
    done = simulate(3, app=LEGACY, settings={"aggregation": aggregation}, strategy=strategy)
    assert [event["survivors"] for event in done.of("exchange-done")] == [["client-1", "client-2", "client-3"]] * 4
    assert done.of("exchange-done")[0]["examples"] == 60
    for array in done.state.values():
        np.testing.assert_allclose(array, 2 * ROUND, atol=1e-4)


def test_a_legacy_app_may_ask_a_client_for_its_parameters(simulate: Simulate) -> None:
    done = simulate(3, app=LEGACY, settings=PLAIN, initial=False)
    assert done.of("exchange-done")[0]["message_type"] == "get_parameters"
    for array in done.state.values():
        np.testing.assert_allclose(array, 2 * ROUND, atol=1e-6)


def test_secured_no_single_client_is_asked_for_its_parameters(simulate: Simulate) -> None:
    with pytest.raises(AppError, match="initial_parameters"):
        simulate(3, app=LEGACY, settings={"aggregation": "secure"}, initial=False)


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
def test_a_legacy_app_whose_clients_all_fail_does_not_end_well(simulate: Simulate, aggregation: str) -> None:
    with pytest.raises((RunFailed, ValueError), match=r"ValueError|^no\b"):
        simulate(3, app=LEGACY, settings={"aggregation": aggregation}, raises=True)


def test_a_legacy_strategy_that_needs_single_replies_is_refused_secured(simulate: Simulate) -> None:
    with raises(AppError, check="secure-aggregation", match="FedMedian"):
        simulate(3, app=LEGACY, settings={"aggregation": "secure"}, strategy="FedMedian")
    done = simulate(3, app=LEGACY, settings=PLAIN, strategy="FedMedian")
    for array in done.state.values():
        np.testing.assert_allclose(array, 1.0)
