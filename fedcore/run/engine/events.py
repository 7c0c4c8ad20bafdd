"""Events of exchanges, put together in one place for whatever carries the exchanges out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

from fedcore.run.engine.outcome import ExchangeOutcome, ExchangeUsage
from fedcore.run.plain import mean_metrics
from fedcore.run.retries import Traffic
from fedcore.wire.base import MetricValue
from fedcore.wire.events import ExchangeDone, ExchangeFailed, GroupEnded
from fedcore.wire.tasks import Group, Task

Names: TypeAlias = Callable[[int], str]
"""The name of a client."""
Sums: TypeAlias = Sequence[tuple[Task, ExchangeOutcome]]
"""The sums of one exchange: one, or one for each group."""


def names_of(clients: Collection[int], name: Names) -> list[str]:
    """Clients by name, in the order of their numbers."""
    return [name(client) for client in sorted(clients)]


def by_name(counts: Mapping[int, int], name: Names) -> dict[str, int]:
    """Figures of clients, by name."""
    return {name(client): count for client, count in sorted(counts.items())}


def traffic(usages: Collection[ExchangeUsage], name: Names) -> Traffic:
    """What travelled in all of these exchanges together."""
    up, down, updates = Counter[int](), Counter[int](), Counter[int]()
    for usage in usages:
        up.update(usage.up)
        down.update(usage.down)
        updates.update(usage.updates)
    return {
        "bytes_up": by_name(up, name),
        "bytes_down": by_name(down, name),
        "update_bytes": by_name(updates, name),
    }


def sums_done(
    task: Task,
    sums: Sums,
    name: Names,
    *,
    usage: ExchangeUsage | None = None,
    seconds: float | None = None,
    epsilon_spent: float | None,
    virtual_seconds: float | None = None,
) -> ExchangeDone:
    """An exchange of secure sums was completed.

    task
        Of the sum, or of the draw if there is one for each group.
    usage
        Of the draw.
    seconds
        How long it took, if not what the usages say.
    """
    totals = [end.total for _, end in sums if end.total is not None]
    return exchange_done(
        task,
        [client for _, end in sums for client in end.survivors],
        name,
        usages=[*([usage] if usage else []), *(end.usage for _, end in sums)],
        examples=sum(total.examples for total in totals),
        metrics=mean_metrics(totals) if len(totals) > 1 else dict(totals[0].metrics),
        seconds=_seconds(usage, sums) if seconds is None else seconds,
        virtual_seconds=virtual_seconds,
        clipped=sum(sum(total.statistics.clipped) for total in totals),
        lost_norm=max(total.lost_norm for total in totals),
        failures=sum(total.failures for total in totals),
        metrics_agree=all(total.names is not None for total in totals),
        epsilon_spent=epsilon_spent,
        staleness=by_name({i: age for one, end in sums for i, age in one.staleness_of(end.survivors).items()}, name),
        groups=len(sums),
    )


def exchange_done(
    task: Task,
    survivors: Collection[int],
    name: Names,
    *,
    usages: Collection[ExchangeUsage],
    examples: int,
    metrics: Mapping[str, MetricValue],
    **more: Any,
) -> ExchangeDone:
    """An exchange was completed; more: other fields of the event."""
    stages = dict.fromkeys(stage for usage in usages for stage in usage.stage_seconds)
    return ExchangeDone(
        exchange=task.exchange,
        server_round=task.server_round,
        message_type=task.message_type,
        aggregation=task.aggregation,
        survivors=names_of(survivors, name),
        examples=examples,
        metrics=dict(metrics),
        stage_seconds={stage: max(usage.stage_seconds.get(stage, 0.0) for usage in usages) for stage in stages},
        **traffic(usages, name),
        **more,
    )


def exchange_failed(
    task: Task, reason: str, usages: Collection[ExchangeUsage], name: Names, *, retry: bool
) -> ExchangeFailed:
    """An attempt at an exchange that makes no sum itself has failed, or the sums of its groups have.

    retry
        Whether another attempt follows.
    """
    return ExchangeFailed(
        exchange=task.exchange,
        server_round=task.server_round,
        reason=reason,
        retry=retry,
        **traffic(usages, name),
    )


def group_ended(
    group: Group,
    task: Task,
    end: ExchangeOutcome,
    name: Names,
    *,
    reason: str = "",
    retry: bool = False,
) -> GroupEnded:
    """A group has given its sum, or an attempt at it has failed for `reason`."""
    return GroupEnded(
        exchange=task.exchange,
        drawn=group.exchange,
        server_round=task.server_round,
        group=group.number,
        groups=group.of,
        survivors=names_of(end.survivors, name),
        seconds=round(end.usage.seconds, 4),
        reason=reason,
        retry=retry,
        **(traffic([end.usage], name) if reason else {}),
    )


def _seconds(draw: ExchangeUsage | None, sums: Sums) -> float:
    return round((draw.seconds if draw else 0.0) + max(end.usage.seconds for _, end in sums), 4)
