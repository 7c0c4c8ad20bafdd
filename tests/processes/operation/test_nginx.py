"""A real round through the real nginx, with the configurations that are shipped."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.deployment import Deployment, wait_until
from support.nginx import NGINX, nginx
from support.ports import reserved_port
from support.postgres import Cluster, postgres
from support.replicas import SERVERS, Replicas

from fedcore.federation import OperatorKit

__all__ = ["postgres"]

STREAM = Path("/usr/lib/nginx/modules/ngx_stream_module.so")
NOOP = Path(__file__).parents[3] / "benchmarks" / "apps" / "noop"
pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@contextlib.contextmanager
def standing_by(made: Deployment) -> Iterator[tuple[int, list[str]]]:
    """A server that answers every request as one that stands by does; its port, and what it was asked."""
    folder = made.federation.folder / "server"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer(connection: socket.socket) -> None:
            with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as stream:
                head = b""
                while b"\r\n\r\n" not in head and (more := stream.recv(65536)):
                    head += more
                asked.append(head.split(b"\r\n")[0].decode())
                stream.sendall(b"HTTP/1.1 503 Standing by\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1], asked
        listener.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def gone() -> Iterator[int]:
    """A port that answers no attempt to connect, as on a machine without power: its queue is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        for _ in range(3):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def reached(made: Deployment) -> bool:
    host, port = OperatorKit.load(made.federation.operator).servers[0].removeprefix("https://").split(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
        return True
    return False


def http_changes(made: Deployment, port: int, other: int) -> dict[str, str]:
    server = made.federation.folder / "server"
    public = OperatorKit.load(made.federation.operator).servers[0].rpartition(":")[2]
    return {
        "listen 8443": f"listen 127.0.0.1:{public}",
        "10.0.0.1:8443": f"127.0.0.1:{port}",
        "10.0.0.2:8443": f"127.0.0.1:{other}",
        "/etc/fedcore/server": str(server),
        "access_log off;": "access_log off; client_body_temp_path body; proxy_temp_path proxy; "
        "fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;",
    }


def page_is_live(kit: OperatorKit) -> None:
    """The page comes, its cookie is kept, and a stream's first event is here while the stream goes on."""
    trusted = ssl.create_default_context(cafile=str(kit.ca_file))
    with httpx.Client(base_url=kit.servers[0], verify=trusted, timeout=600, headers={"X-Fedcore": "1"}) as browser:
        assert "<title>fedcore</title>" in browser.get("/").text
        assert browser.get("/v1/session").status_code == 401
        assert browser.post("/v1/session", json={"token": kit.token}).status_code == 204
        assert browser.get("/v1/session").json()["role"] == "operator"
        with browser.stream("GET", "/v1/live") as stream:  # for an hour, if nobody hangs up
            assert next(line for line in stream.iter_lines() if line.startswith("event:")) == "event: runs"


def test_a_round_goes_through_nginx_that_ends_tls_and_passes_by_a_standby(tmp_path: Path) -> None:
    with reserved_port() as port, Deployment.open(tmp_path, clients=2) as made, standing_by(made) as (other, asked):
        with nginx(tmp_path, "fedcore-http.conf", **http_changes(made, port, other)):
            wait_until("nginx to listen", lambda: reached(made))
            made.start("--port", str(port))
            page_is_live(OperatorKit.load(made.federation.operator))
            ended = made.submit(settings={"min-clients": 2}, num_server_rounds=1).finish()
        assert ended.status == 0, ended.stderr
        assert ended.trained() == [["client-1", "client-2"]]
        assert asked, "the standby was asked as well"
        assert made.stop("server") == 0


def test_a_server_that_is_gone_holds_a_request_up_for_a_second(tmp_path: Path) -> None:
    form = "log_format tried '$upstream_addr;$request_time'; access_log tried tried;"
    with reserved_port() as port, Deployment.open(tmp_path, clients=2) as made, gone() as other:
        kit = OperatorKit.load(made.federation.operator)
        changes = http_changes(made, port, other)
        changes["access_log off;"] = changes["access_log off;"].replace("access_log off;", form)
        with (
            nginx(tmp_path, "fedcore-http.conf", **changes),
            httpx.Client(verify=ssl.create_default_context(cafile=str(kit.ca_file)), timeout=600) as http,
        ):
            wait_until("nginx to listen", lambda: reached(made))
            made.start_server("--port", str(port))
            tries = tmp_path / "tried"
            wait_until(
                "the one that is gone to be tried",
                lambda: http.get(f"{kit.servers[0]}/healthz").status_code == 200 and str(other) in tries.read_text(),
            )
        assert made.stop("server") == 0
    rows = [line.split(";") for line in tries.read_text().splitlines() if str(other) in line]
    assert rows, tries.read_text()
    assert max(float(seconds) for _, seconds in rows) < 2.5


def test_a_connection_to_a_standby_that_refused_uploads_is_still_good(postgres: Cluster, tmp_path: Path) -> None:
    """nginx keeps it, and sends the next request there."""
    with Replicas.open(tmp_path, postgres.create(), clients=2, behind=True) as replicas:
        made, (port, other), kit = replicas.made, replicas.ports.values(), replicas.made.federation.operator
        url, trusted = OperatorKit.load(kit).servers[0], ssl.create_default_context(cafile=str(kit / "ca.crt"))
        errors, part = tmp_path / "errors", "/v1/runs/none/exchanges/1/update/parts/0"
        changes = http_changes(made, port, other) | {
            "error_log stderr": f"error_log {errors}",
            "max_fails=1": "max_fails=0",
        }
        with nginx(tmp_path, "fedcore-http.conf", **changes), httpx.Client(verify=trusted, timeout=600) as http:
            for name in SERVERS:
                replicas.start(name)
                replicas.led_by(SERVERS[0])
            refused = [http.put(url + part, content=bytes(300_000)).status_code for _ in range(12)]
            made.start_clients("client-1", "client-2")
            ended = made.submit(settings={"min-clients": 2}, num_server_rounds=1).finish()
        assert ended.status == 0, ended.stderr
        assert ended.trained() == [["client-1", "client-2"]]
        assert [made.stop(name) for name in SERVERS] == [0, 0]
    assert set(refused) <= {401, 503}
    assert 503 in refused, "the standby was sent some"
    assert not re.findall("upstream (?:timed out|prematurely closed|reset).*", errors.read_text())


def test_nginx_sends_the_models_itself(tmp_path: Path) -> None:
    with reserved_port() as port, Deployment.open(tmp_path, clients=2) as made:
        server, made.app = made.federation.folder / "server", NOOP
        with (server / "server.toml").open("a") as file:
            file.write('accel-location = "/fedcore-files/"\ntrust-proxy = ["127.0.0.1"]\n')
        form = "'$request_method $upstream_http_x_accel_redirect $body_bytes_sent'"
        told = f"log_format sent {form}; access_log sent sent;"
        changes = http_changes(made, port, port)
        changes |= {
            "access_log off;": changes["access_log off;"].replace("access_log off;", told),
            "/var/lib/fedcore/": f"{server / 'data'}/",
        }
        with nginx(tmp_path, "fedcore-http.conf", **changes):
            wait_until("nginx to listen", lambda: reached(made))
            made.start("--port", str(port))
            ended = made.submit(
                settings={"min-clients": 2, "download-bits": 16}, num_server_rounds=2, min_nodes=2, parameters=400_000
            ).finish()
        assert ended.status == 0, ended.stderr
        rows = [line.split() for line in (tmp_path / "sent").read_text().splitlines()]
        sizes = sorted(int(row[2]) for row in rows if row[1].startswith("/fedcore-files/work/"))
        down = [sum(one["bytes_down"].values()) for one in ended.of("exchange-done")]
        assert made.stop("server") == 0
    assert len(sizes) == 4
    assert all(800_000 < size < 810_000 for size in sizes[:2]), "differences, in the second round"
    assert all(1_600_000 < size < 1_610_000 for size in sizes[2:])
    assert down[0] > sum(sizes[2:]), "what nginx sends is counted"
    assert down[1] > sum(sizes[:2])


@pytest.mark.skipif(not STREAM.exists(), reason="nginx has no stream module here (libnginx-mod-stream)")
def test_a_round_goes_through_nginx_that_passes_tls_on(tmp_path: Path) -> None:
    with reserved_port() as port, Deployment.open(tmp_path, clients=2) as made:
        public = OperatorKit.load(made.federation.operator).servers[0].rpartition(":")[2]
        changes = {
            "listen 8443": f"listen 127.0.0.1:{public}",
            "default 10.0.0.1:8443": f"default 127.0.0.1:{port}",
            "modules/ngx_stream_module.so": str(STREAM),
        }
        with nginx(tmp_path, "fedcore-stream.conf", **changes):
            wait_until("nginx to listen", lambda: reached(made))
            made.start("--port", str(port))
            ended = made.submit(settings={"min-clients": 2}, num_server_rounds=1).finish()
        assert ended.status == 0, ended.stderr
        assert ended.trained() == [["client-1", "client-2"]]
        assert made.stop("server") == 0
