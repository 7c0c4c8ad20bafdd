"""One trace a run, of spans from the command to the ranks; and nothing where nobody asked for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import numpy as np
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.collector import Collector
from support.scripted import Scripted as Script
from support.scripted import (
    allow,
    client,
    federation,
    kit,
    kits,
    ledger,
    listening_to,
    log,
    make_task,
    notices,
    retry,
    script,
)
from support.serverside import site

from client_app.exchange.client import Client
from client_app.exchange.exchange import take_part
from client_app.http.errors import tls_context
from client_app.http.http_transport import HttpTransport, signer
from client_app.operator.client import OperatorClient
from fedcore.errors import ConfigurationError, FedcoreError
from fedcore.federation import OperatorKit, provision
from fedcore.state import ModelState
from fedcore.system.tracing import (
    EXCHANGE,
    RUN,
    WORK,
    RoundTraces,
    Traces,
    open_traces,
    span_id,
    trace_id,
    trace_name,
    traceparent,
)

__all__ = [
    "allow",
    "client",
    "federation",
    "kit",
    "kits",
    "ledger",
    "listening_to",
    "log",
    "make_task",
    "notices",
    "retry",
    "script",
]

STAGES = {"advertise", "share", "input", "consistency", "unmask"}


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


def traces_to(exporter: InMemorySpanExporter, service: str) -> RoundTraces:
    return RoundTraces(SimpleSpanProcessor(exporter), service=service, instance="test")


async def test_a_run_is_one_trace_at_the_server(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, spans: InMemorySpanExporter
) -> None:

    four = provision(tmp_path_factory.mktemp("four") / "fed", name="four", clients=4, now=datetime.now(UTC))
    model = ModelState.from_arrays({"w": np.zeros(8, "float32")})
    async with site(four, tmp_path) as here:
        object.__setattr__(here.services, "traces", traces_to(spans, "fedcore-server"))
        run, app = await here.begin()
        for _ in range(2):
            asking = asyncio.create_task(app.exchange(model, list(here.members)))
            await asyncio.gather(*(member.secure() for member in await here.enter_all()))
            await asking
            model = ModelState.from_arrays({"w": np.ones(8, "float32")})
        await here.finish(run, app, model)
    assert {span.context.trace_id for span in spans.get_finished_spans()} == {trace_id(run)}
    [whole] = [span for span in spans.get_finished_spans() if span.name == RUN]
    assert (whole.context.span_id, whole.parent) == (span_id(RUN, run), None)
    for exchange in (1, 2):
        above = span_id(EXCHANGE, run, exchange)
        of_run = [span for span in spans.get_finished_spans() if span is not whole]
        found = [span for span in of_run if span.attributes["fedcore.exchange"] == exchange]
        names = [span.name for span in found]
        assert set(names) == STAGES | {EXCHANGE, "fold", "decode"}
        assert names.count("fold") == 4
        [root] = [span for span in found if span.name == EXCHANGE]
        assert (root.context.span_id, root.parent.span_id) == (above, whole.context.span_id)
        assert all(span.parent.span_id == above for span in found if span is not root)
        assert all(root.start_time - 10**6 <= span.start_time <= span.end_time for span in found)  # a millisecond
        assert all(set(span.attributes) == {"fedcore.run", "fedcore.exchange"} for span in found)
    assert len({span.context.span_id for span in spans.get_finished_spans()}) == len(spans.get_finished_spans())


async def test_a_clients_spans_are_of_the_same_trace(
    script: Script, client: Client, spans: InMemorySpanExporter
) -> None:
    async with script.serving():
        await take_part(script.task, replace(client, traces=traces_to(spans, "fedcore-client")))
    assert set(script.contexts) == {""}, "its transport has no traces"
    run, exchange = script.task.run, script.task.exchange
    trace, above = trace_id(run), span_id(EXCHANGE, run, exchange)
    found = spans.get_finished_spans()
    assert {span.name for span in found} >= {"download", "train", "encode", "mask and upload", "unmask", "take part"}
    assert {(span.context.trace_id, span.parent.span_id) for span in found} == {(trace, above)}
    [work] = [span for span in found if span.name == "train"]
    assert work.context.span_id == span_id(WORK, run, exchange, "test")
    told = json.dumps([json.loads(span.to_json()) for span in found])
    assert "loss" not in told
    assert "examples" not in told


async def test_requests_of_a_client_that_traces_name_their_exchange(
    script: Script, client: Client, spans: InMemorySpanExporter
) -> None:
    traces, kit = traces_to(spans, "fedcore-client"), client.kit
    over = HttpTransport(urls=kit.servers, tls=tls_context(kit.ca_file), sign=signer(kit), traces=traces)
    async with script.serving(), over:
        await take_part(script.task, replace(client, traces=traces, transport=over))
    assert set(script.contexts) == {traceparent(EXCHANGE, script.task.run, script.task.exchange)}


def test_the_command_hands_on_who_called_it_until_there_is_a_run(spans: InMemorySpanExporter) -> None:
    caller = f"00-{'4b' * 16}-{'00f067aa' * 2}-01"
    kit = OperatorKit(
        folder=Path(), federation="f", servers=("https://a:1",), ca_file=None, authority=bytes(32), token="t"
    )
    requests: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        requests.append((request.url.path, request.headers.get("traceparent")))
        return httpx.Response(200 if request.url.path == "/v1/runs" else 404, json={"runs": [], "more": False})

    traces = RoundTraces(SimpleSpanProcessor(spans), service="fedcore-run", instance="test", caller=f"{caller} ")
    with OperatorClient(kit, transport=httpx.MockTransport(answer), traces=traces) as client:
        client.list_runs(limit=1)
        with contextlib.suppress(FedcoreError):
            client.clients_of("r1")
    assert requests == [("/v1/runs", caller), ("/v1/runs/r1/clients", traceparent(RUN, "r1"))]
    traces.record("submit", "r1", began=1.0, ended=2.0)
    [span] = spans.get_finished_spans()
    assert [link.context.trace_id for link in span.links] == [int("4b" * 16, 16)]
    assert span.context.trace_id == trace_id("r1")


@pytest.mark.parametrize("caller", ["", "no span", f"00-{'0' * 32}-{'00f067aa' * 2}-01", "00-4b-00-01\r\nx: y"])
def test_a_caller_that_is_no_span_is_left_out(spans: InMemorySpanExporter, caller: str) -> None:
    traces = RoundTraces(SimpleSpanProcessor(spans), service="fedcore-run", instance="test", caller=caller)
    assert traces.headers("/v1/runs") == {}
    traces.record("submit", "r1", began=1.0, ended=2.0)
    assert [span.links for span in spans.get_finished_spans()] == [()]


@pytest.mark.parametrize("endpoint", ["localhost:4318", "127.0.0.1", "http://127.0.0.1:4318", "ftp://a/v1/traces"])
def test_an_endpoint_that_takes_no_spans_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError):
        open_traces(endpoint, service="fedcore-server", instance="a")


def test_a_rank_s_span_lies_below_its_client_s(spans: InMemorySpanExporter) -> None:
    traces = traces_to(spans, "fedcore-client")
    traces.record("rank 1", "r1", 7, began=1.0, ended=2.0, below=WORK)
    [span] = spans.get_finished_spans()
    known = f"00-{span.context.trace_id:032x}-{span.parent.span_id:016x}-01"
    assert known == traceparent(WORK, "r1", 7, "test")
    assert traceparent(WORK, "r1", 7, "another") != known


def test_nothing_is_traced_unless_an_endpoint_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert type(open_traces("", service="fedcore-server", instance="a")) is Traces
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ConfigurationError, match=r"fedcore\[tracing\]"):
        open_traces("http://127.0.0.1:4318/v1/traces", service="fedcore-server", instance="a")


@pytest.mark.parametrize("by_environment", [False, True])
def test_spans_reach_a_collector(monkeypatch: pytest.MonkeyPatch, by_environment: bool) -> None:
    with Collector.open() as collector:
        if by_environment:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        endpoint = "" if by_environment else f"{collector.url}/v1/traces"
        traces = open_traces(endpoint, service="fedcore-client", instance="hospital-3")
        with traces.span("train", "r1", 7):
            pass
        traces.close()
    [span] = collector.spans()
    assert (span.name, span.trace) == ("train", trace_name("r1"))
    assert (span.service, span.instance) == ("fedcore-client", "hospital-3")
