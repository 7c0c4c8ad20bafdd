"""What all benchmarks share: figures with an aim, the machine, the command line, and how results are shown."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import psutil

from fedcore.comparison.report import machine as software
from fedcore.data.files import DATA_VARIABLE
from fedcore.errors import EnvironmentFailure, FedcoreError
from fedcore.system.workers.child_processes import ChildProcesses

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
APPS = Path(__file__).resolve().parent / "apps"
GIB = float(1 << 30)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A ratio measured in one run against a floor or a peer.

    aim: the largest value that is good enough, or the least one with `at_least`. Names stay fixed, so that a figure
    can be followed over time.
    """

    name: str
    value: float
    unit: str = "ratio"
    aim: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """Whether the aim is met."""
        return self.value >= self.aim if self.at_least else self.value <= self.aim

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "aim": self.aim,
            "holds": self.holds,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Absolute values, reported next to the figures."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        """The table with its title; numbers to the right."""
        return f"### {self.title}\n\n" + _markdown_table(self.header, self.rows)


def machine_description() -> dict[str, Any]:
    """What the figures were made on."""
    return {
        **software(),
        "cpu": _cpu_model(),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one benchmark found. notes: sentences for people."""

    benchmark: str
    figures: tuple[Figure, ...]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    machine: dict[str, Any] = field(default_factory=machine_description)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "benchmark": self.benchmark,
            "machine": self.machine,
            "figures": [figure.to_json() for figure in self.figures],
            "tables": [
                {"title": table.title, "rows": [dict(zip(table.header, row, strict=True)) for row in table.rows]}
                for table in self.tables
            ],
            "notes": list(self.notes),
        }

    def markdown(self, *, command: str, date: datetime, commit: str = "") -> str:
        """The report for people, with what is needed to measure it again. commit: of the code; empty if unknown."""
        packages = ", ".join(f"{name} {number}" for name, number in self.machine["packages"].items())
        head = (
            f"# {self.benchmark}\n\n"
            f"- date: {date:%Y-%m-%d}\n"
            f"- machine: {self.machine['cores']} cores, {self.machine['cpu']}, {self.machine['memory_gib']} GiB\n"
            f"- software: Python {self.machine['python']}, {packages}\n"
            f"- command: `{command}`\n"
        )
        head += f"- commit: {commit}\n" if commit else ""
        header = ("figure", "value", "unit", "aim", "holds")
        parts = [head, _markdown_table(header, [_figure_row(figure) for figure in self.figures])]
        parts += [table.markdown() for table in self.tables]
        parts += ["\n".join(f"- {note}" for note in self.notes) + "\n"] if self.notes else []
        return "\n".join(parts)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1); 0 for a single value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def parser(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", action="store_true", help="print one JSON object")
    made.add_argument("--quick", action="store_true", help="end in under a minute, with figures of less weight")
    made.add_argument(
        "--smallest", action=_Smallest, help="the least there is to run, in seconds; figures mean nothing"
    )
    made.add_argument("--save", type=Path, metavar="FILE", help="write the report as Markdown, too")
    return made


class _Smallest(argparse.Action):
    """`--smallest` is `--quick`, and less where a benchmark asks for it (`sized`)."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "nargs": 0, "default": False})

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *_: object) -> None:
        """Set both."""
        namespace.quick = namespace.smallest = True


def sized(arguments: argparse.Namespace, *, smallest: T, quick: T, whole: T) -> T:
    """What a benchmark takes with `--smallest`, with `--quick`, and with neither."""
    return smallest if arguments.smallest else quick if arguments.quick else whole


def data_parser(description: str) -> argparse.ArgumentParser:
    """The same, and where the data sets lie; `run` lets the apps know."""
    made = parser(description)
    made.add_argument("--data-dir", type=Path, help="folder that holds the data sets (default: FEDCORE_DATA)")
    return made


def run(measure: Callable[[argparse.Namespace], Report], arguments: argparse.Namespace) -> int:
    """Measure and show; returns the exit status, 130 after Ctrl-C. A missed aim is a result, not an error."""
    if getattr(arguments, "data_dir", None) is not None:
        os.environ[DATA_VARIABLE] = str(arguments.data_dir.absolute())
    try:
        report = measure(arguments)
    except FedcoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        say("stopped; what it had started has ended")
        return 130
    text = keep(report, arguments)
    print(json.dumps(report.to_json(), indent=2) if arguments.json else text)
    return 0


def keep(report: Report, arguments: argparse.Namespace) -> str:
    """Write the report where `--save` says; its text. For one that is not whole yet as well."""
    text = report.markdown(command=_command(), date=datetime.now(UTC), commit=_commit())
    if arguments.save is not None:
        arguments.save.parent.mkdir(parents=True, exist_ok=True)
        arguments.save.write_text(text, encoding="utf-8")
    return text


def say(text: str) -> None:
    """Progress, on standard error: standard output is for the report."""
    print(text, file=sys.stderr, flush=True)


def quiet_environment() -> dict[str, str]:
    """The environment of child processes: no telemetry, and no more threads than a process has cores to itself."""
    return {
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def wait_connected(group: ChildProcesses, names: Iterable[str], seconds: float) -> None:
    """Wait until the log of each of these clients says that it is connected; raises EnvironmentFailure."""
    deadline = time.monotonic() + seconds
    while not all("connected" in group.tail(name) for name in names):
        group.check()
        if time.monotonic() > deadline:
            raise EnvironmentFailure(f"not all clients connected in {seconds:g} s")
        time.sleep(0.1)


def _figure_row(figure: Figure) -> tuple[str, ...]:
    bound = "at least" if figure.at_least else "at most"
    holds = "yes" if figure.holds else "**no**"
    return figure.name, f"{figure.value:.3f}", figure.unit, f"{bound} {figure.aim:g}", holds


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rule, *rows))


def _command() -> str:
    """How this process was started, with nothing in it that is special to this machine."""
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    # A folder's name follows its option; it says nothing to a reader elsewhere.
    for option, stands_for in (
        ("--data-dir", "DATA"),
        ("--save", "FILE"),
        ("--folder", "FOLDER"),
        ("--before", "CHECKOUT"),
    ):
        words = [stands_for if before == option else word for before, word in pairwise(["", *words])]
    return shlex.join(words)


def _commit() -> str:
    """That of this repository, and whether code lies there that is in none; empty if git does not know."""
    here = Path(__file__).resolve().parent
    changed = _git(here, "status", "--porcelain", "--", ":/*.py")
    return f"{commit_of(here)}, with changes" if changed else commit_of(here)


def commit_of(folder: Path) -> str:
    """The short hash of the commit that a checkout is of; empty if git does not know."""
    return _git(folder, "rev-parse", "--short", "HEAD")


def _git(folder: Path, *words: str) -> str:
    """What git prints; empty if it fails."""
    command = ["git", "-C", str(folder), *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
