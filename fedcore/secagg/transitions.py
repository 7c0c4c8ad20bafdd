"""Every legal transition of both state machines, in one table.

`CLIENT` and `SERVER` map (state, event) to where it leads. A pair that is absent is illegal in that state and leaves
it as it was. A `repeat` is an event that was answered before: it is accepted only with identical content, gets the
identical answer, and changes nothing. `render_diagram` draws the table as Mermaid for docs/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from fedcore.errors import IllegalTransition


class ClientState(StrEnum):
    """How far one client is in the round."""

    NEW = "new"
    ADVERTISED = "advertised"
    SHARED = "shared"
    READY = "ready"
    MASKED = "masked"
    SIGNED = "signed"
    RELEASED = "released"
    ABANDONED = "abandoned"


class ClientEvent(StrEnum):
    """What the client's caller asks for; each is a method of `ClientSession`."""

    ADVERTISE = "advertise"
    SHARE_KEYS = "share_keys"
    RECEIVE_SHARES = "receive_shares"
    COMPLAIN = "complain"
    MASK = "mask"
    SIGN_SURVIVORS = "sign_survivors"
    UNMASK = "unmask"
    ABANDON = "abandon"


class ServerStage(StrEnum):
    """What the server waits for."""

    ADVERTISE = "advertise"
    SHARE = "share"
    INPUT = "input"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"
    DONE = "done"
    FAILED = "failed"


class ServerEvent(StrEnum):
    """A client's message, or what the coordinator decides about a stage."""

    ADVERTISEMENT = "receive_advertisement"
    KEY_SHARES = "receive_shares"
    INPUT = "receive_input"
    CONSISTENCY = "receive_consistency"
    UNMASK_SHARES = "receive_unmask"
    DROP = "drop"
    CLOSE = "close_stage"
    FALL_SHORT = "close_stage, too few"


State = TypeVar("State", ClientState, ServerStage)


@dataclass(frozen=True, slots=True)
class Transition(Generic[State]):
    """Where an event leads; `repeat` where only what was answered before is accepted."""

    target: State
    repeat: bool = False


_C, _E = ClientState, ClientEvent
_CLIENT_PATH: Sequence[tuple[ClientState, ClientEvent, ClientState]] = (
    (_C.NEW, _E.ADVERTISE, _C.ADVERTISED),
    (_C.ADVERTISED, _E.SHARE_KEYS, _C.SHARED),
    (_C.SHARED, _E.RECEIVE_SHARES, _C.READY),
    (_C.READY, _E.MASK, _C.MASKED),
    (_C.MASKED, _E.SIGN_SURVIVORS, _C.SIGNED),
    (_C.SIGNED, _E.UNMASK, _C.RELEASED),
)
_S, _M = ServerStage, ServerEvent
_SERVER_PATH: Sequence[tuple[ServerStage, ServerEvent, ServerStage]] = (
    (_S.ADVERTISE, _M.ADVERTISEMENT, _S.SHARE),
    (_S.SHARE, _M.KEY_SHARES, _S.INPUT),
    (_S.INPUT, _M.INPUT, _S.CONSISTENCY),
    (_S.CONSISTENCY, _M.CONSISTENCY, _S.UNMASK),
    (_S.UNMASK, _M.UNMASK_SHARES, _S.DONE),
)


def _client_table() -> dict[tuple[ClientState, ClientEvent], Transition[ClientState]]:
    table: dict[tuple[ClientState, ClientEvent], Transition[ClientState]] = {}
    answered: list[ClientEvent] = []
    for source, event, target in _CLIENT_PATH:
        table[source, event] = Transition(target)
        # A vector is masked once: a repetition would need the vector again, and a mask used twice is no mask.
        answered += [event] if event is not _E.MASK else []
        for earlier in answered:
            table[target, earlier] = Transition(target, repeat=True)
    table[_C.SHARED, _E.COMPLAIN] = Transition(_C.ABANDONED)
    for state in ClientState:
        table[state, _E.ABANDON] = Transition(_C.ABANDONED)
    return table


def _server_table() -> dict[tuple[ServerStage, ServerEvent], Transition[ServerStage]]:
    table: dict[tuple[ServerStage, ServerEvent], Transition[ServerStage]] = {}
    answered: list[ServerEvent] = []
    for stage, event, target in _SERVER_PATH:
        table[stage, event] = Transition(stage)
        table[stage, _M.DROP] = Transition(stage)
        table[stage, _M.CLOSE] = Transition(target)
        table[stage, _M.FALL_SHORT] = Transition(_S.FAILED)
        answered.append(event)
        for earlier in answered:
            table[target, earlier] = Transition(target, repeat=True)
    return table


CLIENT: Mapping[tuple[ClientState, ClientEvent], Transition[ClientState]] = _client_table()
SERVER: Mapping[tuple[ServerStage, ServerEvent], Transition[ServerStage]] = _server_table()
STAGE_OF: Mapping[ServerEvent, ServerStage] = {event: stage for stage, event, _ in _SERVER_PATH}
"""The stage at which each message of a client is first accepted."""


def client_transition(state: ClientState, event: ClientEvent) -> Transition[ClientState]:
    """The row of the table; IllegalTransition if there is none."""
    rule = CLIENT.get((state, event))
    if rule is None:
        raise IllegalTransition(state, event)
    return rule


def server_transition(stage: ServerStage, event: ServerEvent) -> Transition[ServerStage]:
    """The row of the table; IllegalTransition if there is none."""
    rule = SERVER.get((stage, event))
    if rule is None:
        raise IllegalTransition(stage, event)
    return rule


def render_diagram() -> str:
    """Both machines as one Mermaid state diagram; repetitions are left out, each being a loop on its state."""
    client = [(source, event, row.target) for (source, event), row in CLIENT.items() if not row.repeat]
    server = [(source, event, row.target) for (source, event), row in SERVER.items() if not row.repeat]
    lines = ["stateDiagram-v2", *render_machine("Client", client), *render_machine("Server", server)]
    return "\n".join(lines) + "\n"


def render_machine(name: str, edges: Sequence[tuple[StrEnum, StrEnum, StrEnum]]) -> list[str]:
    """The lines of one machine; its first edge (source, event, target) leaves the state that it starts in."""
    prefix = name.lower()
    states = dict.fromkeys(state for source, _, target in edges for state in (source, target))
    return [
        f"    state {name} {{",
        f"        [*] --> {prefix}_{edges[0][0]}",
        *(f"        {prefix}_{state} : {state}" for state in states),
        *(f"        {prefix}_{source} --> {prefix}_{target} : {event}" for source, event, target in edges),
        "    }",
    ]
