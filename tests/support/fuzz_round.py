"""The protocol's messages of one round, fed to the machines that wait for them.

The messages of all others stay as they were recorded; the machine that is fed is brought to its state again whenever it
has taken a message, by those that came before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedcore.errors import PeerError, RoundFailed, UsageError
from fedcore.federation import ClientKit
from fedcore.run.exchange import round_parameters
from fedcore.secagg import ClientSession, Randomness, ServerRound
from fedcore.wire import secagg_codec
from fedcore.wire.base import Message
from fedcore.wire.secagg import (
    AdvertisementIn,
    CohortOut,
    ConsistencyIn,
    DealingOut,
    DeliveryOut,
    KeySharesIn,
    SignaturesOut,
    SurvivorsOut,
    UnmaskIn,
)
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import ComplaintIn

from .fuzz_seeds import Corpus
from .fuzzing import Parser

DOCUMENTED = (ValidationError, PeerError, RoundFailed, UsageError)
"""UsageError: an event out of order, as a repeated message with other content would be."""
COMPLAINT = ComplaintIn(accused=2, part="shares", shared=bytes(32), proof=bytes(64), mlkem_seed=b"")


def round_parsers(corpus: Corpus) -> list[Parser]:
    """A parser for each message of a round, at each side."""
    honest = _Round(
        Task.model_validate_json(_secure_task(corpus)),
        [ClientKit.load(folder) for folder in corpus.folder.clients],
    )
    honest.play()
    return [
        *(
            Parser(name=f"round: {name} at the server", seeds=seeds, feed=machine, documented=DOCUMENTED, share=0.5)
            for name, seeds, machine in _server_machines(honest)
        ),
        *(
            Parser(name=f"round: {name} at a client", seeds=seeds, feed=machine, documented=DOCUMENTED, share=0.3)
            for name, seeds, machine in _client_machines(honest)
        ),
    ]


def _secure_task(corpus: Corpus) -> bytes:
    return next(text for text in corpus.bodies("/v1/task", of_answers=True) if b'"aggregation":"secure"' in text)


class _Draws:
    """Bytes that follow from a name, so that a session made anew draws the same keys."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name, 0

    def __call__(self, size: int) -> bytes:
        self._count += 1
        return hashlib.shake_256(f"{self._name} {self._count}".encode()).digest(size)


@dataclass(slots=True)
class _Machine:
    """Feeds a machine of a round; `make` brings one to its state, `take` gives it a message."""

    make: Callable[[], Any]
    take: Callable[[Any, bytes], object]
    machine: Any = None

    def __call__(self, content: bytes) -> None:
        machine = self.machine or self.make()
        self.machine = None
        before = repr(machine)
        try:
            self.take(machine, content)
        except DOCUMENTED:
            if repr(machine) == before:  # it took nothing
                self.machine = machine
            raise


@dataclass(slots=True)
class _Round:
    """What was said in one honest round, by everybody and to client 1."""

    task: Task
    kits: list[ClientKit]
    sent: dict[str, dict[int, Any]] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def parameters(self) -> Any:
        kit = self.kits[0]
        model = bytes.fromhex(self.task.model.sha256) if self.task.model else None
        return round_parameters(self.task, federation=kit.federation, roster_hash=kit.roster.hash(), model_hash=model)

    def server(self) -> ServerRound:
        return ServerRound(parameters=self.parameters, roster=self.kits[0].roster.keys)

    def session(self, client: int) -> ClientSession:
        kit = self.kits[client - 1]
        draws: Randomness = _Draws(kit.name)
        return ClientSession(
            parameters=self.parameters,
            client_id=client,
            identity=kit.identity,
            roster=kit.roster.keys,
            min_cohort=2,
            min_threshold=2,
            randomness=draws,
        )

    def play(self) -> None:
        """The round, honestly; client 4 is gone before its vector."""
        server, sessions = self.server(), {client: self.session(client) for client in (1, 2, 3, 4)}
        self.sent["advertisement"] = {client: session.advertise() for client, session in sessions.items()}
        self._close(server, server.receive_advertisement, "advertisement")
        self.told["cohort"] = server.advertised(1)
        self.sent["key-shares"] = {
            client: session.share_keys(server.advertised(client)) for client, session in sessions.items()
        }
        self._close(server, server.receive_shares, "key-shares")
        self.told["delivery"], self.told["dealing"] = server.delivery(1), server.dealing(1, 2)
        for client, session in sessions.items():
            session.receive_shares(server.delivery(client))
            session.mask(np.zeros(self.parameters.words, np.uint64))
        for client in (1, 2, 3):
            server.receive_input(client, bytes(32))
        server.drop(4)
        server.close_stage()
        self.told["survivors"] = server.survivors()
        self.sent["consistency"] = {client: sessions[client].sign_survivors(server.survivors()) for client in (1, 2, 3)}
        self._close(server, server.receive_consistency, "consistency")
        self.told["signatures"] = server.signatures()
        self.sent["unmask"] = {client: sessions[client].unmask(server.signatures()) for client in (1, 2, 3)}
        self._close(server, server.receive_unmask, "unmask")

    def _close(self, server: ServerRound, receive: Callable[[Any], None], step: str) -> None:
        for message in self.sent[step].values():
            receive(message)
        server.close_stage()

    def server_at(self, step: str) -> ServerRound:
        """A server that has heard everything before `step`, and of it all but client 1."""
        server = self.server()
        receive: dict[str, Callable[[Any], None]] = {
            "advertisement": server.receive_advertisement,
            "key-shares": server.receive_shares,
            "consistency": server.receive_consistency,
            "unmask": server.receive_unmask,
        }
        for name, take in receive.items():
            if name == "consistency":
                for client in (1, 2, 3):
                    server.receive_input(client, bytes(32))
                server.drop(4)
                server.close_stage()
            for client, message in self.sent[name].items():
                if name != step or client != 1:
                    take(message)
            if name == step:
                break
            server.close_stage()
        return server

    def session_at(self, step: str) -> ClientSession:
        """Client 1 when it waits for `step`; what it waits for first is the cohort."""
        session = self.session(1)
        session.advertise()
        if step in ("delivery", "survivors", "signatures"):
            session.share_keys(self.told["cohort"])
        if step in ("survivors", "signatures"):
            session.receive_shares(self.told["delivery"])
            session.mask(np.zeros(self.parameters.words, np.uint64))
        if step == "signatures":
            session.sign_survivors(self.told["survivors"])
        return session


_Named = tuple[str, tuple[bytes, ...], Callable[[bytes], object]]


def _text(message: Message) -> tuple[bytes, ...]:
    return (message.model_dump_json().encode(),)


def _server_machines(honest: _Round) -> Iterator[_Named]:
    sent = {step: messages[1] for step, messages in honest.sent.items()}

    def advertise(server: ServerRound, text: bytes) -> None:
        server.receive_advertisement(secagg_codec.advertisement_from_wire(1, AdvertisementIn.model_validate_json(text)))

    def share(server: ServerRound, text: bytes) -> None:
        body = KeySharesIn.model_validate_json(text)
        server.receive_shares(secagg_codec.key_shares_from_wire(1, body, *server.receivers(1)))
        server.close_stage()
        for client in (2, 3, 4):
            server.dealing(client, 1)

    def sign(server: ServerRound, text: bytes) -> None:
        server.receive_consistency(secagg_codec.consistency_from_wire(1, ConsistencyIn.model_validate_json(text)))

    def unmask(server: ServerRound, text: bytes) -> None:
        body = UnmaskIn.model_validate_json(text)
        server.receive_unmask(secagg_codec.unmask_from_wire(1, body, *server.owners(1)))
        server.close_stage()

    def judge(server: ServerRound, text: bytes) -> None:
        server.judge(secagg_codec.complaint_from_wire(1, ComplaintIn.model_validate_json(text)))

    yield (
        "advertisement",
        _text(secagg_codec.advertisement_to_wire(sent["advertisement"])),
        _Machine(lambda: honest.server_at("advertisement"), advertise),
    )
    yield (
        "key shares",
        _text(secagg_codec.key_shares_to_wire(sent["key-shares"])),
        _Machine(lambda: honest.server_at("key-shares"), share),
    )
    yield (
        "consistency",
        _text(secagg_codec.consistency_to_wire(sent["consistency"])),
        _Machine(lambda: honest.server_at("consistency"), sign),
    )
    yield (
        "unmask",
        _text(secagg_codec.unmask_to_wire(sent["unmask"])),
        _Machine(lambda: honest.server_at("unmask"), unmask),
    )
    yield "complaint", _text(COMPLAINT), _Machine(lambda: honest.server_at("unmask"), judge)


def _client_machines(honest: _Round) -> Iterator[_Named]:
    cohort, told = honest.task.cohort, honest.told
    spoilt = replace(told["delivery"], shares={**told["delivery"].shares, 2: bytes(len(told["delivery"].shares[2]))})

    def share(session: ClientSession, text: bytes) -> None:
        session.share_keys(secagg_codec.cohort_from_wire(CohortOut.model_validate_json(text), cohort))

    def receive(session: ClientSession, text: bytes) -> None:
        session.receive_shares(secagg_codec.delivery_from_wire(DeliveryOut.model_validate_json(text), cohort))

    def complain(session: ClientSession, text: bytes) -> None:
        shown = secagg_codec.dealing_from_wire(2, DealingOut.model_validate_json(text))
        session.complain(spoilt, shown)

    def sign(session: ClientSession, text: bytes) -> None:
        session.sign_survivors(secagg_codec.survivors_from_wire(SurvivorsOut.model_validate_json(text), cohort))

    def unmask(session: ClientSession, text: bytes) -> None:
        session.unmask(secagg_codec.signatures_from_wire(SignaturesOut.model_validate_json(text)))

    seeds: dict[str, Message] = {
        "cohort": secagg_codec.cohort_to_wire(told["cohort"], cohort),
        "delivery": secagg_codec.delivery_to_wire(told["delivery"], cohort),
        "dealing": secagg_codec.dealing_to_wire(told["dealing"]),
        "survivors": secagg_codec.survivors_to_wire(told["survivors"], cohort),
        "signatures": secagg_codec.signatures_to_wire(told["signatures"]),
    }
    takes = {"cohort": share, "delivery": receive, "dealing": complain, "survivors": sign, "signatures": unmask}
    for name, take in takes.items():
        step = "delivery" if name == "dealing" else name
        yield name, _text(seeds[name]), _Machine(lambda step=step: honest.session_at(step), take)  # type: ignore[misc]
