"""The outcome of an exchange, as JSON that outlives the process.

The result of an exchange is made from its `ExchangeOutcome`, whether that was written a moment ago or before a restart,
so the two cannot differ. Large files, the mean and clients' replies, are in the object store under their keys.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
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
from fedcore.run.plain import PlainReply
from fedcore.secagg import Fault
from fedcore.state import ModelState, sha256_file
from fedcore.system.plain_json import from_plain, to_plain
from fedcore.wire.control import DrawTicket, MetricValue, ReplyError, WithdrawalReason, WithdrawIn
from server_app.exchanges.at_rest import intact, update_digest_of
from server_app.exchanges.context import ExchangeResult, ExchangeUsage
from server_app.storage.objects import Objects

Fetch = Callable[[str], Awaitable[Path]]
"""Where the object of a key lies on this machine."""

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
class StoredSum:
    """What a secure sum says; the fields are those of `fedcore.codec.Decoded`.

    mean: the key of the new model. mean_sha256: of its file; "" where an earlier fedcore kept it.
    """

    examples: int
    failures: int
    lost_norm: float
    metrics: dict[str, MetricValue]
    names: tuple[MetricName, ...] | None
    statistics: MagnitudeStatistics
    mean: str | None
    mean_sha256: str = ""

    @classmethod
    def of(cls, decoded: Decoded, mean: str | None, mean_sha256: str) -> Self:
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
        )

    async def decoded(self, fetch: Fetch) -> Decoded:
        """The sum with its model, mapped."""
        return Decoded(
            examples=self.examples,
            failures=self.failures,
            lost_norm=self.lost_norm,
            metrics=dict(self.metrics),
            names=self.names,
            statistics=self.statistics,
            state=ModelState.open(await fetch(self.mean)) if self.mean is not None else None,
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

    async def reply(self, fetch: Fetch) -> PlainReply:
        """The answer with its file."""
        return PlainReply(
            node=self.node,
            content=await fetch(self.content) if self.content is not None else None,
            error=self.error,
            examples=self.examples,
            metrics=dict(self.metrics),
        )


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
    total: StoredSum | None = None
    replies: tuple[StoredReply, ...] = ()
    places: tuple[DrawTicket, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As an object for a column of the database. A loss may be NaN, which JSON does not know: a text there."""
        plain: dict[str, Any] = json.loads(json.dumps(to_plain(_END, self)), parse_constant=str)
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ExchangeOutcome:
        """The inverse of `to_json`; ConfigurationError where a database holds something else."""
        return from_plain(_END, dict(data), what="the kept end of an exchange", error=ConfigurationError)

    async def check_files(self, objects: Objects, exchange: int) -> None:
        """See that the files of an exchange that ended in an earlier process are what was written.

        Raises DamagedAtRest.
        """
        if self.total is not None and self.total.mean is not None:
            what = f"the new model of exchange {exchange}"
            await intact(objects, self.total.mean, what, self.total.mean_sha256, sha256_file)
        for reply in self.replies:
            if reply.content is not None:
                what = f"a client's reply in exchange {exchange}"
                await intact(objects, reply.content, what, reply.digest, update_digest_of)

    async def outcome(self, fetch: Fetch) -> ExchangeResult:
        """The result, whose files `fetch` finds; raises the RoundFailed that the exchange ended with."""
        if self.failure is not None:
            raise self.failure.error()
        if self.total is not None:
            return ExchangeResult.of_sum(await self.total.decoded(fetch), frozenset(self.survivors))
        return ExchangeResult.of_replies([await reply.reply(fetch) for reply in self.replies])


_END: Final = TypeAdapter(ExchangeOutcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Why a client was given up, and what it said where it left by itself."""

    reason: str
    withdrawal: WithdrawIn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageClosure:
    """Whose answers count, whom the exchange has given up since the closing before, and who had cheated by then.

    Answers are named, and not to be taken from the receipts: one may have come to the disk although its writing was
    reported as failed, and then nobody has counted it.
    """

    answered: tuple[int, ...]
    gone: dict[int, Departure] = field(default_factory=dict)
    blamed: dict[int, Fault] = field(default_factory=dict)
    usage: ExchangeUsage = field(default_factory=ExchangeUsage)

    def to_json(self) -> dict[str, Any]:
        """As an object for a column of the database."""
        plain: dict[str, Any] = json.loads(json.dumps(to_plain(_CLOSING, self)))
        return plain

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StageClosure:
        """The inverse of `to_json`; ConfigurationError where a database holds something else."""
        return from_plain(_CLOSING, dict(data), what="the kept closing of a stage", error=ConfigurationError)


_CLOSING: Final = TypeAdapter(StageClosure)
