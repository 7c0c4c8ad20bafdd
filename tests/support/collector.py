"""A collector of spans: OTLP over HTTP, on a port of its own, in a thread."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """What a test looks at. Ids are hexadecimal; `parent` is "" for none."""

    service: str
    instance: str
    name: str
    trace: str
    id: str
    parent: str
    links: tuple[str, ...]
    attributes: frozenset[str]


@dataclass
class Collector:
    url: str = ""
    requests: list[ExportTraceServiceRequest] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def open(cls) -> Iterator[Collector]:
        collector = cls()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Quiet."""

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            collector.url = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield collector
            finally:
                server.shutdown()
                thread.join()

    def spans(self) -> list[Span]:
        """All that came so far."""
        return [
            Span(
                service=told["service.name"],
                instance=told["service.instance.id"],
                name=span.name,
                trace=span.trace_id.hex(),
                id=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                links=tuple(link.trace_id.hex() for link in span.links),
                attributes=frozenset(item.key for item in span.attributes),
            )
            for request in self.requests
            for resource in request.resource_spans
            for told in [{item.key: item.value.string_value for item in resource.resource.attributes}]
            for scope in resource.scope_spans
            for span in scope.spans
        ]
