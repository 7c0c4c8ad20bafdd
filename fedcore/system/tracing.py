"""OpenTelemetry spans of runs, from the command to the ranks: an option, and nothing if no endpoint is named.

All spans of a run are one trace without a word between operator, server and clients: its id, and those of the spans
that others lie below, are beginnings of SHA-256 of what all of them know. Requests of a party that traces have these
ids in the header `traceparent` (W3C Trace Context), for proxies that trace; no party takes an id from another.

    run                 the server's; its id is that of the trace
      submit, follow    the operator's command
      exchange          the server's, with its stages
        train, ...      a client's
          rank 0, ...   its ranks

An app may add spans of its own, in its ServerApp below `run` and in its ClientApp below `train`: the variable
TRACEPARENT names these. If `fedcore run` is started with that variable, its spans link to the trace that it names.

A span has a name, times, run and exchange, and nothing of what was computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from fedcore.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Link

RUN: Final = "run"
"""The span of a whole run at the server, above all others of its trace."""
EXCHANGE: Final = "exchange"
"""The span of a whole exchange at the server."""
WORK: Final = "work"
"""Stands for the span of a client's work in an exchange, below which those of its ranks lie."""
_WORKS: Final = frozenset({"train", "evaluate", "query"})
"""The names of that span: an exchange has one of them."""
_PATH: Final = re.compile(r"/v1/runs/([^/?]+)(?:/exchanges/([0-9]+))?")
"""Of a request about a run, perhaps about one of its exchanges."""
_HEADER: Final = "traceparent"
VARIABLE: Final = "TRACEPARENT"
"""Has a span of the caller of this process."""
_ENVIRONMENT: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def trace_id(run: str) -> int:
    """The id of a run's trace, 16 bytes."""
    return int.from_bytes(hashlib.sha256(f"fedcore trace\0{run}".encode()).digest()[:16], "big")


def span_id(name: str, run: str, exchange: int = 0, instance: str = "") -> int:
    """The id of a span that others lie below, 8 bytes.

    Args:
        name: RUN, EXCHANGE or WORK.
        run: its id.
        exchange: for the latter two.
        instance: for WORK, the client's name.
    """
    text = "\0".join(("fedcore span", name, run, str(exchange), instance))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def traceparent(name: str, run: str, exchange: int = 0, instance: str = "") -> str:
    """Such a span as W3C Trace Context writes it."""
    return f"00-{trace_id(run):032x}-{span_id(name, run, exchange, instance):016x}-01"


def trace_name(run: str) -> str:
    """The id of a run's trace as logs have it: 32 hexadecimal digits."""
    return f"{trace_id(run):032x}"


class Traces:
    """Takes spans that have ended. This one keeps none."""

    instance: str = ""
    """Which of its service: of a client, its name."""

    @contextlib.contextmanager
    def span(self, name: str, run: str, exchange: int) -> Iterator[None]:
        """The time that the block takes, also where it fails, as a span."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.record(name, run, exchange, began=began, ended=time.monotonic())

    def record(self, name: str, run: str, exchange: int = 0, *, began: float, ended: float, below: str = "") -> None:
        """A span; both times by the monotonic clock.

        Args:
            name: of the span.
            run: its run.
            exchange: its exchange; 0 for none.
            began: seconds.
            ended: seconds.
            below: WORK for a rank; "" for a span below its exchange, or below its run if it has none.
        """

    def headers(self, path: str) -> Mapping[str, str]:
        """What a request to `path` carries; nothing without traces."""
        del path
        return {}

    def close(self) -> None:
        """Send what is left."""


class RoundTraces(Traces):
    """Hands spans to OpenTelemetry.

    service: `fedcore-server`, `fedcore-client` or `fedcore-run`.
    instance: which of them.
    caller: a span of what started this process, as W3C Trace Context writes it; all spans link to it.
    """

    def __init__(self, processor: SpanProcessor, *, service: str, instance: str, caller: str = "") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

        class Ids(RandomIdGenerator):
            """Random, but for spans that others lie below."""

            next_ids: tuple[int, int] | None = None

            def generate_trace_id(self) -> int:
                return self.next_ids[0] if self.next_ids else super().generate_trace_id()

            def generate_span_id(self) -> int:
                return self.next_ids[1] if self.next_ids else super().generate_span_id()

        self.instance = instance
        self._links = _links(caller)
        self._caller = caller.strip() if self._links else ""
        self._ids = Ids()
        self._lock = threading.Lock()
        resource = Resource.create({"service.name": service, "service.instance.id": instance})
        # Ends with `close`, not with the interpreter.
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("fedcore")

    def record(self, name: str, run: str, exchange: int = 0, *, began: float, ended: float, below: str = "") -> None:
        """A span, as in `Traces`."""
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        trace = trace_id(run)
        kind = WORK if name in _WORKS else name
        instance = self.instance if kind == WORK else ""
        is_above = kind in (RUN, EXCHANGE, WORK)
        offset = time.time() - time.monotonic()
        with self._lock:
            self._ids.next_ids = (trace, span_id(kind, run, exchange, instance)) if is_above else None
            context = Context()
            if name != RUN:
                parent = SpanContext(
                    trace,
                    self._parent(name, run, exchange, below),
                    is_remote=True,
                    trace_flags=TraceFlags(TraceFlags.SAMPLED),
                )
                context = set_span_in_context(NonRecordingSpan(parent), context)
            span = self._tracer.start_span(
                name,
                context=context,
                links=self._links,
                start_time=int((began + offset) * 1e9),
                attributes={"fedcore.run": run, **({"fedcore.exchange": exchange} if exchange else {})},
            )
        span.end(int((ended + offset) * 1e9))

    def _parent(self, name: str, run: str, exchange: int, below: str) -> int:
        if below:
            return span_id(below, run, exchange, self.instance)
        return span_id(EXCHANGE, run, exchange) if exchange and name != EXCHANGE else span_id(RUN, run)

    def headers(self, path: str) -> Mapping[str, str]:
        """The span that a request belongs to: of its exchange, or run; before there is a run, the caller's."""
        match = _PATH.match(path)
        if match is None:
            return {_HEADER: self._caller} if self._caller else {}
        run, exchange = unquote(match[1]), match[2]
        return {_HEADER: traceparent(EXCHANGE, run, int(exchange)) if exchange else traceparent(RUN, run)}

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _links(caller: str) -> list[Link]:
    """A link to a span in another trace; none if the text names no span."""
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator().extract({_HEADER: caller}, Context())
    span = get_current_span(context).get_span_context()
    return [Link(span)] if span.is_valid else []


def open_traces(endpoint: str, *, service: str, instance: str, caller: str = "") -> Traces:
    """Traces that go to an endpoint of OTLP over HTTP, or to the one that OTEL_* variables name; none without either.

    `caller` is as in `RoundTraces`. Raises ConfigurationError if the endpoint is no address of a collector, or
    OpenTelemetry is not installed.
    """
    if not endpoint and not any(map(os.environ.get, _ENVIRONMENT)):
        return Traces()
    if endpoint:
        _check(endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigurationError("traces need OpenTelemetry: pip install 'fedcore[tracing]'") from None
    logging.getLogger("fedcore").info("traces of runs go to %s", endpoint or "where OTEL_* says")
    exporter = OTLPSpanExporter(endpoint=endpoint or None)
    return RoundTraces(BatchSpanProcessor(exporter), service=service, instance=instance, caller=caller)


def _check(endpoint: str) -> None:
    """Raise ConfigurationError for what the exporter would post spans to in vain, without a word."""
    address = urlsplit(endpoint)
    if address.scheme not in ("http", "https") or not address.hostname or address.path in ("", "/"):
        raise ConfigurationError(
            f'traces = "{endpoint}" is no address of OTLP over HTTP; write it like "http://127.0.0.1:4318/v1/traces"'
        )
