"""What the runs of the kill harness show: whether an update was lost or doubled, and who was told different things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.chaos_clients import Log
from benchmarks.chaos_digits import Reader, Sum
from benchmarks.chaos_runs import CLIENTS
from server_app.runs.deaths import MOST_DEATHS

FINDINGS: Final = (
    "lost", "doubled", "equivocations", "unfinished", "other_bits", "wrongly_blamed", "unnoticed_flips"
)  # fmt: skip
MOST_SPREAD: Final = 0.5
_DAMAGED: Final = "on the server's disk"
"""Part of the reason of an attempt that failed since what was stored is not what was written."""


@dataclass(slots=True)
class Verdict:
    """What was found, each as a sentence."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    equivocations: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    other_bits: list[str] = field(default_factory=list)
    wrongly_blamed: list[str] = field(default_factory=list)
    unnoticed_flips: list[str] = field(default_factory=list)
    """Bits of updates that were needed still, and no attempt that failed for them."""
    exchanges: int = 0
    failed_exchanges: int = 0
    given_up: int = 0
    """Runs that ended by name, as they may: the server was killed again before it came any further, or a backup was put
    back that their clients were beyond."""

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def counts(self) -> dict[str, int]:
        """How many there are of each."""
        return {name: len(getattr(self, name)) for name in FINDINGS}

    @property
    def findings(self) -> list[str]:
        """All of it."""
        return [text for name in FINDINGS for text in getattr(self, name)]


def judge_sum(verdict: Verdict, where: str, found: Sum, survivors: Collection[int]) -> None:
    """Compare what a sum holds with whom its survivors are."""
    if found.spread > MOST_SPREAD:
        verdict.lost.append(f"{where}: the sum is no whole number of steps, but {found.spread:.2f} away from one")
    for client, digit in enumerate(found.digits, start=1):
        wanted = int(client in survivors)
        if digit < wanted:
            verdict.lost.append(f"{where}: client {client} is not in the sum")
        elif digit > wanted:
            verdict.doubled.append(f"{where}: client {client} is in the sum {digit} times, and not {wanted}")


def judge_told(verdict: Verdict, log: Log) -> None:
    """Everybody must have been told the same of who takes part, as often as they asked."""
    for (place, kind), by_client in log.told.items():
        shown = set().union(*by_client.values())
        if len(shown) > 1:
            verdict.equivocations.append(f"{place}: {kind} was told in {len(shown)} ways")


def may_give_up(run: Mapping[str, Any], server_kills: int) -> bool:
    """Whether a run ended since its server was killed too often, and it was."""
    return run["status"] == "failed" and "came no further in between" in run["reason"] and server_kills >= MOST_DEATHS


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What was done to a run.

    strategy: its name. server_kills: how many its server died of. flips: exchanges of which the disk changed an update
    that was needed still: each of them costs one attempt. restored: whether a backup was put back, which knows nothing
    of what came after it.
    """

    strategy: str
    server_kills: int = 0
    flips: frozenset[int] = frozenset()
    restored: bool = False


def judge_run(verdict: Verdict, run: Mapping[str, Any], log: Log, final: bytes | None, history: History) -> None:
    """One run with all its events; final: its model."""
    name, events = run["run"], [one["event"] for one in run["events"]]
    failed = _failed(events)
    verdict.failed_exchanges += len(failed)
    verdict.wrongly_blamed += [f"{name}: {event['client']}" for event in events if event["kind"] == "blamed"]
    if not history.restored:
        _judge_failures(verdict, name, failed, log, history.flips)
    if may_give_up(run, history.server_kills):
        verdict.given_up += 1
        return
    if run["status"] != "finished":
        if history.restored and run["status"] == "failed" and run["reason"]:
            verdict.given_up += 1
        else:
            verdict.unfinished.append(f"{name}: {run['status']}, {run['reason']}")
        return
    done = [event for event in events if event["kind"] == "exchange-done"]
    verdict.exchanges += len(done)
    if not history.restored:
        _judge_accepted(verdict, name, events, log)
    _judge_models(verdict, name, done, log, final, history.strategy)


def _failed(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The attempts that failed: at exchanges, and at the sums of groups."""
    kinds = ("exchange-failed", "group-ended")
    return [event for event in events if event["kind"] in kinds and event["reason"]]


def _judge_failures(
    verdict: Verdict, name: str, failed: Sequence[Mapping[str, Any]], log: Log, flips: frozenset[int]
) -> None:
    """Nobody leaves by itself here, so nothing but what was done to the server threw these updates away."""
    for event in failed:
        place = (name, event["exchange"])
        thrown = [client for where, client in sorted(log.accepted) if where == place]
        if thrown and event["exchange"] not in flips:
            verdict.lost.append(f"{place}: the updates of {thrown} were accepted, and it failed: {event['reason']}")
    known = {event["exchange"] for event in failed if _DAMAGED in event["reason"]}
    verdict.unnoticed_flips += [f"{(name, exchange)}: a bit was flipped" for exchange in sorted(flips - known)]


def _judge_accepted(verdict: Verdict, name: str, events: Sequence[Mapping[str, Any]], log: Log) -> None:
    """An update that was accepted is in the sum of its exchange, and no update is in two sums."""
    ends = [one for one in events if one["kind"] == "exchange-done" or one["kind"] == "group-ended"]
    sums = {event["exchange"]: _numbers(event) for event in ends if not event.get("reason")}
    verdict.lost += [
        f"{where}: the update of client {client} was accepted, and is not in the sum"
        for where, client in sorted(log.accepted)
        if where[0] == name and client not in sums.get(where[1], [client])
    ]
    counts = Counter(client for event in ends if event["kind"] == "exchange-done" for client in _numbers(event))
    verdict.doubled += [
        f"{name}: client {client} is in {count} sums, and has trained {log.trainings[name, client]} times"
        for client, count in sorted(counts.items())
        if count > log.trainings[name, client]
    ]


def _judge_models(
    verdict: Verdict, name: str, done: Sequence[Mapping[str, Any]], log: Log, final: bytes | None, strategy: str
) -> None:
    """The digits of all sums."""
    reader = Reader(strategy, CLIENTS)
    models = [log.models.get((name, one["server_round"])) for one in done] + [final]
    for event, before, after in zip(done, models[:-1], models[1:], strict=True):
        survivors = _numbers(event)
        if before is None or after is None:
            reader.assume(event["server_round"], survivors)
            continue
        found = reader.read(event["server_round"], before, after, len(survivors))
        judge_sum(verdict, str((name, event["exchange"])), found, survivors)


def _numbers(event: Mapping[str, Any]) -> list[int]:
    """Of an event's survivors."""
    return [int(client.rpartition("-")[2]) for client in event["survivors"]]
