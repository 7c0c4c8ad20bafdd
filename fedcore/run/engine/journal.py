"""The journal of a run: the requests of its ServerApp, in order, and the replies that it got.

A ServerApp cannot be written down, but it can be started again: given the same replies it comes to the same state, to
the bit. So the journal keeps each reply before the ServerApp gets it, and gives it again as long as the ServerApp asks
for the same; the first request without a reply is carried out. Where the steps lie is a port, a `JournalStore`: a table
of a server's database, or a folder of a simulation, whose coroutines never suspend (`run_now`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, TypeAlias

from fedcore.errors import ConfigurationError
from fedcore.wire.tasks import is_training

JsonObject: TypeAlias = Mapping[str, Any]
NODES_REQUEST: Final[JsonObject] = {"op": "nodes"}


class RequestDiffers(ConfigurationError):
    """The ServerApp, started again, asked for something else than before, so that its run cannot be resumed.

    number
        Of the request, from 1.
    fields
        The names of those in which it differs.
    """

    check = "request-differs"

    def __init__(self, number: int, before: JsonObject, now: JsonObject) -> None:
        self.number = number
        self.fields = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        super().__init__(
            f"the ServerApp was started again and did not do the same again: its request {number} differs in "
            f"{', '.join(self.fields)}. What it draws from the clock or the system's randomness is another each time; "
            "let it use random, numpy.random or torch, which are seeded"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStep:
    """A request that the journal has.

    request
        As JSON, in the form in which requests are compared.
    digest
        Of the request, as `digest_of` gives it.
    reply
        As JSON; None while there is none.
    """

    request: JsonObject
    digest: bytes
    reply: JsonObject | None


class JournalStore(Protocol):
    """Keeps the steps of one run."""

    async def steps(self) -> Sequence[JournalStep]:
        """All steps, from number 1 on."""
        ...

    async def open_step(self, number: int, digest: bytes, request: JsonObject) -> None:
        """Take a request, before anything is done for it."""
        ...

    async def answer_step(self, number: int, reply: JsonObject) -> None:
        """Make the reply durable, before the ServerApp gets it."""
        ...


class Journal:
    """Follows the requests of one start of the ServerApp.

    number
        Of the last request; 0 before the first.
    trained
        SHA-256 of the model of each secure training that it has asked for.
    """

    def __init__(self, store: JournalStore, steps: Sequence[JournalStep]) -> None:
        self._store = store
        self._steps = steps
        self.number = 0
        self.trained: list[str] = []

    @classmethod
    async def open(cls, store: JournalStore) -> Self:
        """The journal of a run whose ServerApp is about to be started."""
        return cls(store, await store.steps())

    @property
    def known(self) -> bool:
        """Whether the ServerApp has asked for anything since the run began."""
        return bool(self._steps)

    @property
    def answered(self) -> int:
        """How many requests had their reply when the ServerApp was started."""
        return sum(step.reply is not None for step in self._steps)

    async def begin(self, request: JsonObject) -> JsonObject | None:
        """The reply to the next request; None if there is none yet, and the request has to be carried out.

        Raises RequestDiffers.
        """
        self.number += 1
        if request["op"] == "exchange" and is_training(request["message_type"]) and request["model"] is not None:
            self.trained.append(request["model"])
        digest = digest_of(request)
        if self.number > len(self._steps):
            await self._store.open_step(self.number, digest, request)
            return None
        step = self._steps[self.number - 1]
        if step.digest != digest:
            raise RequestDiffers(self.number, step.request, json.loads(_text(request)))
        return step.reply

    async def answer(self, reply: JsonObject) -> None:
        """Keep the reply to the last request."""
        await self._store.answer_step(self.number, reply)


def digest_of(request: JsonObject) -> bytes:
    """SHA-256 of a request, however its keys are ordered."""
    return hashlib.sha256(_text(request).encode()).digest()


def _text(request: JsonObject) -> str:
    return json.dumps(request, sort_keys=True, separators=(",", ":"))


# --- requests as they are compared: files by their SHA-256, and without what is new in every process ------------

_EXCHANGE: Final = "message_type", "nodes", "server_round", "arrays_key", "configs", "weight_key", "timeout", "ahead"
_PLAIN_EXCHANGE: Final = "server_round", "weight_key", "timeout", "model"
_PLAIN_MESSAGE: Final = "node", "message_type"
_HEAD: Final = "group_id", "ttl"


def exchange_record(request: object, model: str | None) -> JsonObject:
    """A request for a secure exchange.

    request
        An `ExchangeRequest`, or what carries its fields between processes.
    model
        SHA-256 of the model that the ServerApp sends.
    """
    return {"op": "exchange", **_fields(request, _EXCHANGE), "model": model}


def plain_exchange_record(request: object, messages: Iterable[tuple[Any, str]]) -> JsonObject:
    """A request for a plain exchange.

    request
        A `PlainRequest` of fedcore.flower, or what carries its fields between processes.
    messages
        Those in it, each with the SHA-256 of its record file.
    """
    questions = [
        {**_fields(one, _PLAIN_MESSAGE), "head": _fields(one.head, _HEAD), "content": sha256}
        for one, sha256 in messages
    ]
    return {"op": "plain-exchange", **_fields(request, _PLAIN_EXCHANGE), "questions": questions}


def _fields(value: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}
