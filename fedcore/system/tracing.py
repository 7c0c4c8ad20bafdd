"""OpenTelemetry spans of runs, from the command to the ranks: an option, and nothing if no endpoint is named.

All spans of a run are one trace without a word between operator, server and clients: its id, and those of the spans
that others lie below, are beginnings of SHA-256 of what all of them know.

    run                 the server's; its id is that of the trace
      submit, follow    the operator's command
      exchange          the server's, with its stages
        train, ...      a client's
          rank 0, ...   its ranks; an app may add spans of its own there, by the variable TRACEPARENT

A span has a name, times, run and exchange, and nothing of what was computed.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fedcore.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

RUN: Final = "run"
"""The span of a whole run at the server, above all others of its trace."""
EXCHANGE: Final = "exchange"
"""The span of a whole exchange at the server."""
WORK: Final = "work"
"""Stands for the span of a client's work in an exchange, below which those of its ranks lie."""
_WORKS: Final = frozenset({"train", "evaluate", "query"})
"""The names of that span: an exchange has one of them."""
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

    def close(self) -> None:
        """Send what is left."""


class RoundTraces(Traces):
    """Hands spans to OpenTelemetry.

    service: `fedcore-server` or `fedcore-client`.
    instance: which of them.
    """

    def __init__(self, processor: SpanProcessor, *, service: str, instance: str) -> None:
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
                start_time=int((began + offset) * 1e9),
                attributes={"fedcore.run": run, **({"fedcore.exchange": exchange} if exchange else {})},
            )
        span.end(int((ended + offset) * 1e9))

    def _parent(self, name: str, run: str, exchange: int, below: str) -> int:
        if below:
            return span_id(below, run, exchange, self.instance)
        return span_id(EXCHANGE, run, exchange) if exchange and name != EXCHANGE else span_id(RUN, run)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def open_traces(endpoint: str, *, service: str, instance: str) -> Traces:
    """Traces that go to an endpoint of OTLP over HTTP, or to the one that OTEL_* variables name; none without either.

    Raises ConfigurationError if OpenTelemetry is not installed.
    """
    if not endpoint and not any(map(os.environ.get, _ENVIRONMENT)):
        return Traces()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigurationError("traces need OpenTelemetry: pip install 'fedcore[tracing]'") from None
    logging.getLogger("fedcore").info("traces of runs go to %s", endpoint or "where OTEL_* says")
    exporter = OTLPSpanExporter(endpoint=endpoint or None)
    return RoundTraces(BatchSpanProcessor(exporter), service=service, instance=instance)
