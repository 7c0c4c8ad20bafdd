"""NVIDIA FLARE as an arm of `peers.py`: its environment, its provisioning, its processes.

FLARE lives in an environment of its own under build/peers, which sees the packages of this one behind its own; so
nothing heavy is installed twice, and nothing of FLARE's comes into this one. The first use makes it, with pip.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import quiet_environment, say
from benchmarks.peers_arms import LAST_LINES, Job, Measured, WorkLog, answers, measured, wait_for
from benchmarks.peers_relay import CountingRelay, Watch
from fedcore.comparison.local_federation import free_port
from fedcore.errors import EnvironmentFailure
from fedcore.system.workers.child_processes import ChildProcesses

ENVIRONMENT = Path(__file__).resolve().parents[1] / "build" / "peers" / "nvflare"
# What nvflare 2.9.0 and its extra "he" ask for, beside what this environment has (grpcio, torch and more).
PACKAGES = (
    "nvflare==2.9.0", "tenseal==0.3.15", "Flask==3.1.3", "Flask-JWT-Extended==4.6.0", "Flask-SQLAlchemy==3.1.1",
    "Werkzeug", "Jinja2", "itsdangerous", "blinker", "PyJWT", "SQLAlchemy", "gunicorn", "pyhocon", "pyparsing",
    "aiohttp", "aiohappyeyeballs", "aiosignal", "frozenlist", "multidict", "propcache", "yarl", "attrs", "docker",
    "msgpack", "PyYAML", "requests", "urllib3", "charset-normalizer", "idna", "certifi",
)  # fmt: skip
SERVER, ORG, ADMIN = "localhost", "peers", "admin@peers.org"
_JOB = Path(__file__).with_name("peers_nvflare_job.py")
_JOB_SECONDS = 1800.0
_LIGHTER = "nvflare.lighter.impl"
_PRIVATE = "nvflare.private.fed.app"


@dataclass(frozen=True, slots=True, kw_only=True)
class Flare:
    """A server and its sites."""

    group: ChildProcesses
    python: Path
    folder: Path
    admin: Path
    server: int
    client: int
    relay: CountingRelay
    sites: tuple[str, ...]

    def run(self, job: Job) -> Measured:
        """Submit as an administrator does, and wait for the end of the job."""
        work = WorkLog([self.folder / "logs" / f"{name}.log" for name in self.sites])
        files = self.folder / f"{job.kind}-{job.parameters}"
        files.mkdir(exist_ok=True)
        said = {"kind": job.kind, "parameters": job.parameters, "rounds": job.rounds, "clients": job.clients}
        words = json.dumps({**said, "kit": str(self.admin), "folder": str(files)})
        with Watch(server=self.server, client=self.client, relay=self.relay) as watch:
            submitted = self.group.start("job", [self.python, _JOB, words])
            try:
                wait_for(lambda: submitted.poll() is not None, "the end of FLARE's job", self.group, _JOB_SECONDS)
            finally:
                self.group.stop("job")
        try:
            return measured(job, work.since(), watch)
        except EnvironmentFailure as error:
            # Its last line says how it ended; why, the server's log.
            tail = "\n".join([self.group.tail("job", lines=1), self.group.tail("server", lines=LAST_LINES)])
            raise EnvironmentFailure(f"{error}; the end of what the job and the server said:\n{tail}") from error


@contextlib.contextmanager
def nvflare(folder: Path, *, clients: int) -> Iterator[Flare]:
    """Provisioned, with mutual TLS; the sites reach the server through the relay."""
    python = _environment()
    ports = {"fed_learn_port": free_port(), "admin_port": free_port()}
    with CountingRelay(ports["fed_learn_port"]) as relay:
        kits = _provision(python, folder, clients, relay.port, ports)
        # What it keeps for its user goes where it is deleted with the rest.
        with ChildProcesses(folder / "logs", {**quiet_environment(), "HOME": str(folder)}) as group:
            server = group.start("server", _process(python, kits / SERVER, "server", "secure_train=true"))
            wait_for(lambda: answers(ports["fed_learn_port"]), "a server of FLARE that listens", group)
            sites = tuple(f"site-{number + 1}" for number in range(clients))
            started = [
                group.start(site, _process(python, kits / site, "client", "secure_train=true", f"uid={site}"))
                for site in sites
            ]
            logs = [folder / "logs" / f"{site}.log" for site in sites]
            wait_for(
                lambda: all("Successfully registered" in log.read_text("utf-8", "replace") for log in logs),
                "a registration of every site of FLARE",
                group,
            )
            yield Flare(
                group=group,
                python=python,
                folder=folder,
                admin=kits / ADMIN,
                server=server.pid,
                client=started[0].pid,
                relay=relay,
                sites=sites,
            )


def _process(python: Path, kit: Path, role: str, *settings: str) -> list[str | Path]:
    """What a kit's own start script comes down to, without the script's loop around it."""
    module = f"{_PRIVATE}.{role}.{role}_train"
    words: list[str | Path] = [python, "-u", "-m", module, "-m", kit, "-s", f"fed_{role}.json", "--set", *settings]
    return [*words, "config_folder=config", f"org={ORG}"]


def _provision(python: Path, folder: Path, clients: int, port: int, ports: dict[str, int]) -> Path:
    """The kits' folder. Raises EnvironmentFailure with the end of what FLARE says where that fails."""
    reached = {"name": SERVER, "host": SERVER, "port": port}
    sites = [
        {"name": f"site-{number + 1}", "type": "client", "org": ORG, "connect_to": reached} for number in range(clients)
    ]
    admin = {"name": ADMIN, "type": "admin", "org": ORG, "role": "project_admin"}
    builders = [
        {"path": f"{_LIGHTER}.workspace.WorkspaceBuilder"},
        {"path": f"{_LIGHTER}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
        {"path": f"{_LIGHTER}.cert.CertBuilder"},
        {"path": f"{_LIGHTER}.he.HEBuilder"},
        {"path": f"{_LIGHTER}.signature.SignatureBuilder"},
    ]
    project = {
        "api_version": 3,
        "name": "peers",
        "description": "a benchmark",
        "participants": [{"name": SERVER, "type": "server", "org": ORG, **ports}, *sites, admin],
        "builders": builders,
    }
    # JSON is YAML.
    (folder / "project.yml").write_text(json.dumps(project), encoding="utf-8")
    words: list[str | Path] = [
        "-m",
        "nvflare.lighter.provision",
        "-p",
        folder / "project.yml",
        "-w",
        folder / "kits",
        "--force",
    ]
    _say_if_failed([python, *words], "FLARE's provisioning")
    return folder / "kits" / "peers" / "prod_00"


def _environment() -> Path:
    """Its Python, made at the first use; raises EnvironmentFailure if pip cannot install it."""
    python = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / "installed"
    wanted = "\n".join(PACKAGES)
    if done.exists() and done.read_text(encoding="utf-8") == wanted:
        return python
    say(f"installing NVIDIA FLARE into {ENVIRONMENT}")
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    venv.create(ENVIRONMENT, symlinks=True)
    site = ENVIRONMENT / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    # Behind its own: what this environment has and FLARE needs, torch above all. A .pth adds no path of another's .pth.
    (site / "present.pth").write_text("\n".join(_present_paths()), encoding="utf-8")
    install: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        *PACKAGES,
    ]
    _say_if_failed(install, "the installation of NVIDIA FLARE")
    done.write_text(wanted, encoding="utf-8")
    return python


def _present_paths() -> list[str]:
    """Where this environment's packages lie."""
    return [path for path in dict.fromkeys([sysconfig.get_path("purelib"), *sys.path]) if "site-packages" in path]


def _say_if_failed(words: list[str | Path], what: str) -> None:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-LAST_LINES:])
        raise EnvironmentFailure(f"{what} failed with status {done.returncode}:\n{last}")
