"""What the runs of the kill harness show: whether an update was lost or doubled, and who was told different things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.chaos_clients import STEP, Log
from server_app.runs.deaths import MOST_DEATHS


@dataclass(slots=True)
class Verdict:
    """What was found, each as a sentence."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    equivocations: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    other_bits: list[str] = field(default_factory=list)
    wrongly_blamed: list[str] = field(default_factory=list)
    exchanges: int = 0
    failed_exchanges: int = 0
    given_up: int = 0
    """Runs that ended as they have to where the server is killed again before it came any further."""

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def findings(self) -> list[str]:
        """All of it."""
        found = [self.lost, self.doubled, self.equivocations, self.unfinished, self.other_bits, self.wrongly_blamed]
        return [text for texts in found for text in texts]


def judge_digits(verdict: Verdict, where: str, before: bytes, after: bytes, survivors: Sequence[int]) -> None:
    """Compare what the mean of an exchange added to the model with the sum of its survivors' powers of four."""
    added = np.frombuffer(after, np.float32).astype(float) - np.frombuffer(before, np.float32)
    total = np.rint(np.median(added) * len(survivors) / STEP)
    spread = float(np.abs(added * len(survivors) / STEP - total).max())
    if spread > 0.5:
        verdict.lost.append(f"{where}: the sum is no whole number of steps, but {spread:.2f} away from one")
    for client, digit in enumerate(_digits(int(total)), start=1):
        wanted = int(client in survivors)
        if digit < wanted:
            verdict.lost.append(f"{where}: client {client} is not in the sum")
        elif digit > wanted:
            verdict.doubled.append(f"{where}: client {client} is in the sum {digit} times, and not {wanted}")


def _digits(total: int) -> list[int]:
    """To the base of four, the lowest first; as many as there can be clients."""
    return [total >> 2 * place & 3 for place in range(8)]


def judge_told(verdict: Verdict, log: Log) -> None:
    """Everybody must have been told the same of who takes part, as often as they asked."""
    for (place, kind), by_client in log.told.items():
        shown = set().union(*by_client.values())
        if len(shown) > 1:
            verdict.equivocations.append(f"{place}: {kind} was told in {len(shown)} ways")


def may_give_up(run: Mapping[str, Any], server_kills: int) -> bool:
    """Whether a run ended since its server was killed too often, and it was."""
    return run["status"] == "failed" and "came no further in between" in run["reason"] and server_kills >= MOST_DEATHS


def judge_run(
    verdict: Verdict,
    run: Mapping[str, Any],
    log: Log,
    final: bytes | None,
    *,
    digits: bool,
    server_kills: int = 0,
    damages: int = 0,
) -> None:
    """One run with all its events.

    final: its model. digits: whether its strategy adds the mean as it is. server_kills: how many its server died of.
    damages: how many updates the disk changed, each of which costs an attempt.
    """
    name, events = run["run"], [one["event"] for one in run["events"]]
    failed = [event for event in events if event["kind"] == "exchange-failed"]
    verdict.failed_exchanges += len(failed)
    verdict.wrongly_blamed += [f"{name}: {event['client']}" for event in events if event["kind"] == "blamed"]
    for event in failed[damages:]:  # nobody leaves by itself here, so nothing but the kills threw these updates away
        thrown = [client for where, client in sorted(log.accepted) if where == (name, event["exchange"])]
        if thrown:
            place = (name, event["exchange"])
            verdict.lost.append(f"{place}: the updates of {thrown} were accepted, and it failed: {event['reason']}")
    if may_give_up(run, server_kills):
        verdict.given_up += 1
        return
    if run["status"] != "finished":
        verdict.unfinished.append(f"{name}: {run['status']}, {run['reason']}")
        return
    done = [event for event in events if event["kind"] == "exchange-done"]
    verdict.exchanges += len(done)
    models = [log.models.get((name, one["exchange"])) for one in done] + [final]
    for event, before, after in zip(done, models[:-1], models[1:], strict=True):
        place = (name, event["exchange"])
        survivors = [int(client.rpartition("-")[2]) for client in event["survivors"]]
        verdict.lost += [
            f"{place}: the update of client {client} was accepted, and is not in the sum"
            for where, client in sorted(log.accepted)
            if where == place and client not in survivors
        ]
        if digits and before is not None and after is not None:
            judge_digits(verdict, str(place), before, after, survivors)
