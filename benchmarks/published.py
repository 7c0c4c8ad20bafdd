"""Published results met: one command for each table, our figure next to the published one.

    python benchmarks/published.py TABLE --data-dir DATA [--minutes 60] [--cells WORD ...] [--json] [--save FILE]

Every run is secure unless the table compares with plain. A run is kept in --folder once it is finished, so that a later
call continues with those that are missing, and at least its curve up to where it was cut; the report is of all that is
kept. With --states a run that was cut, or killed, goes on where it was. --list says which runs a table has, how long
they take, and what is kept of each.

McMahan et al. took the best of 11 to 13 learning rates for each cell; here one was chosen for each by what is known of
these models, and --rates tries others: the best of those that were run counts, and the report names them all.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from benchmarks.common import Report, data_parser, run, say
from benchmarks.published_cells import TABLES, Cell
from benchmarks.published_report import report
from benchmarks.published_runs import Run, Runner, Shelf
from fedcore.errors import ConfigurationError, FedcoreError

FOLDER = Path(__file__).resolve().parent / "results" / "runs"
_QUICK_ROUNDS = 2


def main() -> int:
    """The command line."""
    arguments = options().parse_args()
    return run(listing if arguments.list else measure, arguments)


def options() -> argparse.ArgumentParser:
    """The arguments of the command."""
    made = data_parser("Tables of published results, our figure next to the published one.")
    made.add_argument("table", choices=sorted(TABLES), help="which table")
    made.add_argument(
        "--minutes", type=float, default=60.0, help="begin no run after this, and cut those that go on (60)"
    )
    made.add_argument("--cells", nargs="+", default=[], metavar="WORD", help="only cells whose name holds one of these")
    made.add_argument("--rates", nargs="+", type=float, default=[], help="learning rates in place of the cells' own")
    made.add_argument("--seeds", nargs="+", type=int, default=[], help="seeds in place of the cells' own")
    made.add_argument("--rounds", type=int, default=0, help="rounds in place of the cells' own")
    made.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="runs at the same time, a thread each")
    made.add_argument("--workers", type=int, default=1, help="processes that train the clients of one run (1)")
    made.add_argument("--folder", type=Path, default=FOLDER, help="where runs are kept (benchmarks/results/runs)")
    made.add_argument("--states", type=Path, help="folder in which runs that are cut leave what it takes to go on")
    made.add_argument("--list", action="store_true", help="say what there is to run, and what is kept; run nothing")
    return made


def measure(arguments: argparse.Namespace) -> Report:
    """Run what is missing, as far as the time goes, and report all that is kept."""
    if arguments.minutes <= 0 or min(arguments.jobs, arguments.workers) < 1 or arguments.rounds < 0:
        raise ConfigurationError("--minutes, --jobs and --workers must be positive, --rounds not negative")
    cells, shelf = chosen(arguments), Shelf(arguments.folder)
    wanted = [run for cell in cells for run in runs_of(cell, arguments)]
    missing = [run for run in wanted if (kept := shelf.outcome(run)) is None or not kept.answers(run)]
    say(f"{len(wanted)} runs, of which {len(wanted) - len(missing)} are kept from before")
    deadline = time.time() + 60 * arguments.minutes
    runners = [Runner(run, shelf, deadline, arguments.workers, arguments.states) for run in missing]
    failures = carry_out(runners, jobs=arguments.jobs)
    return report(arguments.table, cells, wanted, shelf, failures)


def listing(arguments: argparse.Namespace) -> Report:
    """All that is kept, with nothing run; what there would be to run on standard error."""
    cells, shelf = chosen(arguments), Shelf(arguments.folder)
    wanted = []
    for cell in cells:
        for one in runs_of(cell, arguments):
            kept = shelf.outcome(one)
            state = "not run" if kept is None else f"{kept.rounds} rounds, best {kept.best:.2f} %"
            rate = f", lr {one.config['lr']}" if "lr" in one.config else ""
            say(f"{one.name}, {one.aggregation}, seed {one.seed}{rate}: about {cell.minutes:g} minutes; {state}")
            wanted.append(one)
    return report(arguments.table, cells, wanted, shelf, {})


def chosen(arguments: argparse.Namespace) -> tuple[Cell, ...]:
    """The cells of the table that were asked for; raises ConfigurationError if there is none."""
    cells = TABLES[arguments.table].cells
    if arguments.quick:
        return cells[:1]
    words = [word.lower() for word in arguments.cells]
    found = tuple(cell for cell in cells if not words or any(word in cell.name.lower() for word in words))
    if not found:
        names = "; ".join(cell.name for cell in cells)
        raise ConfigurationError(f"no cell of {arguments.table} holds {' or '.join(words)!r}; there are: {names}")
    return found


def runs_of(cell: Cell, arguments: argparse.Namespace) -> list[Run]:
    """The runs of a cell, as asked for."""
    rounds = arguments.rounds or (_QUICK_ROUNDS if arguments.quick else 0)
    return cell.runs(rates=tuple(arguments.rates), seeds=tuple(arguments.seeds), rounds=rounds)


def carry_out(runners: Sequence[Runner], *, jobs: int) -> dict[str, str]:
    """Run all of them, `jobs` at a time; returns by key why some failed. Small models gain nothing by more threads."""
    failures: dict[str, str] = {}
    if not runners:
        return failures
    with ProcessPoolExecutor(
        min(jobs, len(runners)), mp_context=get_context("forkserver"), initializer=_prepare
    ) as pool:
        running = {pool.submit(_carry_out, runner): runner.run for runner in runners}
        try:
            for done in as_completed(running):
                one = running[done]
                try:
                    say(f"{one.name}, {one.aggregation}, seed {one.seed}: {done.result()}")
                except FedcoreError as error:
                    failures[one.key] = str(error)
                    say(f"{one.name}, {one.aggregation}, seed {one.seed}: failed: {error}")
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return failures


def _prepare() -> None:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)


def _carry_out(runner: Runner) -> str:
    if time.time() > runner.deadline:
        return "not begun, the time is over"
    outcome = runner.carry_out()
    return (
        f"{outcome.rounds} rounds in {outcome.seconds:.0f} s, best {outcome.best:.2f} %, ended by its {outcome.ended}"
    )


if __name__ == "__main__":
    sys.exit(main())
