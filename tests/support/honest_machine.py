"""Schedules of an honest server among clients that drop out, repeat themselves, contradict themselves and lie.

Whatever they do, the round ends with the exact sum of its survivors, or with `CohortTooSmall` or `UnmaskFailed`; where
t good shares of every secret came back, it ends with the sum. Who cheated is named, and nobody else.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from numpy.typing import NDArray

from fedcore.errors import CohortTooSmall, ConflictingMessage, ProtocolViolation, UnmaskFailed
from fedcore.secagg import (
    Advertisement,
    Check,
    ClientSession,
    ClientState,
    ComplaintSubject,
    ConsistencySignature,
    KeyShares,
    ServerRound,
    ServerStage,
    UnmaskShares,
    apply_masks,
    complaint,
)
from fedcore.secagg.crypto.domain import HASH_BYTES
from fedcore.secagg.crypto.keys import SIGNATURE_BYTES
from fedcore.secagg.crypto.polynomial import PRIME

from .hostile import JUNK, Broken, Tally, snapshot
from .stories import ROSTER, WORDS, Actor, Drbg, Setting, identity, remembered

SETTINGS = (
    Setting(n=4, quorum=3, degree=3, threshold=3, corrupt=0),
    Setting(n=6, quorum=4, degree=5, threshold=4, corrupt=0),
    Setting(n=9, quorum=6, degree=8, threshold=5, corrupt=0),
    Setting(n=12, quorum=8, degree=6, threshold=5, corrupt=0),
)
FINISHED = (ServerStage.DONE, ServerStage.FAILED)
_NUMBERS = st.integers(0, 2**16 - 1)
_SHARE_LIES = st.lists(st.tuples(_NUMBERS, _NUMBERS, st.integers(1, 2**31)), max_size=4)


class HonestServer(RuleBasedStateMachine):
    """See the module. `sent` are the last messages of every client, by stage."""

    settings_of_rounds: ClassVar[Sequence[Setting]] = SETTINGS
    server_class: ClassVar[type[ServerRound]] = ServerRound
    tally: ClassVar[Tally] = Tally()

    def __init__(self) -> None:
        super().__init__()
        self.server: ServerRound | None = None
        self.sent: dict[tuple[ServerStage, int], tuple[Any, ...]] = {}
        self.uploads: dict[int, NDArray[np.uint64]] = {}
        self.liars: dict[int, set[int]] = {}
        self.perjured: set[int] = set()
        self.cheated: set[tuple[int, int]] = set()
        self.named: set[int] = set()
        self.failed = False

    @initialize(pick=_NUMBERS, keen=st.booleans(), lies=_SHARE_LIES, many=st.booleans())
    def begin(self, pick: int, keen: bool, lies: list[tuple[int, int, int]], many: bool) -> None:
        """The setting, and who will send wrong shares of whose secrets.

        `keen` clients answer whenever a stage closes, so that most rounds get to their end; only where there are `many`
        liars may too few good shares be left.
        """
        self.tally.schedules += 1
        self.tally.rounds += 1
        self.setting = self.settings_of_rounds[pick % len(self.settings_of_rounds)]
        self.keen = keen
        self.planned = {self._client(who): (owners, shift) for who, owners, shift in (lies if many else lies[:1])}
        parameters = self.setting.parameters(1)
        self.server = self.server_class(
            parameters=parameters, roster=ROSTER, randomness=Drbg("server"), verify=remembered
        )
        self.sessions = {
            i: ClientSession(
                parameters=parameters,
                client_id=i,
                identity=identity(i),
                roster=ROSTER,
                min_cohort=2,
                min_threshold=2,
                randomness=Drbg(f"client {i}"),
                verify=remembered,
            )
            for i in self.setting.ids
        }
        self.vectors = {i: np.frombuffer(Drbg(f"vector {i}")(8 * WORDS), dtype=np.uint64) for i in self.setting.ids}

    @precondition(lambda self: self.server.stage not in FINISHED)
    @rule(who=_NUMBERS)
    def answer(self, who: int) -> None:
        """Some of those who are missing answer."""
        for client_id in sorted(self._open.missing):
            if (who | who >> 3) >> client_id & 1:
                self._answer(client_id)

    @precondition(lambda self: self.server.stage not in FINISHED)
    @rule(hurry=st.booleans(), lost=_NUMBERS)
    def close(self, hurry: bool, lost: int) -> None:
        """End the stage; in no hurry, after everybody who is left has answered, of whom one may be given up then."""
        if self.keen or not hurry:
            for client_id in sorted(self._open.missing):
                self._answer(client_id)
        if lost % 5 == 1:
            self.drop(who=lost // 5, has_spoken=True)
        self._close()

    @precondition(lambda self: self.server.stage not in FINISHED)
    @rule(who=_NUMBERS, has_spoken=st.booleans())
    def drop(self, who: int, has_spoken: bool) -> None:
        """Give a client up, before or after it has answered the stage; what it says then is refused."""
        self.tally.steps["drop"] += 1
        answered = sorted(self._open.answered)
        gone = answered[who % len(answered)] if answered and has_spoken else self._client(who)
        self._open.drop(gone)
        self.tally.lies["after being dropped"] += 1
        content = self._made_up(self._open.stage, gone)
        self._must_be_refused(lambda: self._receive(self._open.stage, content))

    @rule(who=_NUMBERS, pick=_NUMBERS)
    def say_again(self, who: int, pick: int) -> None:
        """An earlier message, identical: it changes nothing, and a client that was dropped is refused."""
        client_id = self._client(who)
        known = [stage for stage, sender in self.sent if sender == client_id]
        if not known:
            return
        before = snapshot(self._open)
        self.tally.lies["repetition"] += 1
        try:
            stage = known[pick % len(known)]
            self._receive(stage, self.sent[stage, client_id])
        except ProtocolViolation as refusal:
            self._count(refusal)
            if client_id not in self._open.dropped and self._open.stage is not ServerStage.FAILED:
                raise self._broken("repetition-refused", f"{refusal}") from refusal
        if snapshot(self._open) != before:
            raise self._broken("repetition-left-traces", f"client {client_id} repeated itself")

    @precondition(lambda self: self.server.stage not in FINISHED)
    @rule(who=_NUMBERS)
    def contradict(self, who: int) -> None:
        """A second message of the open stage, with other content."""
        client_id, server = self._client(who), self._open
        if client_id not in server.answered or (server.stage, client_id) not in self.sent:
            return
        self.tally.lies["contradiction"] += 1
        other, stage = self._contradiction(client_id), server.stage
        self._must_be_refused(lambda: self._receive(stage, other))

    @precondition(lambda self: self.server.stage not in FINISHED)
    @rule(who=_NUMBERS, stage=st.sampled_from([stage for stage in ServerStage if stage not in FINISHED]))
    def speak_out_of_turn(self, who: int, stage: ServerStage) -> None:
        """A message of a stage that has not come, or one of a stranger."""
        order = [*ServerStage]
        if order.index(stage) > order.index(self._open.stage):
            self.tally.lies["out-of-turn"] += 1
            self._must_be_refused(lambda: self._receive(stage, self._made_up(stage, self._client(who))))
        self.tally.lies["stranger"] += 1
        self._must_be_refused(lambda: self._open.receive_input(10_000 + who, bytes(32)))

    @precondition(lambda self: self.server.stage not in FINISHED)
    @rule(who=_NUMBERS, place=_NUMBERS, junk=st.sampled_from(range(len(JUNK))))
    def send_junk(self, who: int, place: int, junk: int) -> None:
        """A message of the open stage with one field of the wrong type, length or range."""
        stage, client_id = self._open.stage, self._client(who)
        content = self._made_up(stage, client_id)
        if stage is ServerStage.INPUT:
            altered: tuple[Any, ...] = (client_id, JUNK[junk])
        else:
            names = [part.name for part in dataclasses.fields(content[0])]
            altered = (dataclasses.replace(content[0], **{names[place % len(names)]: JUNK[junk]}),)
        self.tally.lies["junk"] += 1
        self._must_be_refused(lambda: self._receive(stage, altered))

    @precondition(lambda self: self.server.stage is ServerStage.SHARE)
    @rule(who=_NUMBERS, rare=st.integers(0, 7))
    def perjure(self, who: int, rare: int) -> None:
        """A commitment to another secret than the one that was shared: nobody can remove this client's self mask."""
        client_id = self._client(who)
        if rare == 7 and client_id in self._open.missing:
            self.tally.lies["false commitment"] += 1
            honest = self.sessions[client_id].share_keys(self._open.advertised(client_id))
            self._send(ServerStage.SHARE, client_id, self._signed(dataclasses.replace(honest, commitment=bytes(32))))
            self.perjured.add(client_id)

    @precondition(lambda self: self.server.stage is ServerStage.SHARE)
    @rule(who=_NUMBERS, receivers=_NUMBERS, place=_NUMBERS, rare=st.integers(0, 3))
    def deal_falsely(self, who: int, receivers: int, place: int, rare: int) -> None:
        """Garbage, or another commitment, for some neighbours, well signed; each of them will complain."""
        cheat, server = self._client(who), self._open
        if rare != 3 or cheat not in server.missing:
            return
        self.tally.lies["false dealing"] += 1
        honest = self.sessions[cheat].share_keys(server.advertised(cheat))
        spoilt = {
            i: _flipped(parcel, place) if receivers >> i % 16 & 1 else parcel for i, parcel in honest.shares.items()
        }
        self.cheated |= {(cheat, i) for i in spoilt if spoilt[i] != honest.shares[i]}
        self._send(ServerStage.SHARE, cheat, self._signed(dataclasses.replace(honest, shares=spoilt)))

    @precondition(lambda self: self.server.stage is ServerStage.INPUT)
    @rule(who=_NUMBERS, whom=_NUMBERS, rare=st.integers(0, 3))
    def complain_falsely(self, who: int, whom: int, rare: int) -> None:
        """A true proof of what is right: it convicts its sender, who is given up."""
        server, liar = self._open, self._client(who)
        session = self.sessions[liar]
        if rare != 3 or liar not in server.missing or session.state is not ClientState.SHARED:
            return
        known = [i for i in server.delivery(liar).shares if (i, liar) not in self.cheated]
        if not known:
            return
        self.tally.lies["false complaint"] += 1
        case, pair = server._case(liar, known[whom % len(known)]), session._secrets.seal_pair
        assert pair is not None
        server.judge(complaint.complain(case, ComplaintSubject.SHARES, pair, Drbg(f"complaint {liar}")))
        self._name(liar)

    def teardown(self) -> None:
        """Close what is open, and compare the sum."""
        if self.server is None or self.failed:
            return
        while self.server.stage not in FINISHED:
            for client_id in sorted(self.server.missing):
                self._answer(client_id)
            self._close()
        if self.server.stage is ServerStage.DONE:
            self._check_sum()
        self.tally.outcomes["exact sum" if self.server.stage is ServerStage.DONE else "named failure"] += 1

    @property
    def _open(self) -> ServerRound:
        assert self.server is not None
        return self.server

    def _broken(self, verdict: str, detail: str) -> Broken:
        """To be raised; what comes after it says nothing more."""
        self.failed = True
        return Broken(verdict, detail)

    def _client(self, who: int) -> int:
        return self.setting.ids[who % self.setting.n]

    def _answer(self, client_id: int) -> None:
        """What an honest client says in the open stage; on a ring it leaves where too few of its neighbours shared."""
        server, session = self._open, self.sessions[client_id]
        stage = server.stage
        if client_id not in server.missing:  # given up meanwhile, as somebody before it complained of it
            return
        try:
            message = self._said(session, stage, client_id)
        except ProtocolViolation as refusal:
            if (refusal.peer, client_id) in self.cheated:
                self._complain(client_id, refusal)
                return
            if refusal.check != Check.HOLDERS_BELOW_THRESHOLD or not self.setting.sparse:
                raise self._broken(
                    "honest-refused", f"client {client_id} refused an honest server: {refusal}"
                ) from refusal
            self._count(refusal)
            server.drop(client_id)
            return
        self._send(stage, client_id, message)

    def _complain(self, client_id: int, refusal: ProtocolViolation) -> None:
        """A client that was cheated leaves with a complaint, and the server goes on without the cheat as well."""
        self._count(refusal)
        server, cheat = self._open, refusal.peer
        assert cheat is not None
        server.judge(self.sessions[client_id].complain(server.delivery(client_id), server.dealing(client_id, cheat)))
        self._name(cheat)
        server.drop(client_id)

    def _signed(self, message: KeyShares) -> KeyShares:
        """As its sender signs it, whatever is in it."""
        session = self.sessions[message.client_id]
        assert session._transcript is not None
        assert session._graph is not None
        return session._signed(message, session._transcript, session._graph)

    def _name(self, cheat: int) -> None:
        """The server must have named this one, and goes on without it."""
        self.named.add(cheat)
        if set(self._open.blamed) != self.named:
            raise self._broken("wrong-names", f"{sorted(self._open.blamed)} were named, {sorted(self.named)} cheated")
        self._open.drop(cheat)

    def _said(self, session: ClientSession, stage: ServerStage, client_id: int) -> Any:
        server = self._open
        if stage is ServerStage.ADVERTISE:
            return session.advertise()
        if stage is ServerStage.SHARE:
            return session.share_keys(server.advertised(client_id))
        if stage is ServerStage.INPUT:
            session.receive_shares(server.delivery(client_id))
            vector = self.vectors[client_id].copy()
            session.mask(vector)
            self.uploads[client_id] = vector
            return hashlib.sha256(vector.tobytes()).digest()
        if stage is ServerStage.CONSISTENCY:
            return session.sign_survivors(server.survivors())
        return self._falsified(session.unmask(server.signatures()))

    def _falsified(self, honest: UnmaskShares) -> UnmaskShares:
        """What a client releases, with the wrong shares that were planned for it."""
        if honest.client_id not in self.planned:
            return honest
        owners, shift = self.planned[honest.client_id]
        held = sorted({*honest.self_shares, *honest.key_shares})
        wrong = {owner for place, owner in enumerate(held) if owners >> place & 1}
        self.tally.lies["wrong share"] += len(wrong)
        for owner in wrong:
            self.liars.setdefault(owner, set()).add(honest.client_id)
        return UnmaskShares(
            honest.client_id,
            {owner: _shifted(share, shift * (owner in wrong)) for owner, share in honest.self_shares.items()},
            {owner: _shifted(share, shift * (owner in wrong)) for owner, share in honest.key_shares.items()},
        )

    def _send(self, stage: ServerStage, client_id: int, message: Any) -> None:
        self.tally.steps[stage] += 1
        content = (client_id, message) if stage is ServerStage.INPUT else (message,)
        self._receive(stage, content)
        self.sent[stage, client_id] = content

    def _receive(self, stage: ServerStage, content: tuple[Any, ...]) -> None:
        receivers: dict[ServerStage, Callable[..., None]] = {
            ServerStage.ADVERTISE: self._open.receive_advertisement,
            ServerStage.SHARE: self._open.receive_shares,
            ServerStage.INPUT: self._open.receive_input,
            ServerStage.CONSISTENCY: self._open.receive_consistency,
            ServerStage.UNMASK: self._open.receive_unmask,
        }
        receivers[stage](*content)

    def _contradiction(self, client_id: int) -> tuple[Any, ...]:
        """Another message of the open stage, as good as the one that the client has sent."""
        stage = self._open.stage
        sent = self.sent[stage, client_id][-1]
        if stage is ServerStage.ADVERTISE:
            return (Actor(client_id, self.setting.parameters(1), variant=0, signs=True).advertisement,)
        if stage is ServerStage.SHARE:
            return (dataclasses.replace(sent, commitment=b"\1" * HASH_BYTES),)
        if stage is ServerStage.INPUT:
            return (client_id, bytes(HASH_BYTES))
        if stage is ServerStage.CONSISTENCY:
            return (ConsistencySignature(client_id, bytes(SIGNATURE_BYTES)),)
        return (dataclasses.replace(sent, self_shares={i: _shifted(s, 1) for i, s in sent.self_shares.items()}),)

    def _made_up(self, stage: ServerStage, client_id: int) -> tuple[Any, ...]:
        """A well-formed message of that stage which nobody honest would send."""
        made: dict[ServerStage, tuple[Any, ...]] = {
            ServerStage.ADVERTISE: (Advertisement(client_id, bytes(32), bytes(32), bytes(64)),),
            ServerStage.SHARE: (KeyShares(client_id, bytes(32), bytes(32), {}, {}, bytes(64), bytes(128)),),
            ServerStage.INPUT: (client_id, bytes(32)),
            ServerStage.CONSISTENCY: (ConsistencySignature(client_id, bytes(64)),),
            ServerStage.UNMASK: (UnmaskShares(client_id, {}, {}),),
        }
        return made[stage]

    def _must_be_refused(self, call: Callable[[], None]) -> None:
        before = snapshot(self._open)
        try:
            call()
        except (ProtocolViolation, ConflictingMessage) as refusal:
            self._count(refusal)
        except Exception as error:
            raise self._broken("unnamed-failure", f"{type(error).__name__}: {error}") from error
        else:
            raise self._broken("lie-accepted", "the server took what it must refuse")
        if snapshot(self._open) != before:
            raise self._broken("refusal-left-traces", "a message was refused, but the round is another one")

    def _count(self, refusal: Exception) -> None:
        self.tally.refusals[getattr(refusal, "check", "") or type(refusal).__name__] += 1

    def _close(self) -> None:
        server = self._open
        must_succeed = server.stage is ServerStage.UNMASK and not self._lost()
        guilty = self.named | (self._guilty() if server.stage is ServerStage.UNMASK else set())
        try:
            server.close_stage()
        except (CohortTooSmall, UnmaskFailed) as failure:
            self.tally.refusals[type(failure).__name__] += 1
            if must_succeed or server.stage is not ServerStage.FAILED:
                raise self._broken("sum-lost", f"{failure}") from failure
        if set(server.blamed) != guilty:
            raise self._broken("wrong-names", f"clients {sorted(server.blamed)} were named, {sorted(guilty)} cheated")

    def _good(self, owner: int) -> set[int]:
        """Who released the share of `owner`'s that it was dealt."""
        back = {owner, *self._open._fixed().graph.neighbours(owner)} & self._open.answered
        return back - self.liars.get(owner, set())

    def _lost(self) -> bool:
        """Whether too few good shares of some secret came back, or one was committed to falsely."""
        server, threshold = self._open, self.setting.threshold
        false = self.perjured.intersection(server.survivors().survivors)
        return (
            bool(false)
            or len(server.answered) < threshold
            or any(len(self._good(owner)) < threshold for owner in server._sharers())
        )

    def _guilty(self) -> set[int]:
        """Who must be named: the senders of wrong shares, and who committed to another secret than it shared."""
        server = self._open
        if len(server.answered) < self.setting.threshold:
            return set()
        false = {
            owner
            for owner in self.perjured.intersection(server.survivors().survivors)
            if len(self._good(owner)) >= self.setting.threshold
        }
        holders = {owner: {owner, *server._fixed().graph.neighbours(owner)} for owner in server._sharers()}
        liars = {
            liar
            for owner, around in holders.items()
            if len(around & server.answered) >= self.setting.threshold
            for liar in self.liars.get(owner, set()) & around & server.answered
        }
        return false | liars

    def _check_sum(self) -> None:
        server = self._open
        total = np.zeros(WORDS, dtype=np.uint64)
        for client_id in server.survivors().survivors:
            total += self.uploads[client_id]
        apply_masks(total, server.mask_terms())
        expected = np.sum([self.vectors[i] for i in server.survivors().survivors], axis=0, dtype=np.uint64)
        if not np.array_equal(total, expected):
            raise self._broken("wrong-sum", "the round is done, and its sum is another one")
        if len(server.survivors().survivors) < self.setting.quorum:
            raise self._broken("below-quorum", "the round is done with fewer survivors than its quorum")


def _flipped(raw: bytes, place: int) -> bytes:
    place %= len(raw)
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


def _shifted(share: bytes, by: int) -> bytes:
    """Another element of the field (for by = 0 the same)."""
    return ((int.from_bytes(share, "big") + by) % PRIME).to_bytes(len(share), "big")
