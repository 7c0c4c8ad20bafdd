"""What is seen of a server that runs: metrics, and logs as JSON."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.members import Failure
from support.ports import reserved_port
from support.serverside import Site

from fedcore.errors import EnvironmentFailure, StorageFull, StorageUnavailable
from fedcore.state import ModelState
from fedcore.wire.events import ClientBlamed, ClientDropped, ExchangeDone, ExchangeFailed, ExchangeRepeated
from server_app import logs
from server_app.background import update_gauges
from server_app.exchanges.group_assignment import DrawExchange
from server_app.exchanges.plain import PlainExchange
from server_app.exchanges.secure import SecureExchange
from server_app.operation.metrics import Metrics

STAGES = ["join", "train", *DrawExchange.stage_names, *SecureExchange.stage_names, *PlainExchange.stage_names]


def figures(metrics: Metrics) -> dict[str, float]:
    """All samples by name and labels."""
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
    }


async def one_round(here: Site, model: ModelState, *, without: int = 0) -> str:
    run, app = await here.begin({"quorum": 3} if without else {})
    asking = asyncio.create_task(app.exchange(model, list(here.members)))
    members = await here.enter_all()
    if without:
        await members.pop(0).withdraw()
    await asyncio.gather(*(member.secure() for member in members))
    await asking
    await here.finish(run, app, model)
    return run


def test_a_line_does_nothing_to_a_terminal() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.LineFormatter())
    record = logging.LogRecord("fedcore.server", logging.INFO, "", 0, "it failed: %s", ("\x1b[2J\x9b31m\rfine",), None)
    handler.emit(record)
    assert stream.getvalue().splitlines()[0].endswith(r"it failed: \x1b[2J\x9b31m\rfine")


async def test_a_round_is_counted(here: Site, model: ModelState) -> None:
    metrics = here.services.metrics
    before = figures(metrics)
    assert before["fedcore_requests_total 2xx"] == 0
    await one_round(here, model)
    await update_gauges(here.services)
    found = figures(metrics)
    assert found["fedcore_rounds_total done"] == 1
    assert found["fedcore_runs_total finished"] == 1
    assert found["fedcore_round_seconds_count"] == 1
    stages = {key.split()[1] for key in found if key.startswith("fedcore_stage_seconds_count")}
    assert stages == {"advertise", "share", "input", "consistency", "unmask", "result"}
    assert found["fedcore_fold_seconds_count"] == 4
    assert found["fedcore_client_bytes_total up"] > model.layout.nbytes
    assert found["fedcore_requests_total 2xx"] > 20
    assert found["fedcore_requests_total 4xx"] == 0
    assert found["fedcore_clients_connected"] == 4
    assert (found["fedcore_runs_led"], found["fedcore_runs_waiting"], found["fedcore_leader"]) == (0, 0, 1)


async def test_refusals_and_troubles_of_the_storage_are_counted(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Failure):
        await here.operator("GET", "/v1/runs/none")

    async def away(_: object) -> int:
        raise StorageUnavailable("database is locked")

    monkeypatch.setattr(type(here.services.store), "count_waiting", away)
    await update_gauges(here.services)
    here.services.metrics.storage_failed(StorageFull("full"))
    found = figures(here.services.metrics)
    assert found["fedcore_requests_total 4xx"] == 1
    assert found["fedcore_storage_errors_total unavailable"] == 1
    assert found["fedcore_storage_errors_total full"] == 1


def test_every_counter_is_there_before_the_first_event() -> None:
    """An alarm on `increase(...)` sees the first error only if there was a sample of 0 before it."""
    before = figures(Metrics())
    documented = {
        "fedcore_storage_errors_total": ["full", "unavailable", "damaged", "other"],
        "fedcore_rounds_total": ["done", "failed", "repeated"],
        "fedcore_groups_total": ["done", "failed"],
        "fedcore_runs_total": ["finished", "failed", "cancelled", "interrupted"],
        "fedcore_client_bytes_total": ["up", "down"],
        "fedcore_dropouts_total": STAGES,
        "fedcore_blamed_total": STAGES,
    }
    for name, values in documented.items():
        assert {key: before.get(key) for key in (f"{name} {value}" for value in values)} == {
            f"{name} {value}": 0 for value in values
        }


def test_every_event_that_matters_is_counted_and_no_label_names_anybody() -> None:
    metrics = Metrics()
    done = ExchangeDone(
        exchange=1,
        server_round=1,
        message_type="train",
        aggregation="secure",
        survivors=["hospital-1"],
        examples=9,
        metrics={"loss": 1.0},
        seconds=2.0,
        failures=1,
        stage_seconds={"input": 1.0},
        bytes_up={"hospital-1": 10, "hospital-2": 5},
        bytes_down={"hospital-1": 7},
        epsilon_spent=1.5,
    )
    metrics.observe(done)
    metrics.observe(ExchangeFailed(exchange=2, server_round=2, reason="hospital-1 left", retry=True))
    metrics.observe(ExchangeRepeated(exchange=3, server_round=2, large=1, survivors=4))
    metrics.observe(ClientDropped(exchange=2, client="hospital-1", stage="input", reason="silent"))
    metrics.observe(ClientBlamed(exchange=2, client="hospital-1", stage="unmask", reason="malformed-message"))
    found = figures(metrics)
    assert not any("hospital" in key or "loss" in key for key in found)
    wanted = {
        "fedcore_rounds_total done": 1,
        "fedcore_rounds_total failed": 1,
        "fedcore_rounds_total repeated": 1,
        "fedcore_dropouts_total input": 1,
        "fedcore_blamed_total unmask": 1,
        "fedcore_client_bytes_total up": 15,
        "fedcore_client_bytes_total down": 7,
        "fedcore_empty_contributions_total": 1,
        "fedcore_epsilon_spent": 1.5,
        "fedcore_stage_seconds_sum input": 1,
    }
    assert wanted.items() <= found.items()


def test_prometheus_can_read_them() -> None:
    with reserved_port() as port:
        end = Metrics().serve(f"127.0.0.1:{port}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                names = {family.name for family in text_string_to_metric_families(answer.read().decode())}
            assert {"fedcore_rounds", "fedcore_leader", "process_resident_memory_bytes"} <= names
            with pytest.raises(EnvironmentFailure, match=f"metrics-listen.*{port}"):
                Metrics().serve(f"127.0.0.1:{port}")
        finally:
            end()


# --- logs ---------------------------------------------------------------------------------------


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """What the server logs as JSON; filled in at the end of the block that logs."""
    stream, found = io.StringIO(), []
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    log = logging.getLogger("fedcore")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)

    class Lines(list[dict[str, Any]]):
        def read(self) -> list[dict[str, Any]]:
            self[:] = [json.loads(line) for line in stream.getvalue().splitlines()]
            return self

    yield Lines(found)
    log.removeHandler(handler)
    log.setLevel(level)


async def test_lines_say_which_run_and_exchange_they_are_about(here: Site, model: ModelState, lines: Any) -> None:
    run = await one_round(here, model, without=1)
    found = lines.read()
    assert {line["run"] for line in found if "event" in line} == {run}
    dropped = next(line for line in found if line.get("event") == "dropped")
    name = dropped["data"]["client"]
    assert (dropped["exchange"], dropped["client"], dropped["stage"]) == (1, name, "advertise")
    assert (dropped["step"], len(dropped["request"])) == ("withdrawal", 16)
    assert next(line for line in found if line.get("event") == "exchange-done")["exchange"] == 1


async def test_no_line_has_a_secret_or_a_message(here: Site, model: ModelState, lines: Any) -> None:
    sent: list[bytes] = []
    request = here.http.request

    async def watched(method: str, url: str, **rest: Any) -> Any:
        content = rest.get("content")
        sent.append(content if isinstance(content, bytes) else str(content or "").encode())
        return await request(method, url, **rest)

    here.http.request = watched  # type: ignore[method-assign]
    await one_round(here, model)
    text = json.dumps(lines.read())
    assert here.operator_kit.token not in text
    assert any(len(body) > 500 for body in sent)
    for body in sent:
        with_strings = json.loads(body) if body.startswith(b"{") else {}
        for value in strings_of(with_strings):
            assert len(value) < 40 or value not in text


def strings_of(value: Any) -> Iterator[str]:
    """All texts in plain JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from strings_of(item)


def test_what_is_noted_ends_with_its_block() -> None:
    record = logging.LogRecord("fedcore", logging.INFO, "", 0, "%s", ("hello",), None)
    with logs.at(request="r1"):
        logs.note(client="a")
        with logs.at(run="x"):
            inner = json.loads(logs.JsonFormatter().format(record))
        outer = json.loads(logs.JsonFormatter().format(record))
    after = json.loads(logs.JsonFormatter().format(record))
    assert (inner["request"], inner["client"], inner["run"]) == ("r1", "a", "x")
    assert "run" not in outer
    assert not {"request", "client", "run"} & after.keys()
