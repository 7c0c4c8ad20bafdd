"""Seconds until a command line answers: the version, the help of every command, and completion by TAB.

    python benchmarks/startup.py

Each is a process of its own, started again and again in turns with the two floors: an interpreter that does nothing,
and the help of the smallest typer program there is.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run, sized
from fedcore.errors import EnvironmentFailure

TYPER = "import typer; app = typer.Typer(); app.command()(lambda: None); app(['--help'])"
INTERPRETER, SMALLEST = "python -c pass", "the smallest typer program --help"
COMPLETION = {"COMP_CWORD": "1", "COMP_WORDS": "fedcore ", "_FEDCORE_COMPLETE": "complete_bash"}
COMMANDS = ("provision", "server", "client", "run", "simulate", "compare")
AIM_SECONDS = 0.5
AIM_RATIO = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Of one process: on the clock, and of a core."""

    clock: float
    core: float


def main() -> int:
    """Measure and show."""
    arguments = parser("Seconds until a command line answers.")
    arguments.add_argument("--turns", type=int, default=15, help="how often each is started")
    return run(measure, arguments.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Start everything in turns; the medians are shown."""
    python, fedcore = [sys.executable], [sys.executable, "-m", "fedcore"]
    commands = COMMANDS[: 1 if arguments.smallest else None]
    processes: dict[str, tuple[list[str], dict[str, str]]] = {
        INTERPRETER: ([*python, "-c", "pass"], {}),
        SMALLEST: ([*python, "-c", TYPER], {}),
        "fedcore --version": ([*fedcore, "--version"], {}),
        "fedcore --help": ([*fedcore, "--help"], {}),
        "fedcore TAB": (fedcore, COMPLETION),
        "fedcore run --TAB": (fedcore, {**COMPLETION, "COMP_CWORD": "2", "COMP_WORDS": "fedcore run --"}),
        **{f"fedcore {name} --help": ([*fedcore, name, "--help"], {}) for name in commands},
    }
    seen: dict[str, list[Seconds]] = {name: [] for name in processes}
    for _ in range(sized(arguments, smallest=1, quick=3, whole=arguments.turns)):
        for name, (command, environment) in processes.items():
            seen[name].append(once(command, environment))
    medians = {name: _median(all_) for name, all_ in seen.items()}
    shown = {name: value for name, value in medians.items() if name not in (INTERPRETER, SMALLEST)}
    slowest = max(value.core for value in shown.values())
    return Report(
        benchmark="startup",
        figures=(
            Figure(name="slowest_answer_of_a_core", value=slowest, unit="s", aim=AIM_SECONDS),
            Figure(name="slowest_over_smallest_typer_program", value=slowest / medians[SMALLEST].core, aim=AIM_RATIO),
        ),
        tables=(
            Table(
                title=f"Medians of {len(seen[INTERPRETER])}",
                header=("command", "seconds", "seconds of a core"),
                rows=tuple((f"`{name}`", f"{value.clock:.2f}", f"{value.core:.2f}") for name, value in medians.items()),
            ),
        ),
        notes=(
            "each has one thread, so that on an idle machine the seconds are those of a core",
            f"load on the machine: {os.getloadavg()[0]:.1f}",
        ),
    )


def once(command: Sequence[str], environment: dict[str, str]) -> Seconds:
    """Start a process and wait for its end; raises EnvironmentFailure if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise EnvironmentFailure(f"{' '.join(command)} ended with status {process.returncode}")
    return Seconds(clock=time.perf_counter() - began, core=usage.ru_utime + usage.ru_stime)


def _median(seen: Sequence[Seconds]) -> Seconds:
    return Seconds(clock=statistics.median(one.clock for one in seen), core=statistics.median(one.core for one in seen))


if __name__ == "__main__":
    sys.exit(main())
