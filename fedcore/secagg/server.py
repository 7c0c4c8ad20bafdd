"""The server's side of a round: a state machine without input and output.

It takes the clients' messages in any order within a stage and never sees a vector: the caller sums those, and adds
`mask_terms()` to the sum at the end. The coordinator decides when a stage is over (`close_stage`) and who is given up
(`drop`); clocks and time limits are its business.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from fedcore.errors import (
    CohortTooSmall,
    ConflictingMessage,
    IllegalTransition,
    ProtocolViolation,
    UnmaskFailed,
    UsageError,
)
from fedcore.secagg import complaint, dealing, inspection
from fedcore.secagg.checks import Check, Fault
from fedcore.secagg.complaint import Complaint, Verdict
from fedcore.secagg.crypto import schedule
from fedcore.secagg.crypto.keys import Randomness, Verify, verifies
from fedcore.secagg.crypto.masking import MaskTerm
from fedcore.secagg.fixed_cohort import FixedCohort
from fedcore.secagg.messages import (
    AdvertisedCohort,
    Advertisement,
    ConsistencySignature,
    Dealing,
    KeyShares,
    MaskedInput,
    RoundMessage,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
)
from fedcore.secagg.parameters import RoundParameters
from fedcore.secagg.transitions import (
    SERVER,
    STAGE_OF,
    ServerEvent,
    ServerStage,
    server_transition,
)
from fedcore.secagg.unmasking import Evidence, unmask


class ServerRound:
    """One round at the server.

    `roster` maps client id to raw Ed25519 public key. A message that repeats an earlier one of the same client is
    accepted in silence; other content raises ConflictingMessage; a message of a client that was dropped, or for
    another stage, raises ProtocolViolation. A refused message changes nothing.

    `drop` takes a client out of every later stage. What it had sent to the open stage is discarded, except a masked
    vector: that is in the caller's sum, so the client counts as a survivor and only its later answers are missing.
    """

    def __init__(
        self,
        *,
        parameters: RoundParameters,
        roster: Mapping[int, bytes],
        randomness: Randomness = os.urandom,
        verify: Verify = verifies,
    ) -> None:
        absent = [client_id for client_id in parameters.cohort if client_id not in roster]
        if absent:
            raise UsageError(f"clients {absent} of the cohort are not on the roster")
        self._parameters = parameters
        self._roster = dict(roster)
        self._randomness = randomness
        self._verify = verify
        self._members = frozenset(parameters.cohort)
        self._context = parameters.ctx()
        self._stage = ServerStage.ADVERTISE
        self._admitted: dict[ServerStage, tuple[int, ...]] = {self._stage: parameters.cohort}
        self._digests: dict[ServerStage, dict[int, bytes]] = {stage: {} for stage in ServerStage}
        self._dropped: set[int] = set()
        self._keys: set[bytes] = set()
        self._publics: dict[int, Advertisement] = {}
        self._shares: dict[int, KeyShares] = {}
        self._signatures: dict[int, bytes] = {}
        self._released: dict[int, UnmaskShares] = {}
        self._sent: Mapping[ServerStage, dict[int, Any]] = {
            ServerStage.ADVERTISE: self._publics,
            ServerStage.SHARE: self._shares,
            ServerStage.CONSISTENCY: self._signatures,
            ServerStage.UNMASK: self._released,
        }
        self._proves = False
        self._coin = b""
        self._blamed: dict[int, Fault] = {}
        self._cohort: FixedCohort | None = None
        self._terms: tuple[MaskTerm, ...] | None = None

    def __repr__(self) -> str:
        return f"<ServerRound round={self._parameters.round} stage={self._stage}>"

    @property
    def stage(self) -> ServerStage:
        """What the server waits for."""
        return self._stage

    @property
    def expected(self) -> frozenset[int]:
        """Who may answer in this stage, whether or not it has."""
        return frozenset(self._admitted.get(self._stage, ())) - self._dropped

    @property
    def answered(self) -> frozenset[int]:
        """Whose answer of this stage is here; a dropped client's masked vector is among them."""
        return frozenset(self._digests[self._stage])

    @property
    def missing(self) -> frozenset[int]:
        """Whom the stage still waits for."""
        return self.expected - self.answered

    @property
    def dropped(self) -> frozenset[int]:
        """Whose messages are refused from now on."""
        return frozenset(self._dropped)

    @property
    def blamed(self) -> dict[int, Fault]:
        """Client id -> how it was found to cheat: by a complaint, or when the secrets were rebuilt. Nobody else can be.

        Also if the round has failed. Being blamed drops nobody.
        """
        return dict(self._blamed)

    def receive_advertisement(self, message: Advertisement) -> None:
        """R0: keys signed by an identity of the roster; a key that is there already was copied, all would refuse it."""
        if not self._is_new(ServerEvent.ADVERTISEMENT, message):
            return
        inspection.check_advertisement(message, self._parameters, self._context, self._roster, self._verify)
        own = message.client_id
        if message.c_public == message.s_public or not self._keys.isdisjoint((message.c_public, message.s_public)):
            raise ProtocolViolation(Check.DUPLICATE_KEY, f"client {own} advertised a key that is there", peer=own)
        self._keys.update((message.c_public, message.s_public))
        self._publics[own] = message
        self._accept(message)

    def receive_shares(self, message: KeyShares) -> None:
        """R1: a commitment, a parcel for every neighbour, and the secrets that the client chooses.

        The signature over them is not looked at before a client complains (`dealing`, `judge`).
        """
        if not self._is_new(ServerEvent.KEY_SHARES, message):
            return
        own = message.client_id
        receivers, chosen = self.receivers(own)
        if set(message.shares) != set(receivers) or set(message.pair_secrets) != set(chosen):
            raise ProtocolViolation(
                Check.WRONG_RECIPIENTS, f"client {own} must seal what belongs to each of its neighbours", peer=own
            )
        inspection.check_sealed(message.shares, message.pair_secrets, self._parameters.agreement, own)
        self._shares[message.client_id] = message
        self._accept(message)

    def receive_input(self, client_id: int, digest: bytes, pads: bytes = b"") -> None:
        """R2: a masked vector arrived whole and is, or will be, in the sum; `digest` is its SHA-256, 32 bytes.

        With norm proofs `pads` is the commitment to those in it; then the survivors are named with a coin.
        """
        message = MaskedInput(client_id, digest, pads)
        if self._is_new(ServerEvent.INPUT, message):
            self._accept(message)
            self._proves |= bool(pads)

    def receive_consistency(self, message: ConsistencySignature) -> None:
        """R3: a signature over this very cohort, its sharers and its survivors."""
        if not self._is_new(ServerEvent.CONSISTENCY, message):
            return
        if not self._verify(self._roster[message.client_id], message.signature, self.outcome().statement()):
            raise ProtocolViolation(
                Check.INCONSISTENT_SURVIVORS,
                f"client {message.client_id} signed other survivors than it was sent",
                peer=message.client_id,
            )
        self._signatures[message.client_id] = message.signature
        self._accept(message)

    def receive_unmask(self, message: UnmaskShares) -> None:
        """R4: of what the client holds, shares of b for the survivors and of r for the other sharers, one of each."""
        if not self._is_new(ServerEvent.UNMASK_SHARES, message):
            return
        own = message.client_id
        survivors, lost = self.owners(own)
        if set(message.self_shares) != set(survivors) or set(message.key_shares) != set(lost):
            raise ProtocolViolation(
                Check.WRONG_RECIPIENTS,
                f"client {own} must release one share for each sharer whose shares it holds, and for no one else",
                peer=own,
            )
        self._released[message.client_id] = message
        self._accept(message)

    def drop(self, client_id: int) -> None:
        """Give a client up; dropping it again changes nothing. UsageError for an id outside the cohort."""
        server_transition(self._stage, ServerEvent.DROP)
        if client_id not in self._members:
            raise UsageError(f"client {client_id} is not in the cohort")
        self._dropped.add(client_id)
        if self._stage is not ServerStage.INPUT:
            self._digests[self._stage].pop(client_id, None)
            self._sent[self._stage].pop(client_id, None)

    def close_stage(self) -> None:
        """End the stage; who has not answered is dropped. The last close rebuilds the secrets.

        Raises CohortTooSmall if fewer than a quorum have answered, UnmaskFailed if a secret is lost; the round
        has failed then.
        """
        rule = server_transition(self._stage, ServerEvent.CLOSE)
        step, present = self._stage, tuple(sorted(self.answered))
        needed = self._needed(step)
        if len(present) < needed:
            self._fail()
            raise CohortTooSmall(step, len(present), needed)
        if step is ServerStage.ADVERTISE:
            self._cohort = FixedCohort.of(self._publics, present, self._context, self._parameters.degree)
        elif step is ServerStage.INPUT and self._proves:
            inputs = [self._digests[step][client_id] for client_id in present]
            self._coin = schedule.coin_of(self._fixed().transcript, present, inputs)
        elif step is ServerStage.UNMASK:
            self._rebuild(present)
        self._dropped |= self.missing
        self._admitted[rule.target] = present
        self._stage = rule.target

    def advertised(self, client_id: int) -> AdvertisedCohort:
        """U1 as `client_id` needs it; IllegalTransition before R0 is closed, ProtocolViolation for one outside U1."""
        cohort = self._fixed("advertised")
        if client_id not in self._publics:
            raise ProtocolViolation(Check.DROPPED_CLIENT, f"client {client_id} did not advertise", peer=client_id)
        return cohort.message_for(client_id, self._publics)

    def receivers(self, client_id: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """For whom `client_id` seals shares in R1, and for whom of them a pair secret; each in ascending order."""
        graph = self._fixed("receivers").graph
        if client_id not in self._publics:
            raise ProtocolViolation(Check.DROPPED_CLIENT, f"client {client_id} did not advertise", peer=client_id)
        receivers = graph.neighbours(client_id)
        return receivers, tuple(peer for peer in receivers if graph.chooses(client_id, peer))

    def owners(self, client_id: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of whom `client_id` releases a share in R4: of b for the first, of r for the second; ascending."""
        survivors = self._reached(ServerStage.CONSISTENCY, "owners")
        if client_id not in self._shares:
            raise ProtocolViolation(Check.DROPPED_CLIENT, f"client {client_id} did not share its keys", peer=client_id)
        owners = [v for v in sorted((client_id, *self._fixed().graph.neighbours(client_id))) if v in self._shares]
        alive = set(survivors)
        return tuple(v for v in owners if v in alive), tuple(v for v in owners if v not in alive)

    def delivery(self, client_id: int) -> ShareDelivery:
        """U2 and what was sealed for `client_id`; ProtocolViolation for a client outside U2."""
        sharers = self._reached(ServerStage.INPUT, "delivery")
        if client_id not in self._shares:
            raise ProtocolViolation(Check.DROPPED_CLIENT, f"client {client_id} did not share its keys", peer=client_id)
        graph = self._fixed().graph
        senders = [v for v in graph.neighbours(client_id) if v in self._shares]
        return ShareDelivery(
            sharers,
            {v: self._shares[v].shares[client_id] for v in senders},
            {v: self._shares[v].pair_secrets[client_id] for v in senders if graph.chooses(v, client_id)},
        )

    def dealing(self, client_id: int, sender: int) -> Dealing:
        """What `sender` signed about the shares that it dealt, for `client_id`, which wants to complain.

        A signature that is none is found here, and its sender blamed; ProtocolViolation if `sender` has sealed
        nothing for `client_id`.
        """
        self._reached(ServerStage.INPUT, "dealing")
        graph = self._fixed().graph
        if client_id not in self._shares or sender not in self._shares or sender not in graph.neighbours(client_id):
            raise ProtocolViolation(
                Check.WRONG_RECIPIENTS, f"client {sender} has sealed nothing for client {client_id}", peer=client_id
            )
        if not self._signed_its_dealing(sender):
            self._blamed.setdefault(sender, Fault.UNSIGNED_DEALING)
        return dealing.dealing_for(self._shares[sender], graph, client_id)

    def judge(self, message: Complaint) -> Verdict:
        """Who is at fault if a client complains of what a neighbour sealed for it: one of the two, now `blamed`.

        IllegalTransition before the shares were delivered, ProtocolViolation if the client was dropped or the
        message is malformed. Takes some 40 ms.
        """
        message.check()
        self._reached(ServerStage.INPUT, "judge")
        own, accused = message.client_id, message.accused
        if own not in self._shares or own in self._dropped:
            raise ProtocolViolation(Check.DROPPED_CLIENT, f"client {own} has no part in the round any more", peer=own)
        if accused not in self._shares or accused not in self._fixed().graph.neighbours(own):
            verdict = Verdict(own, Fault.FALSE_COMPLAINT)
        elif not self._signed_its_dealing(accused):
            verdict = Verdict(accused, Fault.UNSIGNED_DEALING)
        else:
            verdict = complaint.judge(message, self._case(own, accused))
        self._blamed.setdefault(verdict.client_id, verdict.fault)
        return verdict

    def survivors(self) -> Survivors:
        """U3, for every client in it; IllegalTransition before R2 has been closed."""
        return Survivors(self._reached(ServerStage.CONSISTENCY, "survivors"), self._coin)

    def outcome(self) -> schedule.Outcome:
        """What the survivors are asked to sign; IllegalTransition before R2 has been closed."""
        survivors = self._reached(ServerStage.CONSISTENCY, "outcome")
        return schedule.Outcome(
            context=self._context,
            cohort=self._fixed().transcript.cohort,
            sharers=self._sharers(),
            survivors=survivors,
            coin=self._coin,
        )

    def signatures(self) -> SignatureSet:
        """A quorum of signatures over the survivors; IllegalTransition before R3 has been closed."""
        signers = self._reached(ServerStage.UNMASK, "signatures")[: self._parameters.quorum]
        return SignatureSet({v: self._signatures[v] for v in signers})

    def mask_terms(self) -> tuple[MaskTerm, ...]:
        """What to add to the sum of the survivors' vectors to leave their plain sum; in stage DONE only."""
        if self._terms is None:
            raise IllegalTransition(self._stage, "mask_terms")
        return self._terms

    def _signed_its_dealing(self, sender: int) -> bool:
        """Whether what a client dealt is signed, with keys that it has; not needed before a client complains."""
        message, cohort = self._shares[sender], self._fixed()
        if not dealing.is_possessed(self._publics[sender], message.possession, self._context):
            return False
        root = dealing.dealing_tree(message, cohort.graph).root
        signed = dealing.dealing_statement(cohort.transcript, sender, message.commitment, root)
        return self._verify(self._roster[sender], message.signature, signed)

    def _case(self, complainant: int, accused: int) -> complaint.Case:
        dealt = self._shares[accused]
        return complaint.Case(
            transcript=self._fixed().transcript,
            agreement=self._parameters.agreement,
            complainant=self._publics[complainant],
            accused=self._publics[accused],
            parcel=dealt.shares[complainant],
            pair_secret=dealt.pair_secrets.get(complainant),
        )

    def _is_new(self, event: ServerEvent, message: RoundMessage) -> bool:
        """Whether to go on with a message: False for a repetition, an exception for what must not be."""
        message.check()
        client_id, late = message.client_id, event is ServerEvent.INPUT
        if client_id not in self._members:
            raise ProtocolViolation(Check.OFF_ROSTER, f"client {client_id} was not asked in this round", peer=client_id)
        rule = SERVER.get((self._stage, event))
        if rule is None:
            raise ProtocolViolation(Check.OUT_OF_ORDER, f"{event} is not due in stage {self._stage}", peer=client_id)
        if client_id in self._dropped:
            raise ProtocolViolation(
                Check.LATE_INPUT if late else Check.DROPPED_CLIENT,
                f"client {client_id} was declared dropped before this message came",
                peer=client_id,
            )
        earlier = self._digests[STAGE_OF[event]].get(client_id)
        if earlier is None:
            return True
        if earlier != message.digest():
            raise ConflictingMessage(f"client {client_id} sent {event} before, with other content")
        return False

    def _accept(self, message: RoundMessage) -> None:
        self._digests[self._stage][message.client_id] = message.digest()

    def _fixed(self, question: str = "the cohort") -> FixedCohort:
        if self._cohort is None:
            raise IllegalTransition(self._stage, question)
        return self._cohort

    def _needed(self, stage: ServerStage) -> int:
        """How many must answer; at the end it is enough if every secret can be rebuilt."""
        return self._parameters.threshold if stage is ServerStage.UNMASK else self._parameters.quorum

    def _sharers(self) -> tuple[int, ...]:
        return self._admitted[ServerStage.INPUT]

    def _survivors(self) -> tuple[int, ...]:
        return self._admitted[ServerStage.CONSISTENCY]

    def _reached(self, stage: ServerStage, question: str) -> tuple[int, ...]:
        """Who was admitted to a stage, once it has begun."""
        if stage not in self._admitted:
            raise IllegalTransition(self._stage, question)
        return self._admitted[stage]

    def _rebuild(self, present: tuple[int, ...]) -> None:
        evidence = Evidence(
            parameters=self._parameters,
            transcript=self._fixed().transcript,
            graph=self._fixed().graph,
            publics=self._publics,
            dealt=self._shares,
            sharers=self._sharers(),
            survivors=self._survivors(),
            released={v: self._released[v] for v in present},
            blamed=self._blamed,
        )
        try:
            self._terms = unmask(evidence, self._randomness)
        except UnmaskFailed:
            self._fail()
            raise
        self._released.clear()

    def _fail(self) -> None:
        self._stage = server_transition(self._stage, ServerEvent.FALL_SHORT).target
        self._released.clear()
