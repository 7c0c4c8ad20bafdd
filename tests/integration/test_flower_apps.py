"""Apps that use all of Flower, over real processes: own records, errors, own loops, and the legacy API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.deployment import Deployment

APPS = Path(__file__).parents[1] / "apps"
CLIENTS = ["client-1", "client-2", "client-3"]
PLAIN = {"aggregation": "plain", "min-clients": 3}
ROUND = float(np.dot([10, 20, 30], [0.25, 0.5, 0.75]) / 60)


def deployed(folder: Path, name: str) -> Iterator[Deployment]:
    """A federation of three whose owners let the server read, with one of the apps."""
    with Deployment.open(folder, clients=3, allow_plain=True) as federation:
        federation.app = APPS / name
        federation.start()
        yield federation


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from deployed(tmp_path_factory.mktemp("records"), "records")


@pytest.fixture(scope="module")
def legacy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from deployed(tmp_path_factory.mktemp("legacy"), "legacy")


def test_every_record_comes_back_and_each_node_gets_its_own(records: Deployment) -> None:
    done = records.submit(settings=PLAIN, messages=2).finish()
    assert done.status == 0, done.stderr
    assert "echoed 6 of 6" in [event["line"] for event in done.of("log")]
    assert [event["survivors"] for event in done.of("exchange-done")] == [CLIENTS] * 2


def test_an_error_of_a_client_reaches_the_server_app(records: Deployment) -> None:
    done = records.submit(settings=PLAIN, raises=1).finish()
    assert done.status == 0, done.stderr
    lines = [event["line"] for event in done.of("log")]
    assert any(line.endswith("error 2, ValueError: no data here") for line in lines)
    assert "echoed 2 of 3" in lines
    (dropped,) = done.of("dropped")
    assert "ValueError: no data here" in dropped["reason"]


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
def test_a_legacy_app_trains(legacy: Deployment, aggregation: str) -> None:
    done = legacy.submit(settings={"aggregation": aggregation, "min-clients": 3}).finish()
    assert done.status == 0, done.stderr
    assert [event["survivors"] for event in done.of("exchange-done")] == [CLIENTS] * 4
    for array in done.arrays().values():
        np.testing.assert_allclose(array, 2 * ROUND, atol=1e-4)
    assert sorted(done.summary["results"]["evaluate"]) == ["1", "2"]
    assert done.summary["results"]["evaluate"]["2"]["loss"] == pytest.approx(2 * ROUND, abs=1e-4)


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
def test_a_legacy_app_whose_clients_all_fail_does_not_end_well(legacy: Deployment, aggregation: str) -> None:
    done = legacy.submit(settings={"aggregation": aggregation, "min-clients": 3}, raises=True).finish()
    assert done.status == 5
    if aggregation == "plain":
        assert "ValueError: no data here" in done.stderr
