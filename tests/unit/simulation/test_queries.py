"""`@app.query` in secure mode: the sum over the clients of every number, under its own name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from support.raising import raises

from fedcore.errors import ConfigurationError, FedcoreError, RepliesDiffer, RunFailed
from fedcore.federation import Policy
from fedcore.flower.app import FlowerApp
from fedcore.flower.grid.declarations import sum_only
from fedcore.flower.grid.grid import ExchangeBackend
from fedcore.flower.grid.secure_grid import SecureGrid
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.wire.events import EventSink, RunEvent, ignore

APP = Path(__file__).parents[2] / "apps" / "columns"
sys.path.insert(0, str(APP))
from columns_app.table import table  # noqa: E402


def simulation(
    clients: int = 3, settings: dict[str, Any] | None = None, emit: EventSink = ignore, **run_config: Any
) -> Simulation:
    app = FlowerApp.load(APP)
    config = {**app.run_config, **{key.replace("_", "-"): value for key, value in run_config.items()}}
    return Simulation(
        app=app,
        clients=clients,
        run_config=config,
        settings=JobSettings.from_mapping(settings or {}),
        policy=Policy.own(clients),
        emit=emit,
    )


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)


@sum_only
def asked_of(backend: ExchangeBackend) -> list[RecordDict]:
    grid = SecureGrid(backend, run_id=1)
    replies = grid.deliver([Message(RecordDict(), node, "query") for node in grid.get_node_ids()], None)
    return [reply.content for reply in replies]


def ask(simulation: Simulation) -> list[RecordDict]:
    with simulation.open() as backend:
        return asked_of(backend)


def test_one_reply_holds_the_sum_of_each_number_under_its_name() -> None:
    parts = [table(partition, 40) for partition in range(3)]
    (content,) = ask(simulation())
    assert list(content) == ["rows", "wards/of 4%"]
    assert content["rows"]["count"] == sum(len(part["age"]) for part in parts)
    assert content["rows"]["age/sum"] == pytest.approx(sum(np.nansum(part["age"]) for part in parts), abs=1e-4)
    wards = sum(np.bincount(part["ward"].astype(int), minlength=4) for part in parts)
    assert content["wards/of 4%"]["count"] == wards.tolist()


def test_the_next_query_may_hold_other_numbers() -> None:
    simulated = simulation()
    with simulated.open() as backend:
        (first,) = asked_of(backend)
        simulated.run_config = {**simulated.run_config, "fault": "other", "faulty-partition": -1}
        (second,) = asked_of(backend)
    assert first == second


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("array", "ArrayRecord.*'ages'"),
        ("config", "ConfigRecord.*'about'"),
        ("nothing", "MetricRecord$"),
        ("large", "'rows/count'.*2.19902e+12.*1.09951e+12.*query-max"),
        ("names", r"\b4129\b.*\b4000\b"),
        ("raise", "patient 17"),
    ],
)
def test_what_cannot_be_added_up_is_refused_by_name(fault: str, said: str) -> None:
    with pytest.raises((FedcoreError, ValueError), match=said.replace("+", r"\+")):
        ask(simulation(fault=fault))


def test_other_names_at_one_client_give_no_sum_and_no_second_attempt() -> None:
    events: list[RunEvent] = []
    with pytest.raises(RunFailed) as failed:
        ask(simulation(fault="other", emit=events.append))
    assert isinstance(failed.value.__cause__, RepliesDiffer)
    assert [event.kind for event in events] == ["exchange-failed"]


def test_more_than_1000_clients_have_room() -> None:
    encoding = EncodingPlan(JobSettings()).encoding("query.count", None, 1000)
    assert (encoding.settings.w_max, encoding.settings.metric_max) == (1, 2.0**40)
    with pytest.raises(ConfigurationError, match=r"query-max.*90071992546$"):
        EncodingPlan(JobSettings(field_bits=32)).encoding("query.count", None, 100_000)
    EncodingPlan(JobSettings(field_bits=32, query_max=90071992546.0)).encoding("query.count", None, 100_000)


def test_a_run_with_noise_for_each_client_answers_none() -> None:
    with raises(ConfigurationError, check="query-without-noise"):
        ask(simulation(settings={"dp-epsilon": 1.0, "dp-rounds": 1, "clip-norm": 1.0}))
