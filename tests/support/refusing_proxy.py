"""A proxy that refuses, and tells what it was asked for."""

from __future__ import annotations

import contextlib
import socketserver
import threading
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def refusing_proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The proxy that the environment names meanwhile; gives the first lines of its requests."""
    lines: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            lines.append(self.rfile.readline().decode().strip())
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

    for name in ("https_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.server_address[1]}")
        try:
            yield lines
        finally:
            server.shutdown()
            serving.join()
