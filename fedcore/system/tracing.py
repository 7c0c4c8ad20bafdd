"""OpenTelemetry spans of rounds, from clients to the sum: an option, and nothing if no endpoint is named.

All spans of an exchange are one trace without a word between client and server: its id is the beginning of SHA-256 of
run and exchange, which both know. A span has a name, times, run and exchange, and nothing of what was computed.
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

EXCHANGE: Final = "exchange"
"""The span of a whole exchange at the server, above all others of its trace."""
_ENVIRONMENT: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def trace_ids(run: str, exchange: int) -> tuple[int, int]:
    """The id of an exchange's trace (16 bytes) and of the span above all others (8 bytes)."""
    digest = hashlib.sha256(f"fedcore trace\0{run}\0{exchange}".encode()).digest()
    return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")


class Traces:
    """Takes spans that have ended. This one keeps none."""

    @contextlib.contextmanager
    def span(self, name: str, run: str, exchange: int) -> Iterator[None]:
        """The time that the block takes, also where it fails, as a span."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.record(name, run, exchange, began=began, ended=time.monotonic())

    def record(self, name: str, run: str, exchange: int, *, began: float, ended: float) -> None:
        """A span; both times by the monotonic clock."""

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
            """Random, but for the span above all others."""

            next_ids: tuple[int, int] | None = None

            def generate_trace_id(self) -> int:
                return self.next_ids[0] if self.next_ids else super().generate_trace_id()

            def generate_span_id(self) -> int:
                return self.next_ids[1] if self.next_ids else super().generate_span_id()

        self._ids = Ids()
        self._lock = threading.Lock()
        resource = Resource.create({"service.name": service, "service.instance.id": instance})
        # Ends with `close`, not with the interpreter.
        self._provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("fedcore")

    def record(self, name: str, run: str, exchange: int, *, began: float, ended: float) -> None:
        """A span; both times by the monotonic clock."""
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        trace, above = trace_ids(run, exchange)
        offset = time.time() - time.monotonic()
        with self._lock:
            self._ids.next_ids = (trace, above) if name == EXCHANGE else None
            context = Context()
            if name != EXCHANGE:
                parent = SpanContext(trace, above, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
                context = set_span_in_context(NonRecordingSpan(parent), context)
            span = self._tracer.start_span(
                name,
                context=context,
                start_time=int((began + offset) * 1e9),
                attributes={"fedcore.run": run, "fedcore.exchange": exchange},
            )
        span.end(int((ended + offset) * 1e9))

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
    logging.getLogger("fedcore").info("traces of rounds go to %s", endpoint or "where OTEL_* says")
    exporter = OTLPSpanExporter(endpoint=endpoint or None)
    return RoundTraces(BatchSpanProcessor(exporter), service=service, instance=instance)
