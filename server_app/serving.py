"""One server process: lock the data folder, bind, serve over TLS, stop cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import uvicorn

from fedcore.errors import ConfigurationError, EnvironmentFailure, PortInUse
from fedcore.federation import ServerKit
from fedcore.system.concurrency import end
from fedcore.system.files import Lock
from fedcore.system.memory import give_memory_back, set_aside
from fedcore.system.tracing import open_traces
from fedcore.system.workers.cores import granted_cores
from server_app.application import Application, make_application
from server_app.background import watch_gauges, watch_storage
from server_app.http.connection_limiter import Connection, ConnectionLimiter
from server_app.http.head_limits import GuardedProtocol
from server_app.http.proxies import BehindProxies
from server_app.http.rate_limit import networks
from server_app.members.presence import Presence, Uptime
from server_app.members.rosters import Rosters
from server_app.operation import integrity
from server_app.operation.certificate import ServedCertificate
from server_app.polling import Bell
from server_app.services import Services
from server_app.settings import ServerSettings
from server_app.storage import open_objects
from server_app.storage.blobs import Spool
from server_app.storage.schema import refuse_lost
from server_app.storage.store import Store

log = logging.getLogger("fedcore.server")


async def serve(
    kit: ServerKit,
    settings: ServerSettings,
    *,
    host: str,
    port: int,
    ready: Callable[[str, str], None],
) -> None:
    """Serve until a signal comes. `ready` gets the URL on this machine and what is bound once requests are answered.

    Raises PortInUse, ConfigurationError (another server uses the data folder) and
    EnvironmentFailure.
    """
    certificate = ServedCertificate(kit.tls_certificate, kit.tls_key, wall=time.time)
    with lock_data_folder(settings.data_dir), _listening(host, port) as listener:
        async with make_services(kit, settings, certificate) as services, _operated(services, kit.metrics_listen):
            application = make_application(services, token_sha256=kit.operator_token_sha256)
            limiter = ConnectionLimiter.of_process(settings.header_seconds, networks(kit.trust_proxy), services.traffic)
            server = LimitedServer(_configuration(kit, settings, application), limiter, certificate)
            set_aside()
            server.on_ready = lambda: ready(_url(listener), _bound(listener))
            server.bells = (services.client_bell, services.run_bell)
            with _reloading(certificate):
                await server.serve(sockets=[listener])
            if not server.was_ready:
                raise EnvironmentFailure("the server could not start; its log says why")


@contextlib.asynccontextmanager
async def make_services(
    kit: ServerKit, settings: ServerSettings, certificate: ServedCertificate | None = None
) -> AsyncIterator[Services]:
    """The services of a process, over real clocks and randomness."""
    settings.spool_dir.mkdir(parents=True, exist_ok=True)
    if not settings.shared:
        refuse_lost(settings.database_file, settings.runs_dir)
        settings.runs_dir.mkdir(exist_ok=True)  # for a backup before the first run
        integrity.prepare(settings.database_file)  # nothing else goes on yet
    store = await Store.open(settings.database or settings.database_file)
    try:
        async with Uptime.measure(time.monotonic) as uptime:
            yield Services(
                settings=settings,
                roster=Rosters(kit.rosters, authority=kit.authority, path=kit.rosters_file),
                min_cohort=kit.min_cohort,
                store=store,
                objects=await open_objects(settings.objects, settings.data_dir),
                spool=Spool(folder=settings.spool_dir, reserve_bytes=settings.reserve_bytes),
                presence=Presence(clock=uptime),
                clock=time.monotonic,
                wall=time.time,
                new_id=lambda: secrets.token_hex(8),
                randomness=os.urandom,
                threads=granted_cores(),
                certificate=certificate,
                traces=open_traces(kit.traces, service="fedcore-server", instance=socket.gethostname()),
            )
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _operated(services: Services, metrics_listen: str) -> AsyncIterator[None]:
    """Serve the metrics if the kit says so, and run the background tasks."""
    stop = services.metrics.serve(metrics_listen) if metrics_listen else lambda: None
    watching = (asyncio.create_task(watch_gauges(services)), asyncio.create_task(watch_storage(services)))
    try:
        yield
    finally:
        await end(*watching)
        await asyncio.to_thread(stop)
        await asyncio.to_thread(services.traces.close)


class LimitedServer(uvicorn.Server):
    """uvicorn's server behind a door; it says when it listens, and wakes long polls when it is to stop."""

    bells: tuple[Bell, ...] = ()

    def __init__(
        self, config: uvicorn.Config, limiter: ConnectionLimiter, certificate: ServedCertificate | None
    ) -> None:
        super().__init__(config)
        self.limiter = limiter
        self._certificate = certificate
        self.on_ready: Callable[[], None] = lambda: None
        self.was_ready = False
        self._accepting: list[asyncio.Task[NoReturn]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen: uvicorn itself does on no socket."""
        await super().startup(sockets=[])
        if self.started:
            self._accepting = [
                asyncio.create_task(self.limiter.serve(listener, self._protocol, self._tls))
                for listener in sockets or ()
            ]
            self.was_ready = True
            self.on_ready()

    def _tls(self) -> ssl.SSLContext | None:
        return self._certificate.context if self._certificate is not None else None

    def _protocol(self, connection: Connection) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            limiter=self.limiter,
            connection=connection,
        )
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, then as uvicorn does."""
        await end(*self._accepting)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop came: answer all long polls now, not in half a minute.

        The signal is not kept: uvicorn would raise it again after its own end, before ours.
        """
        for bell in self.bells:
            bell.stop()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def _configuration(kit: ServerKit, settings: ServerSettings, application: Application) -> uvicorn.Config:
    protocol = type(
        "Protocol",
        (GuardedProtocol,),
        {"header_bytes": settings.header_bytes, "header_seconds": settings.header_seconds},
    )
    return uvicorn.Config(
        BehindProxies(application.asgi, kit.trust_proxy) if kit.trust_proxy else application.asgi,
        http=protocol,
        ws="none",
        loop="uvloop",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # uvicorn's own default trusts every process of this machine
        timeout_keep_alive=75,
        timeout_graceful_shutdown=5,
    )


@contextlib.contextmanager
def _reloading(certificate: ServedCertificate) -> Iterator[None]:
    """SIGHUP takes a new certificate, as long as the context lasts."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, certificate.reload)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _url(listener: socket.socket) -> str:
    """The address at which a browser on this machine finds the server."""
    host, port = listener.getsockname()[:2]
    here = host in ("0.0.0.0", "::", "127.0.0.1", "::1")  # noqa: S104
    return f"https://localhost:{port}" if here else f"https://{_bound(listener)}"


def _bound(listener: socket.socket) -> str:
    """Address and port as the system has them."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket; raises PortInUse or ConfigurationError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(f"another process listens on {host}:{port}; stop it, or choose one with --port") from None
        raise ConfigurationError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    with contextlib.closing(listener):
        yield listener


def lock_data_folder(folder: Path) -> Lock:
    """Hold the data folder: two servers over one database would each lead its runs."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        (folder / "server.lock").touch(mode=0o600)
    except OSError as error:
        raise ConfigurationError(f"cannot write to the data folder {folder}: {error.strerror}") from None
    message = f"another server uses the data folder {folder}; stop it, or choose one with --data-dir"
    return Lock(folder / "server.lock", in_use=message)


def run(kit: ServerKit, settings: ServerSettings, *, host: str, port: int, ready: Callable[[str, str], None]) -> None:
    """`serve` on uvloop."""
    import uvloop

    give_memory_back()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(kit, settings, host=host, port=port, ready=ready))
