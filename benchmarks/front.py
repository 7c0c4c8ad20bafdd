"""Seconds of rounds through nginx, which routes to the leader of two servers, over those without nginx.

Real processes: PostgreSQL, two servers, some agents, and nginx with the configuration of `deploy`. Nothing is killed.
Runs with nginx and without take turns, on the same machine, each in a federation of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))

from benchmarks.common import APPS, Figure, Report, Table, parser, run, say, sized
from fedcore.errors import EnvironmentFailure, RunFailed
from tests.support.postgres import Cluster, binaries, cluster
from tests.support.replicas import SERVERS, Replicas

AIM: Final = 1.2
ROUNDS: Final = 4
PARAMETERS: Final = 200_000
"""An update of 1.6 MB in the first exchange, in one part, and of 0.4 MB in the others."""
CONFIGURATION: Final = Path(__file__).resolve().parents[1] / "deploy" / "nginx" / "fedcore-http.conf"


def nginx_path() -> str:
    """Where nginx is; raises EnvironmentFailure."""
    path = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None or binaries() is None:
        raise EnvironmentFailure("this needs PostgreSQL and nginx: apt-get install postgresql nginx-light")
    return path


@contextlib.contextmanager
def front(replicas: Replicas, folder: Path) -> Iterator[None]:
    """The proxy before both servers, at the address that clients and operator know."""
    made = replicas.made
    first, second = (replicas.ports[name] for name in SERVERS)
    temporary = " ".join(f"{what}_temp_path {what};" for what in ("proxy", "fastcgi", "uwsgi", "scgi"))
    changes = {
        "listen 8443": f"listen 127.0.0.1:{made.federation.port}",
        "10.0.0.1:8443": f"127.0.0.1:{first}",
        "10.0.0.2:8443": f"127.0.0.1:{second}",
        "/etc/fedcore/server": str(made.federation.folder / "server"),
        "/run/fedcore-nginx.pid": f"{folder}/nginx.pid",
        "access_log off;": f"access_log off; client_body_temp_path body; {temporary}",
    }
    text = CONFIGURATION.read_text()
    for before, after in changes.items():
        text = text.replace(before, after)
    path = folder / "nginx.conf"
    path.write_text(text)
    main = "daemon off; user root;" if os.geteuid() == 0 else "daemon off;"
    with (folder / "nginx.log").open("w") as log:
        process = subprocess.Popen([nginx_path(), "-c", path, "-p", folder, "-g", main], stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def seconds_of_run(database: Cluster, folder: Path, *, clients: int, through_nginx: bool) -> float:
    """Seconds from the first exchange of a run to its end; raises RunFailed."""
    with contextlib.ExitStack() as stack:
        replicas = stack.enter_context(Replicas.open(folder, database.create(), clients=clients, behind=through_nginx))
        if through_nginx:
            stack.enter_context(front(replicas, folder))
        made = replicas.made
        made.app = APPS / "noop"
        for name in SERVERS:
            replicas.start(name)
            replicas.led_by(SERVERS[0])
        made.start_clients()
        started = made.submit(
            settings={"min-clients": clients}, num_server_rounds=ROUNDS, min_nodes=clients, parameters=PARAMETERS
        )
        started.wait_for("exchange")
        began = time.monotonic()
        ended = started.finish()
        if ended.status:
            raise RunFailed(ended.stderr)
        return time.monotonic() - began


def measure(arguments: argparse.Namespace) -> Report:
    """Runs in turns."""
    nginx_path()
    repeats = sized(arguments, smallest=1, quick=1, whole=arguments.repeats)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with cluster() as database, tempfile.TemporaryDirectory() as folder:
        for number in range(repeats):
            for through_nginx in (False, True):
                own = Path(folder) / f"{number}-{through_nginx}"
                own.mkdir()
                found = seconds_of_run(database, own, clients=arguments.clients, through_nginx=through_nginx)
                seconds[through_nginx].append(found)
                say(f"{'through nginx' if through_nginx else 'without nginx'}: {found:.2f} s")
    medians = {kind: statistics.median(times) for kind, times in seconds.items()}
    rows = tuple(
        ("through nginx" if kind else "without", f"{medians[kind]:.2f}", f"{min(times):.2f}", f"{max(times):.2f}")
        for kind, times in seconds.items()
    )
    return Report(
        benchmark="front",
        figures=(Figure(name="nginx_over_direct", value=medians[True] / medians[False], aim=AIM),),
        tables=(Table(title=f"Seconds of {ROUNDS} rounds", header=("", "median", "least", "most"), rows=rows),),
        notes=(
            f"{arguments.clients} clients, two servers over PostgreSQL, {PARAMETERS:,} parameters, {repeats} runs each",
        ),
    )


def main() -> int:
    """Parse the options and measure."""
    options = parser(__doc__ or "")
    options.add_argument("--clients", type=int, default=4)
    options.add_argument("--repeats", type=int, default=3)
    return run(measure, options.parse_args())


if __name__ == "__main__":
    sys.exit(main())
