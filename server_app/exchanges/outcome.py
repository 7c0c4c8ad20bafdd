"""Files of an exchange that has ended, and closures of its stages.

The outcome of an exchange is an `ExchangeOutcome`; its large files are in the object store under their keys.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from fedcore.codec import Decoded, decode
from fedcore.errors import ConfigurationError, DamagedAtRest, PeerError, RoundFailed, UsageError
from fedcore.run.engine.outcome import AggregateResult, ExchangeOutcome, ExchangeUsage, StoredReply
from fedcore.run.exchange import encoding_of
from fedcore.run.plain import PlainReply
from fedcore.secagg import Fault
from fedcore.state import ModelState, sha256_file
from fedcore.system.concurrency import in_thread
from fedcore.system.plain_json import from_plain, to_plain
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawIn
from server_app.exchanges.at_rest import intact, reply_digest_of
from server_app.exchanges.context import ExchangeResult
from server_app.exchanges.sums.sum_file import MappedWords
from server_app.services import Services
from server_app.storage.blobs import discard
from server_app.storage.objects import Objects

Fetch = Callable[[str], Awaitable[Path]]
"""Where the object of a key lies on this machine."""


async def check_files(end: ExchangeOutcome, objects: Objects, exchange: int) -> None:
    """See that the files of an exchange that ended in an earlier process are what was written.

    Raises DamagedAtRest.
    """
    if end.total is not None and end.total.mean is not None:
        what = f"the new model of exchange {exchange}"
        await intact(objects, end.total.mean, what, end.total.mean_sha256, sha256_file)
    for reply in end.replies:
        if reply.content is not None:
            what = f"a client's reply in exchange {exchange}"
            digest_of = partial(reply_digest_of, digest=reply.digest)
            await intact(objects, reply.content, what, reply.digest, digest_of)


async def make_mean_again(end: ExchangeOutcome, task: Task, base: Path, services: Services) -> None:
    """If the new model of an exchange was removed, make it again from its sum, to the bit.

    Raises StorageFull, StorageUnavailable. What is missing or damaged `check_files` finds.

    Args:
        base: file of the model to which the mean is added.
    """
    objects, total = services.objects, end.total
    if total is None or total.mean is None or total.words is None:
        return
    with suppress(KeyError):
        await objects.fetch(total.mean)
        return
    draft = services.spool.unused()
    try:
        mapped = MappedWords(await objects.fetch(total.words))
        await in_thread(
            decode,
            encoding_of(task),
            mapped.words,
            survivors=len(end.survivors),
            base=ModelState.open(base),
            out_path=draft,
            threads=services.threads,
            release=mapped.free_memory,
        )
        await objects.put(draft, total.mean)
    except (KeyError, PeerError, RoundFailed, UsageError) as error:
        raise DamagedAtRest(f"the sum of exchange {task.exchange}") from error
    finally:
        discard(draft)


async def result_of(end: ExchangeOutcome, fetch: Fetch) -> ExchangeResult:
    """The result, whose files `fetch` finds; raises the RoundFailed that the exchange ended with."""
    if end.failure is not None:
        raise end.failure.error()
    if end.total is not None:
        return ExchangeResult.of_sum(await _decoded(end.total, fetch), frozenset(end.survivors))
    return ExchangeResult.of_replies([await _reply(reply, fetch) for reply in end.replies])


async def _decoded(total: AggregateResult, fetch: Fetch) -> Decoded:
    """The sum with its model, mapped."""
    return Decoded(
        examples=total.examples,
        failures=total.failures,
        lost_norm=total.lost_norm,
        metrics=dict(total.metrics),
        names=total.names,
        statistics=total.statistics,
        state=ModelState.open(await fetch(total.mean)) if total.mean is not None else None,
        rounded=total.rounded,
    )


async def _reply(reply: StoredReply, fetch: Fetch) -> PlainReply:
    """The answer with its file."""
    return PlainReply(
        node=reply.node,
        content=await fetch(reply.content) if reply.content is not None else None,
        error=reply.error,
        examples=reply.examples,
        metrics=dict(reply.metrics),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Why a client was dropped, and its message if it withdrew."""

    reason: str
    withdrawal: WithdrawIn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageClosure:
    """The closure of a stage.

    Answers are listed here and not taken from the receipts: a receipt may have been stored although its write was
    reported as failed, and then its answer was not counted.

    answered: clients whose answers count.
    gone: clients dropped since the closure before.
    blamed: clients excluded for a protocol violation so far.
    usage: bytes and seconds so far.
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
        """The inverse of `to_json`; ConfigurationError if a database holds something else."""
        return from_plain(_CLOSING, dict(data), what="the kept closing of a stage", error=ConfigurationError)


_CLOSING: Final = TypeAdapter(StageClosure)
