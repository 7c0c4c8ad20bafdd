"""One worker killed in each mode of a comparison: how the run ends, and how soon that is known.

    python benchmarks/kills.py [--quick] [--json]

The digits app over four sites, all real processes; `fedcore compare --kill client-2@2` sends SIGKILL to the second
site's worker after the second round. A mode that hung would never come to its end; a deadline of ten minutes in all
ends it, and counts as a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import EXAMPLES, Figure, Report, Table, parser, quiet_environment, run, say, sized
from fedcore.comparison.execution import RunStart, execute_comparison
from fedcore.comparison.modes import every_mode, parse_modes
from fedcore.comparison.plan import CompareJob
from fedcore.comparison.results import RunResult, number_of
from fedcore.comparison.run import Kill
from fedcore.errors import RunFailed
from fedcore.flower.app import FlowerApp
from fedcore.wire.events import EventSink, ignore

KILL: Final = Kill(site=1, round=2)
ROUNDS: Final = 5
DEADLINE: Final = 600
QUICK: Final = "centralized,allreduce,ps-async,local"


def main() -> int:
    """The command line."""
    return run(measure, parser("One worker killed in each mode.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All modes, or some of them in the quick mode."""
    modes = sized(arguments, smallest="allreduce", quick=QUICK, whole=",".join(every_mode()))
    os.environ.update(quiet_environment())
    with tempfile.TemporaryDirectory(prefix="fedcore-kills-") as folder, _deadline():
        job = CompareJob(
            app=FlowerApp.load(EXAMPLES / "digits"),
            modes=parse_modes(modes),
            sites=4,
            out=Path(folder) / "out",
            run_config={"num-server-rounds": ROUNDS},
            kill=KILL,
        )
        return report(execute_comparison(job, _watch).runs)


def report(results: Sequence[RunResult]) -> Report:
    """What was found, one row a mode."""
    told = sum(len(result.losses) == 1 for result in results)
    rows = tuple(
        (
            result.mode,
            result.status,
            str(max((point.round for point in result.curve if point.round), default=0)),
            "" if (accuracy := number_of(result.metrics, "accuracy")) is None else f"{100 * accuracy:.1f}",
            f"{loss.seconds:.2f}",
            loss.consequence,
        )
        for result in results
        for loss in result.losses
    )
    return Report(
        benchmark="kills",
        figures=(Figure(name="modes_that_say_what_was_lost", value=told / len(results), aim=1.0, at_least=True),),
        tables=(
            Table(
                title=f"SIGKILL to one of four workers after round {KILL.round} of {ROUNDS}, digits, one seed",
                header=("mode", "run", "rounds", "accuracy %", "seconds", "what happened"),
                rows=rows,
            ),
        ),
        notes=(
            "seconds: from the end of the worker until the others went on, or all had ended",
            "ps-async: with the app's momentum of 0.9 some runs learn and others do not (docs/comparison.md)",
        ),
    )


@contextlib.contextmanager
def _watch(start: RunStart) -> Iterator[EventSink]:
    say(f"{start.run.label}, {start.number} of {start.total}")
    yield ignore


@contextlib.contextmanager
def _deadline() -> Iterator[None]:
    def end(number: int, frame: object) -> None:
        raise RunFailed(f"not all modes came to their end within {DEADLINE} s")

    signal.signal(signal.SIGALRM, end)
    signal.alarm(DEADLINE)
    try:
        yield
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    sys.exit(main())
