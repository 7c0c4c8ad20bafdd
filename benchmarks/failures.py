"""A rank that fails: seconds until the server knows, and whether the next round has its client back.

    python benchmarks/failures.py [--quick] [--json]

Four clients with secure aggregation, in real processes; client-1 has two DDP ranks. In the first round of every run
one of them fails, in a way that the run config names. Without a word from the client the server would notice after
`liveness-seconds` if the agent ended too, and after `train-seconds` if it did not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from benchmarks.live import LiveFederation, live_federation
from client_app.operator.run_submission import make_submission
from fedcore.errors import RunFailed
from fedcore.run.settings import JobSettings
from fedcore.state import OWN_MODEL_FOLDER
from fedcore.wire.events import ClientDropped, ExchangeDone, Recorded
from fedcore.wire.operator import RunStatus

APP = Path(__file__).parent / "apps" / "failing"
CLIENTS, VICTIM = 4, "client-1"
TRAIN_SECONDS = 15.0
HANG = "hang"
FAILURES = (
    ("kill in the backward pass", 1),
    ("exception before a collective", 0),
    ("exception after a collective", 0),
    ("death of a loader process", 1),
    ("out of memory", 1),
    (HANG, 1),
)
QUICK = FAILURES[:2]
KNOWN_AIM = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one run. known: seconds from the failure until the server knew."""

    failure: str
    rank: int
    reason: str
    known: float
    first: Sequence[str]
    second: Sequence[str]


def main() -> int:
    """The command line."""
    return run(measure, parser("A rank that fails: seconds until the server knows.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """One run for each failure, in one federation."""
    say(f"starting a server and {CLIENTS} clients, {VICTIM} with two ranks")
    options = {VICTIM: ("--nproc-per-node", "2")}
    outcomes = []
    with live_federation(APP, clients=CLIENTS, options=options) as federation:
        # Of the folders that its user code may write to, the one that outlives it.
        folder = federation.operator_folder.parent / "clients" / VICTIM / "state" / OWN_MODEL_FOLDER
        for number, (failure, rank) in enumerate(sized(arguments, smallest=QUICK[:1], quick=QUICK, whole=FAILURES)):
            outcomes.append(_fail(federation, failure, rank, folder / str(number)))
            say(f"{failure}: {outcomes[-1].known:.2f} s, {outcomes[-1].reason}")
    return report(outcomes)


def _fail(federation: LiveFederation, failure: str, rank: int, note: Path) -> Outcome:
    run_config = {"failure": failure, "rank": rank, "note": str(note), "min-nodes": CLIENTS}
    submission = make_submission(APP, run_config, {"min-clients": CLIENTS, "train-seconds": TRAIN_SECONDS})
    events, offset = _follow(federation, federation.operator.submit(submission).run)
    # Where the sum fails without it, there is another attempt; and on a busy machine others may be late as well.
    dropped = [(one.event, one.seconds) for one in events if isinstance(one.event, ClientDropped)]
    lost = [(event.reason, seconds) for event, seconds in dropped if event.client == VICTIM]
    if not lost:
        raise RunFailed(f"{failure}: {VICTIM} was in every round; see {note}")
    reason, seconds = lost[0]
    first, second = (item.event.survivors for item in events if isinstance(item.event, ExchangeDone))
    return Outcome(
        failure=failure,
        rank=rank,
        reason=reason,
        known=offset + seconds - float(note.read_text()),
        first=first,
        second=second,
    )


def _follow(federation: LiveFederation, run_id: str) -> tuple[list[Recorded], float]:
    """All events of a run, and when it began: no event can be heard before it happened, and one is heard at once."""
    events: list[Recorded] = []
    began = float("inf")
    for state in federation.operator.follow(run_id):
        federation.group.check()
        began = min([began, *(time.time() - event.seconds for event in state.events)])
        events += state.events
    if state.status is not RunStatus.FINISHED:
        raise AssertionError(f"the run {state.status}: {state.reason}")
    return events, began


def report(outcomes: Sequence[Outcome]) -> Report:
    """Figures and the table."""
    liveness = JobSettings().liveness_seconds
    back = sum(VICTIM in outcome.second and VICTIM not in outcome.first for outcome in outcomes)
    rows = tuple(
        (outcome.failure, str(outcome.rank), f"{outcome.known:.2f}", outcome.reason, ", ".join(outcome.second))
        for outcome in outcomes
    )
    return Report(
        benchmark="failures",
        figures=(
            Figure(
                name="known_over_liveness",
                value=max(outcome.known for outcome in outcomes if outcome.failure != HANG) / liveness,
                aim=KNOWN_AIM,
            ),
            Figure(name="back_in_the_next_round", value=back / len(outcomes), aim=1.0, at_least=True),
        ),
        tables=(
            Table(
                title=f"One rank of {VICTIM} fails in round 1",
                header=("failure", "rank", "s until the server knows", "reason", "clients in round 2"),
                rows=rows,
            ),
        ),
        notes=(
            f"the largest time until the server knows, over the {liveness:g} s after which it gives up a silent "
            f"client; a rank that hangs is not in it, whose task began up to a second before it hung and has "
            f"{TRAIN_SECONDS:g} s (train-seconds)",
            "times are read from two clocks of one machine and from the server's events: 0.02 s more or less",
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
