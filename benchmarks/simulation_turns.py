"""Simulations as processes that take turns, round by round: the side that gives them their turns."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import psutil

from benchmarks.common import quiet_environment, say
from benchmarks.simulation_arm import TIMES
from fedcore.errors import EnvironmentFailure

_ANSWER_SECONDS: Final = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round of an arm took. wall, processor, trained: seconds; memory: bytes at its end, of all processes."""

    wall: float
    processor: float
    trained: float
    memory: int


@dataclass(slots=True, kw_only=True)
class Measured:
    """An arm's rounds. first: seconds from the start of its process to the end of its first round."""

    first: float
    rounds: list[Round] = field(default_factory=list)

    @property
    def wall(self) -> float:
        """Seconds of a round, the first left out."""
        return median(one.wall for one in self.rounds)

    @property
    def processor(self) -> float:
        """Processor seconds of such a round, of all processes."""
        return median(one.processor for one in self.rounds)

    @property
    def memory(self) -> int:
        """The most bytes at the end of a round."""
        return max(one.memory for one in self.rounds)

    def share(self, workers: int) -> float:
        """Which part of the time of so many processes is training."""
        return median(one.trained / (one.wall * workers) for one in self.rounds)


def over(one: Measured, other: Measured) -> float:
    """Seconds of a round of one arm over those of another: the median over the turns, each of one round of both."""
    return median(a.wall / b.wall for a, b in zip(one.rounds, other.rounds, strict=True))


class Arm:
    """A process that simulates, stopped while it is not its turn. told: what `simulation_arm` is given."""

    def __init__(self, name: str, told: Mapping[str, Any], folder: Path) -> None:
        self.name = name
        times = folder / "times"
        times.mkdir(parents=True)
        self._log = folder / "output"
        environment = {**os.environ, **quiet_environment(), "RAY_USAGE_STATS_ENABLED": "0", TIMES: str(times)}
        environment |= {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        ours, theirs = socket.socketpair()
        ours.settimeout(_ANSWER_SECONDS)
        command = [sys.executable, str(Path(__file__).with_name("simulation_arm.py")), json.dumps(told)]
        started = perf_counter()
        with theirs, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._lines = ours.makefile("rw", encoding="utf-8")
        ours.close()
        try:
            self._hear()  # it is at the beginning of its first round
            self._ask()
            self.measured = Measured(first=perf_counter() - started)
        except BaseException:
            self.end()
            raise
        self._process.send_signal(signal.SIGSTOP)

    def turn(self) -> None:
        """Simulate one round."""
        self._process.send_signal(signal.SIGCONT)
        self.measured.rounds.append(Round(**self._ask()))
        self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """End it and all processes that it started."""
        own = psutil.Process(self._process.pid)
        for process in [*own.children(recursive=True), own]:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        self._process.wait()
        self._lines.close()

    def _ask(self) -> dict[str, Any]:
        self._lines.write("\n")
        self._lines.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            last = self._log.read_text(errors="replace").strip().splitlines()[-15:]
            raise EnvironmentFailure(f"the simulation {self.name!r} ended before its time:\n" + "\n".join(last))
        told: dict[str, Any] = json.loads(line)
        return told


def measured_arms(arms: Mapping[str, Mapping[str, Any]], turns: int) -> dict[str, Measured]:
    """The rounds of arms that take turns, of which none always follows the same other.

    Raises EnvironmentFailure for an arm that ends by itself, with the last that it said.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedcore-simulation-")))
        running = []
        for place, (name, told) in enumerate(arms.items()):
            arm = Arm(name, told, folder / str(place))
            stack.callback(arm.end)
            say(f"  {name}: first round after {arm.measured.first:.1f} s")
            running.append(arm)
        for turn in range(turns):
            for arm in running if turn % 2 == 0 else reversed(running):
                arm.turn()
            say("  " + ", ".join(f"{arm.name} {arm.measured.rounds[-1].wall:.2f} s" for arm in running))
        return {arm.name: arm.measured for arm in running}
