"""The outcome of an exchange, as JSON that outlives the process.

The result of an exchange is made from its `ExchangeOutcome`, whether that was written a moment ago or before a restart,
so the two cannot differ. Large files, the mean and clients' replies, are kept elsewhere, under their keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pydantic import TypeAdapter

from fedcore.codec import Decoded, MagnitudeStatistics, MetricName
from fedcore.errors import (
    ConfigurationError,
    DamagedAtRest,
    FedcoreError,
    NothingContributed,
    OtherForms,
    RepliesDiffer,
    RoundFailed,
    RoundingTooCoarse,
    TooFewContributed,
    UpdateTooLarge,
)
from fedcore.secagg import Fault
from fedcore.system.plain_json import from_plain, to_plain
from fedcore.wire.base import MetricValue
from fedcore.wire.tasks import DrawTicket
from fedcore.wire.uploads import ReplyError, WithdrawalReason, WithdrawIn


@dataclass(slots=True)
class ExchangeUsage:
    """Bytes received from and sent to each client, and seconds by stage.

    updates: bytes of each client's update that counts (`fedcore.wire.uploads.Contribution`).
    """

    stage_seconds: dict[str, float] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    updates: dict[int, int] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """How long the stages took together."""
        return sum(self.stage_seconds.values())

    def byte_counter(self, client: int) -> Callable[[int, int], None]:
        """Where the guard enters a request of `client`."""

        def enter(up: int, down: int) -> None:
            self.up[client] = self.up.get(client, 0) + up
            self.down[client] = self.down.get(client, 0) + down

        return enter


_FAILURES: Final = {
    kind.__name__: kind
    for kind in (
        RoundFailed,
        DamagedAtRest,
        NothingContributed,
        OtherForms,
        RepliesDiffer,
        RoundingTooCoarse,
        TooFewContributed,
        UpdateTooLarge,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFailure:
    """Why there is no result: the name of a RoundFailed, its text, and what `fedcore.run.retries` reads from it."""

    kind: str
    reason: str
    failures: int = 0
    large: int = 0
    coarse: str = ""
    helps: bool = False
    statistics: MagnitudeStatistics | None = None

    @classmethod
    def of(cls, error: FedcoreError, reason: str = "") -> Self:
        """`error` itself where it is one that decides about the next attempt; else that a round failed for `reason`."""
        kind = type(error).__name__
        if kind not in _FAILURES or kind == RoundFailed.__name__:
            return cls(kind=RoundFailed.__name__, reason=reason or str(error))
        return cls(
            kind=kind,
            reason=str(error),
            failures=error.failures if isinstance(error, TooFewContributed) else 0,
            large=error.large if isinstance(error, UpdateTooLarge) else 0,
            coarse=error.tensor if isinstance(error, RoundingTooCoarse) else "",
            helps=isinstance(error, RoundingTooCoarse) and error.helps,
            statistics=error.statistics if isinstance(error, UpdateTooLarge | RoundingTooCoarse) else None,
        )

    def error(self) -> RoundFailed:
        """What was raised."""
        kind = _FAILURES[self.kind]
        error: RoundFailed = kind.__new__(kind, self.reason)
        if isinstance(error, TooFewContributed):
            error.failures = self.failures
        if isinstance(error, UpdateTooLarge):
            error.large, error.statistics = self.large, self.statistics
        if isinstance(error, RoundingTooCoarse):
            error.tensor, error.helps, error.statistics = self.coarse, self.helps, self.statistics
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateResult:
    """What a secure sum says; the fields are those of `fedcore.codec.Decoded`.

    mean: the key of the new model. mean_sha256: of its file; "" where an earlier fedcore kept it. rounded: empty there.
    words: the key of the sum without masks, from which the model can be made again; None if it is not kept.
    """

    examples: int
    failures: int
    lost_norm: float
    metrics: dict[str, MetricValue]
    names: tuple[MetricName, ...] | None
    statistics: MagnitudeStatistics
    mean: str | None
    mean_sha256: str = ""
    rounded: tuple[str, ...] = ()
    words: str | None = None

    @classmethod
    def of(cls, decoded: Decoded, mean: str | None, mean_sha256: str, words: str | None = None) -> Self:
        """A sum whose model, if there is one, lies at `mean`."""
        return cls(
            examples=decoded.examples,
            failures=decoded.failures,
            lost_norm=decoded.lost_norm,
            metrics=dict(decoded.metrics),
            names=decoded.names,
            statistics=decoded.statistics,
            mean=mean,
            mean_sha256=mean_sha256,
            rounded=decoded.rounded,
            words=words,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReply:
    """One client's answer in a plain exchange.

    content: the key of its record file. digest: that the client signed of it; "" where an earlier fedcore kept it.
    """

    node: int
    content: str | None = None
    digest: str = ""
    error: ReplyError | None = None
    examples: int = 0
    metrics: dict[str, MetricValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeOutcome:
    """How an exchange ended. Exactly one of `failure`, `total` (secure), `replies` (plain) and `places` (a draw)
    says what came of it.

    survivors: whose updates are in the sum, also where it could not be opened; plain: who answered. unmasked: whether
    shares were asked for, so that the sum may be known although there is no result. blamed: who cheated, and how.
    withdrawals: what those said that left. common: the one reason that every client of the cohort gave for that.
    """

    survivors: tuple[int, ...] = ()
    unmasked: bool = False
    blamed: dict[int, Fault] = field(default_factory=dict)
    withdrawals: dict[int, WithdrawIn] = field(default_factory=dict)
    common: WithdrawalReason | None = None
    usage: ExchangeUsage = field(default_factory=ExchangeUsage)
    failure: ExchangeFailure | None = None
    total: AggregateResult | None = None
    replies: tuple[StoredReply, ...] = ()
    places: tuple[DrawTicket, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As an object for a column of the database. A loss may be NaN, which JSON does not know: a text there."""
        plain: dict[str, Any] = json.loads(json.dumps(to_plain(_END, self)), parse_constant=str)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExchangeOutcome:
        """The inverse of `to_json`; ConfigurationError if a database holds something else."""
        return from_plain(_END, dict(data), what="the kept end of an exchange", error=ConfigurationError)


_END: Final = TypeAdapter(ExchangeOutcome)
