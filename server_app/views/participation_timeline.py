"""Participation of each client in the last exchanges of a run, one mark each (Bonawitz et al. 2019, figure 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from fedcore.wire.events import (
    AttemptEnd,
    ClientBlamed,
    ClientDropped,
    ExchangeDone,
    ExchangeStarted,
    GroupStarted,
    Recorded,
)
from fedcore.wire.tasks import is_query, is_training
from fedcore.wire.uploads import NOTHING, Contribution, contributions
from fedcore.wire.watch import MOST_MARKS, ClientMarks, Mark, MarksOut
from server_app.exchanges.exchange import Exchange

_NO_PART: Final[Mark] = "."
_FINAL_MARKS: Final = frozenset({"x", "!"})


@dataclass(slots=True)
class _TimelineColumn:
    kind: Literal["train", "evaluate", "query"]
    marks: dict[str, Mark] = field(default_factory=dict)


class ParticipationTimeline:
    """Takes the events of one run in order; of exchanges before the last `MOST_MARKS` no mark is kept."""

    def __init__(self) -> None:
        self._exchanges: dict[int, _TimelineColumn] = {}
        self._groups: dict[int, int] = {}
        """Of the last drawn exchange: the number of each of its groups -> its own."""
        self._gave: dict[str, Contribution] = {}

    def take(self, item: Recorded) -> None:
        """One more event."""
        if isinstance(item.event, AttemptEnd):
            for name, gave in contributions([item.event.update_bytes]).items():
                self._gave[name] = self._gave.get(name, NOTHING) + gave
        match item.event:
            case ExchangeStarted() as started:
                joined: dict[str, Mark] = dict.fromkeys(started.cohort, "j")
                self._exchanges[started.exchange] = _TimelineColumn(_kind(started.message_type), joined)
                if len(self._exchanges) > MOST_MARKS:
                    del self._exchanges[next(iter(self._exchanges))]
                self._groups = {}
            case GroupStarted(exchange=exchange, drawn=drawn):
                self._groups[exchange] = drawn
            case ClientDropped(exchange=exchange, client=client):
                self._mark(exchange, client, "x")
            case ClientBlamed(exchange=exchange, client=client):
                self._mark(exchange, client, "!")
            case ExchangeDone() as done:
                for client in done.survivors:
                    self._mark(done.exchange, client, "d")

    def _mark(self, exchange: int, client: str, mark: Mark) -> None:
        column = self._exchanges.get(self._groups.get(exchange, exchange))
        if column is not None and column.marks.get(client) != "!":  # what a client is blamed for outlasts its end
            column.marks[client] = mark

    def describe(self, last: int, members: Iterable[str], now: Mapping[str, Mark], open_exchange: int) -> MarksOut:
        """The last exchanges.

        last
            How many.
        members
            Names of the members.
        now
            Current marks of the clients of the open exchange.
        open_exchange
            Number of the open exchange; 0 if none is open.
        """
        chosen = dict(list(self._exchanges.items())[-last:])
        lines = {name: [_NO_PART] * len(chosen) for name in (*members, *self._gave)}
        for index, (number, exchange) in enumerate(chosen.items()):
            for name, mark in exchange.marks.items():
                line = lines.setdefault(name, [_NO_PART] * len(chosen))
                line[index] = now.get(name, mark) if number == open_exchange and mark not in _FINAL_MARKS else mark
        return MarksOut(
            exchanges=list(chosen),
            kinds=[exchange.kind for exchange in chosen.values()],
            clients=[
                ClientMarks(name=name, marks="".join(line), gave=self._gave.get(name, NOTHING))
                for name, line in lines.items()
            ],
        )


def current_marks(exchanges: Sequence[Exchange], names: Mapping[int, str]) -> tuple[dict[str, Mark], int]:
    """How the clients of what is open stand, and its number: that of the draw if the open ones are groups of one.

    Of a client that is in several, the newest counts.
    """
    marks: dict[str, Mark] = {}
    for exchange in exchanges:
        marks |= _marks(exchange, names)
    if not exchanges:
        return marks, 0
    newest = exchanges[-1].task
    return marks, newest.group.exchange if newest.group else newest.exchange


def _marks(exchange: Exchange, names: Mapping[int, str]) -> dict[str, Mark]:
    """How the clients of an exchange stand that have not left: their keys are here, or their update is."""
    first, answered = exchange.stages.is_first, exchange.clients.done
    marks: dict[str, Mark] = {}
    for client in exchange.task.cohort:
        if client in exchange.clients.reasons:
            mark: Mark = "x"
        elif exchange.clients.has_update(client):
            mark = "u"
        elif not first or client in answered or exchange.uploads.received(client):
            mark = "t"
        else:
            mark = "j"
        marks[names[client]] = mark
    return marks


def _kind(message_type: str) -> Literal["train", "evaluate", "query"]:
    if is_training(message_type):
        return "train"
    return "query" if is_query(message_type) else "evaluate"
