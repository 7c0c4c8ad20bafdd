"""GPU acceptance in one command: everything that fedcore does on a GPU, tested and measured in under nine minutes.

    make gpu
    python benchmarks/gpu.py [--only PART ...] [--quick] [--json] [--save FILE]

The parts: `tests` (tests/gpu: engines against the processor, loading, memory, a secure federation and a simulation),
`gpt`, `resnet`, `engines`, `loading`, `memory` (benchmarks/gpu_parts.py: each a ratio to a bare loop). Each runs in a
process of its own with a limit, so that what fails or hangs in one costs no figure of another.

Without a GPU there is nothing to prove on one: `tests` then runs the same bodies on the processor, and `interpreter`
the kernels for masks and codec in Triton's interpreter. The report says which. The measurements run on the processor
where `--only` names them, with sizes that only show that they work.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.gpu_machine import ROOT, help_without, missing, python

if TYPE_CHECKING:
    from benchmarks.common import Figure, Report

ALL_SECONDS = 530.0
"""Of all parts; each has at most what is left of them."""
LIMITS = {"tests": 270.0, "gpt": 120.0, "resnet": 60.0, "engines": 90.0, "loading": 45.0, "memory": 45.0}
"""Seconds of a part."""
WITHOUT_GPU = {"interpreter": 300.0, "tests": 530.0}
_SAID_LINES = 12


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
        "--only", action="append", choices=(*LIMITS, "interpreter"), metavar="PART",
        help=f"{', '.join(LIMITS)} or interpreter; repeatable (default: all that this machine can)",
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
    from benchmarks.gpu_parts import PARTS

    arguments.out.write_text(json.dumps(asdict(PARTS[arguments.part](arguments.quick))), encoding="utf-8")
    return 0


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a part ended. outcome: for people. found: what a measurement wrote, empty for none."""

    fine: bool
    outcome: str
    seconds: float
    found: dict[str, Any]


class _Acceptance:
    """All parts, one after the other."""

    def __init__(self) -> None:
        self.failed = False

    def measure(self, arguments: argparse.Namespace) -> Report:
        """Run the parts and put their findings together."""
        from benchmarks.common import Figure, Report, Table, say

        device = _device()
        limits = LIMITS | WITHOUT_GPU if arguments.only else LIMITS if device else WITHOUT_GPU
        parts = arguments.only or list(limits)
        say(f"device: {device or 'none, so that nothing is proven on a GPU'}; parts: {', '.join(parts)}")
        figures: list[Figure] = []
        rows: list[tuple[str, ...]] = []
        measured: list[tuple[str, ...]] = []
        notes = [f"device: {device or 'none: the same bodies on the processor, kernels in the interpreter of Triton'}"]
        until = time.monotonic() + ALL_SECONDS
        for number, part in enumerate(parts, start=1):
            limit = min(limits[part], until - time.monotonic()) if device else limits[part]
            say(f"[{number}/{len(parts)}] {part}, at most {max(limit, 0):.0f} s")
            ended = _run_part(part, limit, quick=arguments.quick)
            say(f"[{number}/{len(parts)}] {part}: {ended.outcome}, {ended.seconds:.0f} s")
            self.failed |= not ended.fine
            rows.append((part, f"{ended.seconds:.0f}", "yes" if ended.fine else "**no**", ended.outcome))
            figures += [Figure(**figure) for figure in ended.found.get("figures", [])]
            measured += [tuple(row) for row in ended.found.get("rows", [])]
            notes += ended.found.get("notes", [])
        figures.append(_proven(rows))
        header = ("what", "samples/s", "over a bare loop", "of the matrix rate", "peak GiB")
        tables = [Table(title="Parts", header=("part", "seconds", "holds", "outcome"), rows=tuple(rows))]
        if measured:
            tables.append(Table(title="Measured", header=header, rows=tuple(measured)))
        return Report(benchmark="gpu", figures=tuple(figures), tables=tuple(tables), notes=tuple(notes))


def _proven(rows: list[tuple[str, ...]]) -> Figure:
    from benchmarks.common import Figure

    return Figure(
        name="parts_that_hold", value=sum(row[2] == "yes" for row in rows) / len(rows), aim=1.0, at_least=True
    )


def _run_part(part: str, limit: float, *, quick: bool) -> _Ended:
    if limit <= 0:
        return _Ended(False, "no time was left", 0.0, {})
    with tempfile.TemporaryDirectory(prefix="fedcore-gpu-") as folder:
        out, log = Path(folder) / "found.json", Path(folder) / "log"
        environment = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1"}
        if part == "interpreter":
            environment["TRITON_INTERPRET"] = "1"
        command = _command(part, out, quick=quick)
        if not command:
            return _Ended(True, "there are no such tests here", 0.0, {})
        began = time.monotonic()
        status = _within(command, limit, log, environment)
        seconds = time.monotonic() - began
        found = json.loads(out.read_text(encoding="utf-8")) if status == 0 and out.exists() else {}
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or [""]
    if status == 0:
        return _Ended(True, "measured" if found else said[-1].strip("= "), seconds, found)
    print("\n".join(f"    {line}" for line in said[-_SAID_LINES:]), file=sys.stderr)
    what = f"not done within {limit:.0f} s" if status is None else f"exit status {status}: {said[-1][:200]}"
    return _Ended(False, what.replace("|", "/"), seconds, {})


def _command(part: str, out: Path, *, quick: bool) -> list[str]:
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    if part == "tests":
        return [*pytest, "tests/gpu"]
    if part == "interpreter":
        files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/unit/codec").glob("test_device*.py"))
        return [*pytest, *files] if files else []
    asked = [sys.executable, str(Path(__file__).resolve()), "--part", part, "--out", str(out)]
    return [*asked, "--quick"] if quick else asked


def _within(command: list[str], limit: float, log: Path, environment: dict[str, str]) -> int | None:
    """The exit status of a command, None where it took too long; what it started ends with it."""
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
    """The GPU's name, empty where there is none. In a process of its own, since this one shall not hold the device."""
    asked = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    return subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
