"""Two servers of one federation, over one PostgreSQL and one folder of objects, and clients that know both."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fedcore.comparison.local_federation import FEDCORE, free_port

from .deployment import PATIENCE, Deployment, wait_until

SERVERS = ("server", "server-2")
_SEVERAL = "# servers = ["
_LASTING = httpx.Limits(keepalive_expiry=60)


@dataclass(slots=True)
class Replicas:
    """The servers by their names, which are their folders' too; whoever asks knows both addresses."""

    made: Deployment
    ports: dict[str, int]
    _http: httpx.Client = field(repr=False)

    @classmethod
    @contextlib.contextmanager
    def open(cls, folder: Path, database: str, *, clients: int, behind: bool = False) -> Iterator[Replicas]:
        """Provision; nothing runs yet. database: URL of an empty one.

        behind: what everybody knows is the address of something that stands before both servers.
        """
        with Deployment.open(folder, clients=clients) as made:
            ports = {SERVERS[0]: free_port() if behind else made.federation.port, SERVERS[1]: free_port()}
            kit = made.federation.folder / SERVERS[0]
            _replace(kit / "server.toml", 'database = ""', f'database = "{database}"')
            _replace(kit / "server.toml", 'objects = ""', f'objects = "{folder / "objects"}"')
            shutil.copytree(kit, made.federation.folder / SERVERS[1])
            for path in made.federation.folder.glob("**/*.toml"):
                if not behind and _SEVERAL in (text := path.read_text()):
                    line = next(line for line in text.splitlines() if line.startswith(_SEVERAL))
                    path.write_text(text.replace(line, f'servers = ["https://localhost:{ports[SERVERS[1]]}"]'))
            trusted = ssl.create_default_context(cafile=kit / "ca.crt")
            with httpx.Client(verify=trusted, trust_env=False, timeout=5, limits=_LASTING) as http:
                yield cls(made, ports, http)

    def start(self, name: str) -> None:
        """Start a server, and wait until it answers: it leads, or stands by."""
        folder = self.made.federation.folder / name
        process = self.made.start_process(
            name, [*FEDCORE, "server", "--federation", folder, "--port", str(self.ports[name])]
        )
        wait_until(f"{name} to answer", lambda: process.poll() is not None or self.ask(name, "/healthz") is not None)
        assert process.poll() is None, self.made.log(name)

    def ask(self, name: str, path: str, **headers: str) -> httpx.Response | None:
        """What a server answers; None where it does not."""
        try:
            return self._http.get(f"https://localhost:{self.ports[name]}{path}", headers=headers)
        except httpx.TransportError:
            return None

    def leads(self, name: str) -> bool:
        """Whether it says that it leads and is ready."""
        answer = self.ask(name, "/readyz")
        return answer is not None and answer.status_code == 200

    def led_by(self, name: str) -> None:
        """Wait until a server leads."""
        wait_until(f"{name} to lead", lambda: self.leads(name))

    def problem(self, name: str, path: str) -> Any:
        """The kind of problem that a server names, None for none."""
        answer = self.ask(name, path)
        return answer.json().get("type") if answer is not None and not answer.is_success else None

    def ask_one_that_is_stopped(self, name: str, path: str, go_on: Callable[[], None]) -> httpx.Response | None:
        """What a process answers as it wakes to a request that came while it was stopped, by a connection from before.

        The connection is a new one where that from before was closed, as too long idle. None where the process closes
        it. go_on: has it wake.
        """
        sent = threading.Event()

        def trace(event: str, _: object) -> None:
            if event in ("http11.send_request_body.complete", "connection.start_tls.started"):
                sent.set()

        with ThreadPoolExecutor(1) as pool:
            url = f"https://localhost:{self.ports[name]}{path}"
            answer = pool.submit(self._http.get, url, extensions={"trace": trace}, timeout=PATIENCE)
            assert sent.wait(PATIENCE)
            go_on()
            try:
                return answer.result()
            except httpx.TransportError:
                return None


def _replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text, before
    path.write_text(text.replace(before, after))
