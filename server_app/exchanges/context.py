"""Context and result of an exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from fedcore.codec import Decoded
from fedcore.run.exchange import ExchangeReply
from fedcore.run.plain import PlainReply, mean_metrics
from fedcore.run.settings import JobSettings
from fedcore.wire.base import MetricValue
from fedcore.wire.events import EventSink
from fedcore.wire.tasks import Task
from server_app.services import Services


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A model as its difference to another (`fedcore.state.difference`, `fedcore.state.exact_difference`), or as a
    change (`fedcore.codec.means.change`).

    base
        SHA-256 of the file of the other model.
    path
        The file with the difference.
    """

    base: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContext:
    """What an exchange is made from.

    settings: of the run.
    model: file that clients download.
    add_event: adds an event to the run's log.
    enough: number of updates after which the exchange waits for no more; 0 to wait for every client.
    step: of the run's journal, which requested the exchange.
    extra: what else the caller needs to rebuild the exchange.
    difference: the model for clients that have the one before.
    base: model to which the mean of the changes is added; None for `model` itself.
    change: where the change that the sum makes to `model` goes; None if nobody would gain from it.
    """

    services: Services
    task: Task
    settings: JobSettings
    model: Path | None
    add_event: EventSink
    enough: int = 0
    step: int = 0
    extra: Mapping[str, Any] | None = None
    difference: Difference | None = None
    base: Path | None = None
    change: Path | None = None

    @property
    def key(self) -> str:
        """The folder of the exchange's objects."""
        return f"runs/{self.task.run}/exchanges/{self.task.exchange}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeResult:
    """The result: replies, the clients that contributed, and figures to show.

    decoded: the decoded sum, for the encoding of the next exchange; None in plain mode.
    plain: replies of a plain exchange.
    """

    replies: tuple[ExchangeReply, ...] = ()
    survivors: frozenset[int]
    examples: int
    metrics: Mapping[str, MetricValue]
    decoded: Decoded | None = None
    plain: tuple[PlainReply, ...] = ()

    @classmethod
    def of_sum(cls, decoded: Decoded, survivors: frozenset[int]) -> Self:
        """What a secure exchange gives."""
        return cls(
            replies=(ExchangeReply.of_cohort(decoded),),
            survivors=survivors,
            examples=decoded.examples,
            metrics=decoded.metrics,
            decoded=decoded,
        )

    @classmethod
    def of_replies(cls, replies: Sequence[PlainReply]) -> Self:
        """What a plain exchange gives."""
        answered = [reply for reply in replies if reply.error is None]
        return cls(
            plain=tuple(replies),
            survivors=frozenset(reply.node for reply in answered),
            examples=sum(reply.examples for reply in answered),
            metrics=mean_metrics(answered) if answered else {},
        )
