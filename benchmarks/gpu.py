"""GPU acceptance in one command: everything that fedcore does on a GPU, tested and measured in under nine minutes.

    make gpu
    python benchmarks/gpu.py [--only PART ...] [--quick] [--json] [--save FILE]

The parts: `tests` (tests/gpu: engines against the processor, kernels for masks and codec, loading, memory, a secure
federation and a simulation), `words` (an upload made on the GPU against the host's), `gpt`, `resnet`, `engines`,
`loading`, `memory` (benchmarks/gpu_parts.py: each a ratio to a bare loop). Each runs in a process of its own with a
limit, which leaves enough for those after it. What a part had found before it failed or was ended is in the report,
which is saved after each part; all that they said is in build/gpu-logs.

Without a GPU there is nothing to prove on one: `tests` then runs the same bodies on the processor, and the kernels in
Triton's interpreter, as `words` does. The report says which. The other measurements run on the processor where `--only`
names them, with sizes that only show that they work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.gpu_machine import ROOT, help_without, is_installed, missing, python

if TYPE_CHECKING:
    from benchmarks.common import Report

ALL_SECONDS = 530.0
"""Of all parts on a GPU; each has at most what those after it need not."""
LIMITS = {
    "tests": (140.0, 270.0), "words": (50.0, 100.0), "gpt": (80.0, 120.0), "resnet": (35.0, 60.0),
    "engines": (60.0, 90.0), "loading": (25.0, 45.0), "memory": (25.0, 45.0),
}  # fmt: skip
"""Seconds of a part: what is left for it whatever those before it take, and the most that it may take."""
HEADER = ("what", "samples/s", "over a bare loop", "of the matrix rate", "peak GiB")
NO_DEVICE = "none: the same bodies on the processor, and the kernels in Triton's interpreter"
WITHOUT_GPU = {"tests": 600.0, "words": 120.0}
_SAID_LINES = 12
_NAMED = 10
_AT_ONCE = 4
"""Tests at once, where pytest-xdist is installed: they mostly wait for processes to start."""
_PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout", "_hypothesis_pytestplugin")
"""Those of the tests: those that the machine also has may refuse to run with them."""
_TEST = re.compile(r"(?:^|(?:PASSED|FAILED|ERROR|SKIPPED|XFAIL) )(tests/\S+::\S+)")
_DONE = re.compile(r"\b(PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
_LOGS = ROOT / "build" / "gpu-logs"


def main() -> int:
    """The command line; 1 where a part failed, 2 where this Python lacks something."""
    if lacking := missing():
        print(help_without(lacking), file=sys.stderr)
        return 2
    if (interpreter := python()) != sys.executable:
        os.execv(interpreter, [interpreter, str(Path(__file__).resolve()), *sys.argv[1:]])
    from benchmarks.common import parser, run

    options = parser(__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument(
        "--only", action="append", choices=tuple(LIMITS), metavar="PART",
        help=f"{', '.join(LIMITS)}; repeatable (default: all that this machine can)",
    )  # fmt: skip
    options.add_argument("--part", help=argparse.SUPPRESS)
    options.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.part:
        return _part(arguments)
    acceptance = _Acceptance()
    return run(acceptance.measure, arguments) or int(acceptance.failed)


def _part(arguments: argparse.Namespace) -> int:
    """In the process of one measurement."""
    from benchmarks.gpu_found import Found
    from benchmarks.gpu_parts import PARTS

    PARTS[arguments.part](Found(arguments.out), arguments.quick)
    return 0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a part ended. outcome: for people. found: what it had found by then. notes: tests that did not hold."""

    fine: bool
    outcome: str
    seconds: float
    found: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class _Acceptance:
    """All parts, one after the other."""

    def __init__(self) -> None:
        self.failed = False
        self._rows: list[tuple[str, ...]] = []
        self._figures: list[dict[str, Any]] = []
        self._measured: list[tuple[str, ...]] = []
        self._notes: list[str] = []

    def measure(self, arguments: argparse.Namespace) -> Report:
        """Run the parts and put their findings together."""
        from benchmarks.common import keep, say

        device = _device()
        parts = arguments.only or list(LIMITS if device else WITHOUT_GPU)
        say(f"device: {device or 'none, so that nothing is proven on a GPU'}; parts: {', '.join(parts)}")
        self._notes = [f"device: {device or NO_DEVICE}"]
        until = time.monotonic() + ALL_SECONDS
        for number, part in enumerate(parts, start=1):
            later = parts[number:]
            limit = limit_of(part, later, until - time.monotonic()) if device else WITHOUT_GPU.get(part, ALL_SECONDS)
            say(f"[{number}/{len(parts)}] {part}, at most {limit:.0f} s")
            ended = _run_part(part, limit, quick=arguments.quick, device=bool(device))
            say(f"[{number}/{len(parts)}] {part}: {ended.outcome}, {ended.seconds:.0f} s")
            self._add(part, ended)
            keep(self._report(later), arguments)
        return self._report([])

    def _add(self, part: str, ended: Ended) -> None:
        self.failed |= not ended.fine
        self._rows.append((part, f"{ended.seconds:.0f}", "yes" if ended.fine else "**no**", ended.outcome))
        self._figures += ended.found.get("figures", [])
        self._measured += [tuple(row) for row in ended.found.get("rows", [])]
        self._notes += [*ended.found.get("notes", []), *ended.notes]

    def _report(self, later: list[str]) -> Report:
        """What is known before the parts `later`."""
        from benchmarks.common import Figure, Report, Table

        hold = sum(row[2] == "yes" for row in self._rows) / (len(self._rows) + len(later))
        proven = Figure(name="parts_that_hold", value=hold, aim=1.0, at_least=True)
        tables = [Table(title="Parts", header=("part", "seconds", "holds", "outcome"), rows=tuple(self._rows))]
        if self._measured:
            tables.append(Table(title="Measured", header=HEADER, rows=tuple(self._measured)))
        unfinished = [f"not finished: {', '.join(later)} did not run"] if later else []
        return Report(
            benchmark="gpu", figures=(*(Figure(**figure) for figure in self._figures), proven),
            tables=tuple(tables), notes=(*self._notes, *unfinished),
        )  # fmt: skip


def limit_of(part: str, later: list[str], left: float) -> float:
    """Seconds for a part, of those that are left for it and the ones after it."""
    least, most = LIMITS[part]
    return max(min(most, left - sum(LIMITS[one][0] for one in later)), min(least, left), 1.0)


def _run_part(part: str, limit: float, *, quick: bool, device: bool) -> Ended:
    environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    if part in WITHOUT_GPU and not device:  # also where a GPU is that this torch knows nothing of
        environment["TRITON_INTERPRET"] = "1"
    _LOGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fedcore-gpu-") as folder:
        out = Path(folder) / "found.json"
        return run_within(_command(part, out, quick=quick), limit, _LOGS / f"{part}.log", environment, out)


def run_within(command: list[str], limit: float, log: Path, environment: dict[str, str], out: Path) -> Ended:
    """Run the command of a part; what it says goes to `log`, what it finds to `out`."""
    began = time.monotonic()
    status = finish_within(command, limit, log, environment)
    seconds = time.monotonic() - began
    found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
    if status == 0:
        return Ended(True, "measured" if found else said[-1].strip("= "), seconds, found)
    print("\n".join(f"    {line}" for line in said[-_SAID_LINES:]), file=sys.stderr)
    print(f"    all of it: {log}", file=sys.stderr)
    tests = _tests_of(said)
    what = f"exit status {status}: {said[-1].strip('= ')[:200]}"
    if status is None:
        passed = sum(outcome == "PASSED" for outcome in tests.values())
        what = f"not done within {limit:.0f} s" + (f"; {passed} tests had passed" if tests else "")
    notes = [line for line in said if line.startswith(("FAILED", "ERROR"))]
    if status is None:
        notes += [f"ended in {test}" for test, outcome in tests.items() if not outcome]
    shown = (*(note[:300] for note in notes[:_NAMED]), *([f"and {len(notes) - _NAMED} more"] * (len(notes) > _NAMED)))
    return Ended(False, what.replace("|", "/"), seconds, found, shown)


def _tests_of(said: list[str]) -> dict[str, str]:
    """The tests that pytest named, and how each ended; an empty text for one that had not."""
    outcomes: dict[str, str] = {}
    for line in said:
        if test := _TEST.search(line):
            outcome = _DONE.search(line)
            outcomes[test[1]] = outcome[1] if outcome else outcomes.get(test[1], "")
    return outcomes


def _command(part: str, out: Path, *, quick: bool) -> list[str]:
    if part == "tests":
        # A line for each test, so that one that is ended by the limit is known.
        several = ["-p", "xdist", "-n", str(_AT_ONCE)] if is_installed("pytest-xdist") else []
        plugins = [part for name in _PLUGINS for part in ("-p", name)]
        return [
            sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", *plugins, *several, "--timeout", "100",
            "tests/gpu",
        ]  # fmt: skip
    asked = [sys.executable, str(Path(__file__).resolve()), "--part", part, "--out", str(out)]
    return [*asked, "--quick"] if quick else asked


def finish_within(command: list[str], limit: float, log: Path, environment: dict[str, str]) -> int | None:
    """The exit status of a command, None if it took too long; what it started ends with it."""
    with log.open("wb") as told:
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=told, stderr=told,
            start_new_session=True,
        )  # fmt: skip
        try:
            return child.wait(limit)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def _device() -> str:
    """The GPU's name, empty if there is none. In a process of its own, since this one shall not hold the device."""
    asked = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    return subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
