"""A federation in real processes, as its people start it: server, clients, operator; each can be hurt from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fedcore.comparison.local_federation import FEDCORE, LocalFederation, run_command
from fedcore.federation import Policy
from fedcore.state import ModelState
from fedcore.system.workers.child_processes import ChildProcesses

from .forked import MARK, ForkedGroup, Made
from .tiny import TINY

ENVIRONMENT = {"FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
RANKS = ("client_app.ranks.rank", "client_app.ranks.elastic_rank")
DYING_CLIENT = Path(__file__).with_name("client_that_dies.py")
CLIENT_ON_BATTERY = Path(__file__).with_name("client_on_battery.py")
LIVENESS_SECONDS = 12.0
"""Four heartbeats: a client that a busy machine does not let run for half of them is not taken for dead."""
PATIENCE = 900.0
"""How long anything may take on a busy machine; where all goes well nobody waits for that."""
QUICK = {
    "join-seconds": PATIENCE,
    "train-seconds": PATIENCE,
    "step-seconds": PATIENCE,
    "liveness-seconds": LIVENESS_SECONDS,
}


def wait_until(what: str, probe: Callable[[], Any], seconds: float = PATIENCE) -> Any:
    """The first true value of `probe`, asked again and again; fails the test after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s")
        time.sleep(0.05)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A run that is over, as `fedcore run --json` told it. summary: its last line, empty where it failed."""

    status: int
    events: list[dict[str, Any]]
    summary: dict[str, Any]
    stderr: str
    model: Path

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The data of all events of one kind."""
        return [event for event in self.events if event["kind"] == kind]

    def trained(self) -> list[list[str]]:
        """Who was in the sum of each training exchange."""
        return [data["survivors"] for data in self.of("exchange-done") if data["message_type"] == "train"]

    def arrays(self) -> Mapping[str, np.ndarray]:
        """The final model."""
        return ModelState.open(self.model)


class Submitted:
    """A `fedcore run --json` that goes on; its events are read in the background."""

    def __init__(self, process: subprocess.Popen[str], log: Path, model: Path, gate: Path) -> None:
        self.process = process
        self.gate = gate
        self.events: list[dict[str, Any]] = []
        self._summary: dict[str, Any] = {}
        self._log = log
        self._model = model
        self._over = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            entry = json.loads(line)
            with self._news:
                if "event" in entry:
                    self.events.append(entry["event"])
                elif "status" in entry:  # not the first line, which has the run's id alone
                    self._summary = entry
                self._news.notify_all()
        with self._news:
            self._over = True
            self._news.notify_all()

    def wait_for(self, kind: str, *, seconds: float = PATIENCE, **data: Any) -> dict[str, Any]:
        """The data of the first event of this kind that has these values."""

        def found() -> dict[str, Any] | None:
            return next(
                (event for event in self.events if event["kind"] == kind and data.items() <= event.items()), None
            )

        with self._news:
            if not self._news.wait_for(lambda: found() or self._over, seconds) or not found():
                told = "\n".join(json.dumps(event) for event in self.events)
                raise AssertionError(f"no event {kind} {data}; there were:\n{told}\n{self._stderr()}")
            return found() or {}

    def wait_for_training(self, server_round: int = 1) -> None:
        """Until the keys of a training exchange are exchanged: its clients train, and do not end before `go_on`."""
        exchange = self.wait_for("exchange", server_round=server_round, message_type="train")["exchange"]
        self.wait_for("stage", exchange=exchange, stage="share")

    def wait_until_resumed(self, times: int) -> None:
        """Until servers have taken the run up again so often."""

        def resumed() -> bool:
            return [event["kind"] for event in self.events].count("resumed") == times

        wait_until(f"the run to be taken up again {times} times", resumed)

    def go_on(self) -> None:
        """Let the clients of a gated run end their training, in this round and in those to come."""
        self.gate.touch()

    def finish(self, seconds: float = PATIENCE) -> Ended:
        """Wait for the end of the run."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            told = "\n".join(json.dumps(event) for event in self.events[-8:])
            raise AssertionError(f"the run does not end; its last events:\n{told}\n{self._logs()}") from None
        self._reader.join(seconds)
        return Ended(status=status, events=self.events, summary=self._summary, stderr=self._stderr(), model=self._model)

    def _logs(self) -> str:
        """The last lines of the server and of every client: whom a run waits for."""
        lines = {path.stem: path.read_text(encoding="utf-8").splitlines() for path in self._log.parent.glob("*.log")}
        said = {name: said[-8:] for name, said in sorted(lines.items()) if not name.startswith("run-")}
        return "\n".join(f"{name}: {line}" for name, last in said.items() for line in last)

    def _stderr(self) -> str:
        return self._log.read_text(encoding="utf-8")


@dataclass(slots=True)
class Deployment:
    """A federation on loopback. `mark` is in the environment of all its processes, of whatever generation."""

    folder: Path
    federation: LocalFederation
    group: ChildProcesses
    mark: str
    app: Path = TINY
    _living: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    _starts: int = 0
    _otherwise: set[str] = field(default_factory=set)
    _gates: list[Path] = field(default_factory=list)

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        folder: Path,
        *,
        clients: int = 4,
        allow_plain: bool = False,
        forked: bool = True,
        policy: Policy | None = None,
    ) -> Iterator[Deployment]:
        """Provision in `folder`; whatever was started is ended at the end.

        policy: of all clients; by default that of clients which are all one's own.

        forked: all processes come from the fork server (`support.forked`). False, for tests of how programs start and
        end: each is a Python of its own, as a person starts it.
        """
        mark = uuid.uuid4().hex
        federation = LocalFederation.create(
            folder / "federation", clients=clients, allow_plain=allow_plain, policy=policy
        )
        kind = ForkedGroup if forked else ChildProcesses
        with kind(folder / "logs", {**ENVIRONMENT, MARK: mark}) as group:
            yield cls(folder=folder, federation=federation, group=group, mark=mark)
        assert_none_left(mark)

    # --- starting -----------------------------------------------------------------------------------------------

    def start(self, *options: str | Path) -> None:
        """Start the server and all clients, which come up beside each other, and wait until they are connected."""
        listening = self._begin_server(*options)
        names = tuple(self.federation.client_names())
        for name in names:
            self.start_client(name)
        listening()
        for name in names:
            self.wait_for_log(name, "connected")

    def start_server(self, *options: str | Path) -> None:
        """Start the server and wait until it listens."""
        self._begin_server(*options)()

    def _begin_server(self, *options: str | Path) -> Callable[[], None]:
        """Start the server; what is returned waits until it listens."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        command = [*FEDCORE, "server", "--federation", self.federation.folder, "--ready-file", ready, *options]
        process = self.start_process("server", command)

        def listening() -> None:
            wait_until("the server to listen", lambda: ready.exists() or process.poll() is not None)
            assert ready.exists(), self.log("server")

        return listening

    def start_clients(self, *names: str) -> None:
        """Start clients by name, or all, and wait until they are connected."""
        names = names or tuple(self.federation.client_names())
        said = {name: len(self.log(name)) for name in names}
        for name in names:
            self.start_client(name)
        for name in names:
            self.wait_for_log(name, "connected", after=said[name])

    def start_client(
        self, name: str, *options: str | Path, dies_after: str = "", battery: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start one client; `dies_after` names the request that kills it, `battery` the file of its power."""
        usual = not (options or dies_after or battery)
        (self._otherwise.discard if usual else self._otherwise.add)(name)
        program: list[str | Path] = [*FEDCORE, "client"]
        if dies_after:
            program = [sys.executable, DYING_CLIENT, dies_after]
        elif battery is not None:
            program = [sys.executable, CLIENT_ON_BATTERY, battery]
        usual_words: list[str | Path] = ["--kit", self.kit(name), "--app", self.app, "--read", self._gates_folder]
        return self.start_process(name, [*program, *usual_words, *options])

    def start_node(self, name: str, *options: str | Path, within: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start a further machine of a client, which has no kit; `within` is the command that puts it elsewhere."""
        self._otherwise.add(name)
        command = [*within, *FEDCORE, "client", "--app", self.app, "--read", self._gates_folder, *options]
        return self.start_process(name, command)

    def start_program(self, name: str, *words: str | Path) -> subprocess.Popen[str]:
        """Start a client that is another program, by itself whatever the others are."""
        self._otherwise.add(name)
        self._living[name] = process = ChildProcesses.start(self.group, name, [sys.executable, *words])
        return process

    def start_process(self, name: str, command: Iterable[str | Path]) -> subprocess.Popen[str]:
        self._living[name] = process = self.group.start(name, [str(word) for word in command])
        return process

    def submit(
        self,
        *,
        settings: Mapping[str, Any] | None = None,
        gated: bool = False,
        initial: Path | None = None,
        **run_config: Any,
    ) -> Submitted:
        """Start `fedcore run --json`; underscores in the run config's keys stand for hyphens.

        initial: the model that it starts from in place of the app's own.

        gated: the clients' training ends only after `Submitted.go_on`, which needs an app that looks at its gate.
        """
        self._starts += 1
        name = f"run-{self._starts}"
        model, gate = self.folder / f"{name}.safetensors", self._gates_folder / f"{name}.gate"
        if gated:
            self._gates.append(gate)
            run_config["gate"] = str(gate)
        command = run_command(
            self.app,
            self.federation.operator,
            out=model,
            run_config={key.replace("_", "-"): value for key, value in run_config.items()},
            settings={**QUICK, **(settings or {})},
        )
        command += ["--initial-model", str(initial)] if initial else []
        command += ["--connect-seconds", str(PATIENCE)]  # some tests start the server anew meanwhile
        process = self.group.start(name, command, piped=True)
        return Submitted(process, self.group.logs / f"{name}.log", model, gate)

    @property
    def _gates_folder(self) -> Path:
        """The folder of the gates, which user code may look into."""
        folder = self.folder / "gates"
        folder.mkdir(exist_ok=True)
        return folder

    # --- looking ------------------------------------------------------------------------------------------------

    def kit(self, name: str) -> Path:
        """A client's folder."""
        return self.federation.folder / "clients" / name

    def log(self, name: str) -> str:
        """All that a process has said, over all its lives."""
        path = self.group.logs / f"{name}.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def wait_for_log(self, name: str, text: str, *, after: int = 0, seconds: float = PATIENCE) -> None:
        """Until a process has said `text`, beyond the first `after` characters of its log; not after its end."""
        process = self._living.get(name)

        def said() -> bool:
            over = process is not None and process.poll() is not None
            if text not in self.log(name)[after:] and over:
                raise AssertionError(f"{name} ended with status {process and process.returncode}")
            return text in self.log(name)[after:]

        try:
            wait_until(f"{name} to say {text!r}", said, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; it says:\n{self.log(name)[after:]}") from None

    def process(self, name: str) -> subprocess.Popen[str]:
        """The last started process of that name."""
        return self._living[name]

    def ranks(self, name: str) -> list[psutil.Process]:
        """The rank processes that a client has on one machine."""
        agent = self.process(name).pid
        below = [child.pid for child in psutil.Process(agent).children(recursive=True)]
        ranks = [process for process in marked(self.mark) if _program(process) in RANKS]
        ours = [rank for rank in ranks if rank.pid in below or ((made := Made.of(rank.pid)) and made.by == agent)]
        return _with_user_code(ours)

    def server_apps(self) -> list[psutil.Process]:
        """The processes of ServerApps, whatever has become of their server."""
        apps = [process for process in marked(self.mark) if _program(process) == "server_app.runs.app.main"]
        return _with_user_code(apps)

    # --- hurting ------------------------------------------------------------------------------------------------

    def kill(self, *names: str) -> None:
        """SIGKILL; the process alone, as the kernel's out-of-memory killer does it."""
        for name in names:
            self.process(name).kill()
            self.process(name).wait(PATIENCE)

    def stop(self, name: str, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask a process to end; its exit status."""
        self.process(name).send_signal(number)
        return self.process(name).wait(PATIENCE)

    def revive(self) -> Deployment:
        """Start again whatever does not run as it usually does, so that the next test finds all of it, and no gate."""
        for gate in self._gates:
            gate.touch()
        for name in self._otherwise:
            if self.process(name).poll() is None:
                self.stop(name)
        self._otherwise.clear()
        if self.process("server").poll() is not None:
            self.start_server()
        lost = [name for name in self.federation.client_names() if self.process(name).poll() is not None]
        if lost:
            self.start_clients(*lost)
        return self


def marked(mark: str) -> list[psutil.Process]:
    """All living processes with this mark in their environment."""
    return [process for process in psutil.process_iter() if _mark_of(process) == mark]


def command_lines(mark: str) -> list[str]:
    """What the living processes with this mark run."""
    lines = []
    for process in marked(mark):
        with contextlib.suppress(psutil.Error):  # it may have ended since
            made = Made.of(process.pid)
            lines.append(" ".join(process.cmdline()) if made is None else made.words)
    return lines


def assert_none_left(mark: str, seconds: float = PATIENCE) -> None:
    """All processes with this mark end by themselves; those that do not are killed, and fail the test."""
    try:
        wait_until("all processes to end", lambda: not marked(mark), seconds)
    finally:
        for process in marked(mark):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _program(process: psutil.Process) -> str:
    """The module that a Python process runs, empty for any other."""
    with contextlib.suppress(psutil.Error, IndexError):  # it may have ended since
        made = Made.of(process.pid)
        words = process.cmdline() if made is None else made.words.split(" ")
        module = words.index("-m") + 1 if "-m" in words else len(words)
        return words[module + 2 if words[module] == "fedcore.system.sandbox.confined" else module]
    return ""


def _with_user_code(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Without those that only keep others: where a process has a namespace, the starter waits for it, and so does
    the first process in it.
    """
    statuses = {process.pid: _status(process.pid) for process in processes}
    keepers = {pid: status for pid, status in statuses.items() if status["NSpid"][1:] and status["NSpid"][-1] == "1"}
    starters = {int(status["PPid"][0]) for status in keepers.values()}
    return [process for process in processes if process.pid not in keepers.keys() | starters]


def _status(pid: int) -> dict[str, list[str]]:
    """A process's parent, and its number in each namespace from here to its own; no numbers once it has ended."""
    with contextlib.suppress(OSError):
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return {words[0].rstrip(":"): words[1:] for words in lines if words}
    return {"NSpid": [], "PPid": []}


def _mark_of(process: psutil.Process) -> str | None:
    with contextlib.suppress(psutil.Error):
        if process.status() != psutil.STATUS_ZOMBIE:
            made = Made.of(process.pid)
            return process.environ().get(MARK) if made is None else made.mark
    return None


def fedcore(
    *words: str | Path, seconds: float = PATIENCE, cwd: Path | None = None, mark: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    return subprocess.run(
        [*FEDCORE, *(str(word) for word in words)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **ENVIRONMENT, MARK: mark},
    )
