"""A client that is killed at one exact point of the protocol: right after one of its requests was answered.

python client_that_dies.py ROUTE --kit DIR --app DIR

ROUTE is the end of the request's path: "update/parts/0" for the first part of the masked vector, "manifest" for the
word that ends its upload. Everything else is `fedcore client`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import client_app.startup
from client_app.http.http_transport import HttpTransport
from fedcore.cli.main import main
from fedcore.wire.base import Message


class DoomedTransport(HttpTransport):
    """Sends what it is asked to; once the fatal request is answered nothing of the process runs any more."""

    fatal: str

    async def send(self, method: str, path: str, message: Message, **options: Any) -> None:
        await super().send(method, path, message, **options)
        self._die_after(path)

    async def put(self, path: str, message: Message, *arguments: Any, **options: Any) -> Any:
        answer = await super().put(path, message, *arguments, **options)
        self._die_after(path)
        return answer

    async def put_octets(self, path: str, content: memoryview, **options: Any) -> None:
        await super().put_octets(path, content, **options)
        self._die_after(path)

    def _die_after(self, path: str) -> None:
        if path.endswith(f"/{self.fatal}"):
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    DoomedTransport.fatal, sys.argv[1] = sys.argv[1], "client"
    client_app.startup.HttpTransport = DoomedTransport  # type: ignore[misc]
    main()
