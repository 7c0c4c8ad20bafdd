"""Honest clients that are watched while a server lies to them.

The server here is no `ServerRound`. It has every message that a client sent, and tells each client whatever `Story` it
likes. `Game.attempt` is the one way to an honest session: it checks after every message that the session kept its word,
and raises `Broken` with a verdict where it did not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import ConflictingMessage, IllegalTransition, ProtocolViolation, UsageError
from fedcore.secagg import (
    Advertisement,
    ClientSession,
    Complaint,
    ComplaintSubject,
    KeyShares,
    MaskTerm,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
    apply_masks,
    complaint,
)
from fedcore.secagg.crypto import schedule
from fedcore.secagg.crypto.keys import sign
from fedcore.secagg.dealing import dealing_for

from .stories import ROSTER, WORDS, Actor, Drbg, Setting, Story, identity, remembered

REFUSALS = (ProtocolViolation, IllegalTransition, ConflictingMessage)
"""What a session may raise, whatever a server sends it."""


JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 2**64, 1.5, "", "x", b"", bytes(31), bytes(2000), (), (0,), (True,), ("x",), (2**63,), (None,),
    [1, 2, 3], {}, {0: b""}, {1: None}, {"x": bytes(64)}, {True: bytes(64)}, {1: bytes(64)}, {1: bytes(82)}, object(),
)  # fmt: skip
"""What no honest party sends in any field."""


class Broken(Exception):
    """A promise of the protocol that did not hold; `verdict` is its short name."""

    def __init__(self, verdict: str, detail: str) -> None:
        super().__init__(f"{verdict}: {detail}")
        self.verdict = verdict


@dataclass(slots=True)
class Tally:
    """What many schedules have done, by name."""

    schedules: int = 0
    rounds: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    lies: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        """Take over another one's counts."""
        self.schedules += other.schedules
        self.rounds += other.rounds
        for name in ("steps", "lies", "refusals", "outcomes"):
            getattr(self, name).update(getattr(other, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One masked vector, uint64 [WORDS], with the truth that only the test knows: the vector and its masks."""

    client_id: int
    vector: NDArray[np.uint64]
    masked: NDArray[np.uint64]
    terms: tuple[MaskTerm, ...]


class Player:
    """An honest client's session, its vector, and what the two have shown to the server."""

    def __init__(self, session: ClientSession, client_id: int, vector: NDArray[np.uint64], floor: int) -> None:
        self.session = session
        self.client_id = client_id
        self.vector = vector
        self.floor = floor
        self.advertisement: Advertisement | None = None
        self.story: Story | None = None
        self.heard: dict[str, tuple[Any, Any]] = {}
        self.uploads: list[Upload] = []
        self.released: list[UnmaskShares] = []

    @property
    def sharers(self) -> tuple[int, ...]:
        """U2 as it was told."""
        return self.heard["receive_shares"][0].sharers if "receive_shares" in self.heard else ()

    @property
    def survivors(self) -> tuple[int, ...]:
        """U3 as it was told."""
        return self.heard["sign_survivors"][0].survivors if "sign_survivors" in self.heard else ()

    def statement(self) -> bytes:
        """What it has signed, or would, about the story, sharers and survivors that it was told."""
        assert self.story is not None
        return schedule.consistency_statement(self.story.transcript, self.sharers, self.survivors)


class Game:
    """One round. `corrupt` ids are played by the server; `strict` false leaves the judgement to the solver."""

    def __init__(
        self,
        setting: Setting,
        *,
        number: int,
        take: int,
        corrupt: frozenset[int],
        tally: Tally,
        session: type[ClientSession] = ClientSession,
        min_cohorts: Mapping[int, int] | None = None,
        strict: bool = True,
    ) -> None:
        self.setting = setting
        self.parameters = setting.parameters(number)
        self.corrupt = corrupt
        self.tally = tally
        self.strict = strict
        self.stories: list[Story] = []
        self.signatures: dict[bytes, dict[int, bytes]] = {}
        self.failed = False
        self.players: dict[int, Player] = {}
        for client_id in sorted({*setting.ids} - corrupt):
            self._admit(client_id, session, f"{number}/{take}", (min_cohorts or {}).get(client_id, 2))
        tally.rounds += 1

    def broken(self, verdict: str, detail: str) -> Broken:
        """To be raised; what comes after it says nothing more."""
        self.failed = True
        return Broken(verdict, detail)

    def _admit(self, client_id: int, session: type[ClientSession], name: str, min_cohort: int) -> None:
        """An honest client that takes part, or refuses a round whose quorum is below its owner's minimum."""
        source = Drbg(f"client {client_id} round {name}")
        try:
            made = session(
                parameters=self.parameters,
                client_id=client_id,
                identity=identity(client_id),
                roster=ROSTER,
                min_cohort=min_cohort,
                min_threshold=2,
                randomness=source,
                verify=remembered,
            )
        except ProtocolViolation as refusal:
            self.tally.refusals[refusal.check] += 1
            if min_cohort <= self.setting.quorum:
                raise self.broken(
                    "unnamed-failure", f"client {client_id} refused a fair proposal: {refusal}"
                ) from refusal
            return
        vector = np.frombuffer(source(8 * WORDS), dtype=np.uint64)
        player = Player(made, client_id, vector, max(min_cohort, self.setting.quorum))
        player.advertisement = made.advertise()
        self.players[client_id] = player

    def tell(self, *, left_out: Iterable[int] = (), puppets: Iterable[int] = (), variant: int = 0) -> Story:
        """Make up a story: everybody but `left_out`, where `puppets` have keys of the server's making."""
        actors = {i: Actor(i, self.parameters, variant=variant, signs=True) for i in self.corrupt}
        actors |= {i: Actor(i, self.parameters, variant=variant, signs=False) for i in puppets if i in self.players}
        adverts = {i: player.advertisement for i, player in self.players.items() if player.advertisement}
        adverts |= {i: actor.advertisement for i, actor in actors.items()}
        listed = {i: advert for i, advert in adverts.items() if i not in set(left_out)}
        story = Story(self.parameters, listed, {i: actor for i, actor in actors.items() if i in listed})
        self.stories.append(story)
        return story

    def attempt(self, player: Player, step: str, message: Any, story: Story | None = None) -> bool:
        """Send a message; whether it was accepted. `story` is what an accepted list of keys came from."""
        before = snapshot(player.session)
        try:
            answer = getattr(player.session, step)(message)
        except REFUSALS as refusal:
            self.tally.refusals[getattr(refusal, "check", "") or type(refusal).__name__] += 1
            if self.strict and snapshot(player.session) != before:
                raise self.broken(
                    "refusal-left-traces", f"{step} was refused, but the session is another one"
                ) from refusal
            return False
        except Exception as error:
            raise self.broken("unnamed-failure", f"{step} failed with {type(error).__name__}: {error}") from error
        self.tally.steps[step] += 1
        self._judge(player, step, message, answer)
        if step == "share_keys" and story is not None and step not in player.heard:
            player.story, story.dealt[player.client_id] = story, answer
        player.heard[step] = (message, answer)
        if step == "sign_survivors":
            self._keep_signature(player, message, answer.signature)
        elif step == "unmask":
            player.released.append(answer)
        return True

    def provoke(self, player: Player, message: Any, story: Story) -> None:
        """Show a client that has refused a delivery what honest neighbours signed: it must accuse none of them."""
        before = snapshot(player.session)
        for dealer in sorted(set(story.dealt).intersection(story.graph.neighbours(player.client_id))):
            shown = dealing_for(story.dealt[dealer], story.graph, player.client_id)
            try:
                player.session.complain(message, shown)
            except (*REFUSALS, UsageError):
                self.tally.lies["provocation"] += 1
            except Exception as error:
                raise self.broken("unnamed-failure", f"complain failed with {type(error).__name__}: {error}") from error
            else:
                raise self.broken("honest-accused", f"client {player.client_id} accuses client {dealer}")
            if snapshot(player.session) != before:
                raise self.broken("refusal-left-traces", "there was no complaint, but the session is another one")

    def mask(self, player: Player) -> bool:
        """Have the client mask and upload its vector, or another one if it did so before; whether it would."""
        vector = player.vector + np.uint64(len(player.uploads))
        terms, before, upload = _terms(player.session), snapshot(player.session), vector.copy()
        try:
            player.session.mask(upload)
        except IllegalTransition as refusal:
            self.tally.refusals["IllegalTransition"] += 1
            if snapshot(player.session) != before:
                raise self.broken(
                    "refusal-left-traces", "masking was refused, but the session is another one"
                ) from refusal
            return False
        self.tally.steps["mask"] += 1
        expected = vector.copy()
        apply_masks(expected, terms)
        if not np.array_equal(expected, upload):
            raise self.broken(
                "other-masks", f"client {player.client_id} uploaded something else than its vector and masks"
            )
        player.uploads.append(Upload(client_id=player.client_id, vector=vector, masked=upload, terms=terms))
        return True

    def sign_for_the_corrupt(self, player: Player) -> dict[int, bytes]:
        """Signatures of the corrupt survivors over what `player` was told: they sign anything."""
        statement = player.statement()
        return {i: sign(identity(i), statement) for i in self.corrupt.intersection(player.survivors)}

    def signature_set(self, player: Player) -> SignatureSet:
        """Every signature that exists over what `player` was told."""
        honest = self.signatures.get(player.statement(), {})
        known = {i: signature for i, signature in honest.items() if i in player.survivors}
        return SignatureSet(known | self.sign_for_the_corrupt(player))

    def _keep_signature(self, player: Player, message: Survivors, signature: bytes) -> None:
        assert player.story is not None
        statement = schedule.consistency_statement(player.story.transcript, player.sharers, message.survivors)
        if not remembered(ROSTER[player.client_id], signature, statement):
            raise self.broken("other-statement", f"client {player.client_id} signed something else than it was told")
        self.signatures.setdefault(statement, {})[player.client_id] = signature

    def _judge(self, player: Player, step: str, message: Any, answer: Any) -> None:
        """What must hold whenever a session has answered."""
        if not self.strict:
            return
        name = f"client {player.client_id}"
        if step in player.heard:
            earlier, given = player.heard[step]
            if earlier.digest() != message.digest() or given != answer:
                raise self.broken(
                    "answered-twice", f"{name} answered {step} again, to another message or with another answer"
                )
        told = {"share_keys": "ids", "receive_shares": "sharers", "sign_survivors": "survivors"}.get(step)
        if told and len(getattr(message, told)) < player.floor:
            raise self.broken("below-policy", f"{name} went on with {len(getattr(message, told))} clients in {step}")
        if step == "unmask":
            self._judge_release(player, message, answer)

    def _judge_release(self, player: Player, message: SignatureSet, answer: Any) -> None:
        name, statement = f"client {player.client_id}", player.statement()
        if set(answer.self_shares) & set(answer.key_shares):
            raise self.broken("both-shares", f"{name} released both shares of one owner")
        known = {i: signature for i, signature in message.signatures.items() if i in ROSTER}
        agreed = sum(remembered(ROSTER[i], signature, statement) for i, signature in known.items())
        if agreed < self.setting.quorum:
            raise self.broken("no-quorum", f"{name} released its shares on the word of {agreed} clients")


def _terms(session: ClientSession) -> tuple[MaskTerm, ...]:
    """The masks that a session would add now; none where it has nothing to make them from."""
    try:
        return tuple(session._masks())
    except AssertionError:
        return ()


def sign_again(session: ClientSession, message: KeyShares) -> KeyShares:
    """What a cheat deals, with the signature that makes it answer for it."""
    assert session._transcript is not None
    assert session._graph is not None
    return session._signed(message, session._transcript, session._graph)


def advertise_as(session: ClientSession, c_public: bytes, s_public: bytes) -> Advertisement:
    """These keys, signed by a cheat as its own."""
    statement = schedule.advertisement_statement(session._context, session._client_id, c_public, s_public)
    return Advertisement(session._client_id, c_public, s_public, sign(session._identity, statement))


def accuse(session: ClientSession, delivery: ShareDelivery, accused: int) -> Complaint:
    """A complaint about what a neighbour has dealt, whether or not it is good."""
    assert session._transcript is not None
    assert session._secrets.seal_pair is not None
    case = complaint.Case(
        transcript=session._transcript,
        agreement=session._parameters.agreement,
        complainant=session._publics[session._client_id],
        accused=session._publics[accused],
        parcel=delivery.shares[accused],
        pair_secret=delivery.pair_secrets.get(accused),
    )
    return complaint.complain(case, ComplaintSubject.SHARES, session._secrets.seal_pair, session._randomness)


def snapshot(machine: object) -> dict[str, Any]:
    """What a state machine holds, to compare before and after. Its parts are immutable or copied here."""
    return {name: _copied(value) for name, value in vars(machine).items()}


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    if isinstance(value, set):
        return frozenset(value)
    kind = getattr(type(value), "__dataclass_params__", None)
    if kind is not None and not kind.frozen:
        return [_copied(getattr(value, part.name)) for part in fields(value)]
    return value
