"""Stages of an exchange and states of its clients, each with its transition table.

`PHASE_TRANSITIONS` maps (phase, event) and `PARTICIPANT_TRANSITIONS` (state, event) to the next one. A pair that is
absent raises IllegalTransition and changes nothing. docs/state-machines.md is drawn from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from fedcore.errors import IllegalTransition
from fedcore.wire.events import StageProgress
from fedcore.wire.uploads import WithdrawalReason, WithdrawIn
from server_app.exchanges.context import ExchangeContext
from server_app.polling import Bell


class Phase(StrEnum):
    """What an exchange does with messages of its present stage; `DONE` and `FAILED` are its ends."""

    OPEN = "open"
    CLOSING = "closing"
    DONE = "done"
    FAILED = "failed"


class StageEvent(StrEnum):
    """What the leading of an exchange decides."""

    CLOSE = "close"
    NEXT_STAGE = "next stage"
    FINISH = "finish"
    FAIL = "fail"


_P, _S = Phase, StageEvent
PHASE_TRANSITIONS: Mapping[tuple[Phase, StageEvent], Phase] = {
    # A closing stage takes nothing more, and finishes what it has admitted.
    (_P.OPEN, _S.CLOSE): _P.CLOSING,
    (_P.CLOSING, _S.NEXT_STAGE): _P.OPEN,
    (_P.CLOSING, _S.FINISH): _P.DONE,
    (_P.OPEN, _S.FAIL): _P.FAILED,
    (_P.CLOSING, _S.FAIL): _P.FAILED,
}


class Stages:
    """Where an exchange is: in one of its stages, which follow each other, or at its end."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._index = 0
        self._phase = Phase.OPEN

    @property
    def current(self) -> str:
        """The present stage, or "done" or "failed"."""
        return self._phase.value if self.over else self._names[self._index]

    @property
    def over(self) -> bool:
        """Whether the exchange has ended."""
        return self._phase in (Phase.DONE, Phase.FAILED)

    @property
    def takes_messages(self) -> bool:
        """Whether the present stage is open."""
        return self._phase is Phase.OPEN

    @property
    def is_first(self) -> bool:
        """Whether the exchange has not gone beyond its first stage."""
        return self._index == 0

    @property
    def is_last(self) -> bool:
        """Whether no stage follows."""
        return self._index == len(self._names) - 1

    @property
    def following(self) -> str:
        """The stage after the present one; raises IllegalTransition after the last."""
        if self.is_last:
            raise IllegalTransition(self._phase, StageEvent.NEXT_STAGE)
        return self._names[self._index + 1]

    def is_past(self, stage: str) -> bool:
        """Whether a later stage than `stage` has begun."""
        return self._index > self._names.index(stage)

    def is_ahead(self, stage: str) -> bool:
        """Whether `stage` is still to come."""
        return self._index < self._names.index(stage)

    def move(self, event: StageEvent) -> str:
        """Follow the table; the stage, or end, that this leads to."""
        target = PHASE_TRANSITIONS.get((self._phase, event))
        if target is None or (event is StageEvent.NEXT_STAGE and self.is_last):
            raise IllegalTransition(self._phase, event)
        self._phase = target
        self._index += event is StageEvent.NEXT_STAGE
        return self.current


class ParticipantState(StrEnum):
    """State of a client in an exchange: what happened to its update, and whether it is still connected."""

    ASKED = "asked"
    ADMITTED = "admitted"
    TAKEN = "taken"
    DROPPED = "dropped"
    LEAVING = "leaving"
    LEFT = "left"


class ClientChange(StrEnum):
    """What can happen to a client."""

    ADMIT = "admit update"
    TAKE = "take update"
    REFUSE = "refuse update"
    DROP = "drop"


_A, _C = ParticipantState, ClientChange
PARTICIPANT_TRANSITIONS: Mapping[tuple[ParticipantState, ClientChange], ParticipantState] = {
    (_A.ASKED, _C.ADMIT): _A.ADMITTED,
    (_A.ASKED, _C.DROP): _A.DROPPED,
    (_A.ADMITTED, _C.TAKE): _A.TAKEN,
    (_A.ADMITTED, _C.REFUSE): _A.ASKED,
    # Its update is being added and cannot be held back any more: it will be a survivor that says nothing further.
    (_A.ADMITTED, _C.DROP): _A.LEAVING,
    (_A.LEAVING, _C.TAKE): _A.LEFT,
    (_A.LEAVING, _C.REFUSE): _A.DROPPED,
    (_A.TAKEN, _C.DROP): _A.LEFT,
}
_DEPARTED = frozenset({ParticipantState.DROPPED, ParticipantState.LEAVING, ParticipantState.LEFT})
_INCOMING = frozenset({ParticipantState.ADMITTED, ParticipantState.LEAVING})
_CONTRIBUTORS = frozenset({ParticipantState.TAKEN, ParticipantState.LEFT})
_HAS_UPDATE = _INCOMING | _CONTRIBUTORS


LASTING_REASONS: Final = frozenset(
    {
        WithdrawalReason.APP_FAILED,
        WithdrawalReason.APP_MISMATCH,
        WithdrawalReason.WRONG_RECORDS,
        WithdrawalReason.UPDATE_REFUSED,
        WithdrawalReason.POLICY,
    }
)
"""Reasons that will be the same at the next attempt, if all clients give the same one."""


class Participants:
    """The one owner of the state of each client of an exchange, and of who has answered the present stage.

    changed: rung whenever something here changes.
    """

    def __init__(self, cohort: Iterable[int]) -> None:
        self._states = dict.fromkeys(cohort, ParticipantState.ASKED)
        self._reasons: dict[int, str] = {}
        self._withdrawals: dict[int, WithdrawIn] = {}
        self._answered: set[int] = set()
        self._new_contributors: set[int] = set()
        self.changed = Bell()

    def __contains__(self, client: int) -> bool:
        return client in self._states

    def __len__(self) -> int:
        return len(self._states)

    @property
    def reasons(self) -> Mapping[int, str]:
        """Why each client is gone that was dropped; its messages are refused."""
        return self._reasons

    @property
    def withdrawals(self) -> Mapping[int, WithdrawIn]:
        """What those said that left by themselves."""
        return self._withdrawals

    @property
    def contributors(self) -> frozenset[int]:
        """Clients whose update is part of the result, even if they leave later."""
        return self._in(_CONTRIBUTORS)

    @property
    def incoming(self) -> frozenset[int]:
        """Clients whose update is admitted and not yet part of the result. The stage waits for them."""
        return self._in(_INCOMING)

    @property
    def done(self) -> frozenset[int]:
        """Clients that have answered the present stage; an update counts even if its client has left since."""
        return frozenset(self._answered | self._new_contributors)

    @property
    def missing(self) -> frozenset[int]:
        """Clients that the present stage still waits for."""
        there = self._states.keys() - self._in(_DEPARTED) | self.incoming
        return frozenset(there - self.done)

    def state(self, client: int) -> ParticipantState:
        """State of a client of the cohort."""
        return self._states[client]

    def has_update(self, client: int) -> bool:
        """Whether the client's update is on the server, even if the client has left since."""
        return self._states[client] in _HAS_UPDATE

    def begin_stage(self) -> None:
        """Nobody has answered yet."""
        self._answered.clear()
        self._new_contributors.clear()

    def answer(self, client: int) -> None:
        """A client's message of the present stage has been accepted."""
        self._answered.add(client)
        self.changed.ring()

    def admit(self, client: int) -> None:
        """A client's update is about to be taken; from here on until it is, the client counts as there."""
        self._move(client, ClientChange.ADMIT)

    def take(self, client: int) -> None:
        """An admitted client's update is part of the result."""
        self._move(client, ClientChange.TAKE)
        self._new_contributors.add(client)

    def refuse(self, client: int) -> None:
        """An admitted client's update could not be taken; it may send the end of it again."""
        self._move(client, ClientChange.REFUSE)

    def drop(self, client: int, reason: str, withdrawal: WithdrawIn | None = None) -> None:
        """Give a client up: what it said in the present stage counts no more, unless that was its update.

        withdrawal: its message, if it left by itself.
        """
        self._move(client, ClientChange.DROP)
        self._answered.discard(client)
        self._reasons[client] = reason
        if withdrawal is not None:
            self._withdrawals[client] = withdrawal

    def lasting_reason(self) -> WithdrawalReason | None:
        """The one reason of all who withdrew so far, if it is one that another attempt will not mend."""
        reasons = {withdrawal.reason for withdrawal in self._withdrawals.values()}
        return reasons.pop() if len(reasons) == 1 and reasons <= LASTING_REASONS else None

    def common_reason(self) -> WithdrawalReason | None:
        """The same, if every client of the cohort gave it."""
        return self.lasting_reason() if len(self._withdrawals) == len(self) else None

    def _in(self, states: frozenset[ParticipantState]) -> frozenset[int]:
        return frozenset(client for client, state in self._states.items() if state in states)

    def _move(self, client: int, change: ClientChange) -> None:
        source = self._states[client]
        target = PARTICIPANT_TRANSITIONS.get((source, change))
        if target is None:
            raise IllegalTransition(source, change)
        self._states[client] = target
        self.changed.ring()


_PAUSE_SECONDS: Final = 0.5


class StageReporter:
    """Shows how far a stage is, at most twice a second and once at its end.

    opened: when the exchange began, on the clock of `context`.
    """

    def __init__(self, context: ExchangeContext, stage: str, opened: float) -> None:
        self._context = context
        self._stage = stage
        self._opened = opened
        self._reported_at = context.services.clock()
        self._reported = 0
        self._lost_at: float | None = None

    def show(self, done: frozenset[int], missing: frozenset[int], *, final: bool = False) -> None:
        """Add an event, unless the last one is too recent or said the same."""
        now = self._context.services.clock()
        if not final and (len(done) == self._reported or now - self._reported_at < _PAUSE_SECONDS):
            return
        self._reported, self._reported_at = len(done), now
        self._context.add_event(
            StageProgress(
                exchange=self._context.task.exchange,
                stage=self._stage,
                done=len(done),
                expected=len(done | missing),
                seconds=round(now - self._opened, 3),
            )
        )

    def seconds_lost(self) -> float:
        """Since this was first asked: how long the exchange has been beyond hope."""
        now = self._context.services.clock()
        self._lost_at = self._lost_at if self._lost_at is not None else now
        return now - self._lost_at
