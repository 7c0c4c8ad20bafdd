"""The client's side of a round: a state machine without input and output.

Each method takes one message of the server and returns the answer. It checks everything first and changes its state
last, so a refused message leaves the session as it was and the honest continuation still works. Source: Bonawitz et
al. 2017 (CCS), figure 4, with the checks of docs/protocol.md.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import ConfigurationError, IllegalTransition, ProtocolViolation, UsageError
from fedcore.secagg import complaint, dealing, inspection
from fedcore.secagg.checks import Check
from fedcore.secagg.client_memory import ClientAnswers, ClientSecrets, DealtShares, PastAnswer, present, repeated
from fedcore.secagg.complaint import Complaint, ComplaintSubject
from fedcore.secagg.crypto import schedule, shamir
from fedcore.secagg.crypto.agreement import Exchange, KeyPair, exchange
from fedcore.secagg.crypto.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Randomness,
    Secret,
    Signer,
    Verify,
    draw,
    sign,
    verifies,
)
from fedcore.secagg.crypto.masking import Masker, MaskTerm, apply_masks, check_vector
from fedcore.secagg.crypto.possession import PairName
from fedcore.secagg.graph import Graph, graph_over
from fedcore.secagg.messages import (
    AdvertisedCohort,
    Advertisement,
    ConsistencySignature,
    Dealing,
    KeyShares,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
)
from fedcore.secagg.parameters import RoundParameters
from fedcore.secagg.transitions import ClientEvent, ClientState, client_transition


class ClientSession:
    """One client in one round.

    `parameters` hold this client's own hashes of roster, model and task; `roster` maps client id to raw Ed25519
    public key, comes from the client's kit and must not change during the session. `min_cohort`, which counts
    clients in addition to those that may collude, and `min_threshold` are its owner's policy, which no server can
    lower.
    Steps, in order: `advertise`, `share_keys`, `receive_shares`, `mask` or `mask_parts`, `sign_survivors`, `unmask`. A
    step repeated with the identical message returns the identical answer, with another one raises ProtocolViolation; a
    step out of order raises IllegalTransition.

    Secrets go as soon as they have done their work: both key pairs after the shares are opened, the pair secrets and b
    when the masks are made, the shares of others after `unmask`. A session is used by one thread, and cannot be
    stored or copied: a client that restarts is a dropout of the round, so no mask is ever used twice.
    `verify` checks signatures and `agree` agrees on keys; a simulation passes ones that remember what they have done
    for another client.
    """

    def __init__(
        self,
        *,
        parameters: RoundParameters,
        client_id: int,
        identity: Signer,
        roster: Mapping[int, bytes],
        min_cohort: int,
        min_threshold: int,
        randomness: Randomness = os.urandom,
        verify: Verify = verifies,
        agree: Exchange = exchange,
    ) -> None:
        inspection.check_proposal(parameters, client_id, roster, min_cohort, min_threshold)
        if identity.public_key().public_bytes_raw() != roster[client_id]:
            raise ConfigurationError(f"the identity key is not the one that the roster lists for client {client_id}")
        self._parameters = parameters
        self._client_id = client_id
        self._identity = identity
        self._roster = roster
        self._floor = parameters.quorum
        self._randomness = randomness
        self._verify = verify
        self._agree = agree
        self._context = parameters.ctx()
        self._state = ClientState.NEW
        self._transcript: schedule.Transcript | None = None
        self._graph: Graph | None = None
        self._publics: dict[int, Advertisement] = {}
        self._advertised: tuple[int, ...] = ()
        self._sharers: tuple[int, ...] = ()
        self._survivors = Survivors(())
        self._secrets = ClientSecrets()
        self._answers = ClientAnswers()

    def __repr__(self) -> str:
        return f"<ClientSession client={self._client_id} state={self._state}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError("a session is never stored or copied: after a restart its client is a dropout")

    @property
    def state(self) -> ClientState:
        """How far the session is."""
        return self._state

    @property
    def verified_clients(self) -> frozenset[int]:
        """Whose keys, signed for this very round, this client has verified in R1: its neighbours', and its own."""
        return frozenset(self._publics)

    @property
    def outcome(self) -> schedule.Outcome:
        """What this client has signed in R3; IllegalTransition before that."""
        if not self._survivors.survivors:
            raise IllegalTransition(self._state, "outcome")
        return self._outcome(self._survivors)

    def advertise(self) -> Advertisement:
        """R0: draw the round's two key pairs and sign their public halves."""
        rule = client_transition(self._state, ClientEvent.ADVERTISE)
        if rule.repeat:
            return present(self._answers.advertised)
        agreement = self._parameters.agreement
        seal_pair, mask_pair = (KeyPair.draw(agreement, self._randomness, self._agree) for _ in range(2))
        signed = schedule.advertisement_statement(self._context, self._client_id, seal_pair.public, mask_pair.public)
        self._secrets.seal_pair, self._secrets.mask_pair = seal_pair, mask_pair
        answer = Advertisement(self._client_id, seal_pair.public, mask_pair.public, sign(self._identity, signed))
        self._answers.advertised = answer
        self._state = rule.target
        return answer

    def share_keys(self, message: AdvertisedCohort) -> KeyShares:
        """R1: check the cohort U1, then share b and the mask key among its members."""
        rule = client_transition(self._state, ClientEvent.SHARE_KEYS)
        message.check()
        if rule.repeat:
            return repeated(self._answers.shared, message, Check.SECOND_COHORT)
        inspection.check_listed(message.ids, self._parameters.cohort, self._floor)
        root = message.root()
        transcript = schedule.Transcript(
            context=self._context, cohort=schedule.cohort_hash(self._context, message.ids, root)
        )
        graph = graph_over(message.ids, degree=self._parameters.degree, seed=schedule.ring_seed(transcript))
        inspection.check_cohort(
            message,
            own=present(self._answers.advertised),
            graph=graph,
            parameters=self._parameters,
            context=self._context,
            roster=self._roster,
            verify=self._verify,
        )
        publics = {member.client_id: member for member in message.members}
        self_secret = Secret(draw(self._randomness, KEY_BYTES))
        own, seal_pair, mask_pair = self._client_id, present(self._secrets.seal_pair), present(self._secrets.mask_pair)
        dealt = dealing.deal(
            mask_pair.root,
            self_secret,
            graph,
            owner=own,
            threshold=self._parameters.threshold,
            randomness=self._randomness,
        )
        answer = self._signed(
            KeyShares(
                own,
                schedule.commitment(self._context, own, self_secret),
                dealing.commit(self._context, own, own, dealt[own].text),
                dealing.parcels(transcript, seal_pair, publics, dealt, owner=own),
                dealing.sealed_pair_secrets(transcript, mask_pair, publics, graph, owner=own),
                bytes(SIGNATURE_BYTES),
                dealing.possession({PairName.SEAL: seal_pair, PairName.MASK: mask_pair}, self._context, own),
            ),
            transcript,
            graph,
        )
        self._transcript, self._graph, self._publics, self._advertised = transcript, graph, publics, message.ids
        self._secrets.self_secret = self_secret
        self._secrets.shares = {own: dealt[own]}
        self._answers.shared = PastAnswer(message.digest(root), answer)
        self._state = rule.target
        return answer

    def receive_shares(self, message: ShareDelivery) -> None:
        """R1: check the sharers U2, open the shares sealed for this client, and learn the secrets of its masks."""
        rule = client_transition(self._state, ClientEvent.RECEIVE_SHARES)
        message.check()
        if rule.repeat:
            repeated(self._answers.delivered, message, Check.SECOND_DELIVERY)
            return
        inspection.check_sharers(message.sharers, self._client_id, self._advertised, self._floor)
        inspection.check_holders(message.sharers, self._client_id, present(self._graph), self._parameters.threshold)
        inspection.check_delivery(message, self._client_id, present(self._graph), self._parameters.agreement)
        opened = {sender: self._open_shares(sender, sealed) for sender, sealed in message.shares.items()}
        pair_secrets = {peer: self._pair_secret(peer, message.pair_secrets.get(peer)) for peer in opened}
        self._secrets.shares.update(opened)
        self._secrets.pair_secrets = pair_secrets
        self._sharers = message.sharers
        self._secrets.seal_pair, self._secrets.mask_pair = None, None
        self._answers.delivered = PastAnswer(message.digest(), None)
        self._state = rule.target

    def complain(self, message: ShareDelivery, evidence: Dealing) -> Complaint:
        """R1: leave the round with a proof that a neighbour cheated in what it sealed for this client.

        `message` is the delivery that `receive_shares` refused, `evidence` what the server shows that the
        neighbour has signed. Raises ProtocolViolation("unsigned-dealing") if its signature does not cover what was
        delivered, or it does not prove that it has the private halves of its keys: then it is the server that lies, and
        nobody is to be accused. UsageError if nothing is wrong.
        """
        rule = client_transition(self._state, ClientEvent.COMPLAIN)
        message.check()
        evidence.check()
        graph, transcript, accused = present(self._graph), present(self._transcript), evidence.client_id
        inspection.check_delivery(message, self._client_id, graph, self._parameters.agreement)
        if accused not in message.shares:
            raise ProtocolViolation(Check.WRONG_RECIPIENTS, f"client {accused} has sealed nothing for this client")
        case = complaint.Case(
            transcript=transcript,
            agreement=self._parameters.agreement,
            complainant=self._publics[self._client_id],
            accused=self._publics[accused],
            parcel=message.shares[accused],
            pair_secret=message.pair_secrets.get(accused),
        )
        inspection.check_dealing(evidence, case, graph, self._roster, self._verify)
        part, pair = self._fault_of(case)
        answer = complaint.complain(case, part, pair, self._randomness)
        self._secrets, self._answers = ClientSecrets(), ClientAnswers()
        self._state = rule.target
        return answer

    def mask(self, words: NDArray[np.uint64], *, threads: int = 1) -> None:
        """R2: add all masks to the encoded update in place; `words` is uint64 [parameters.words].

        Works once. If it fails half way, the vector and the session are spoiled and the session is abandoned.
        """
        for _ in self.mask_parts(words, part_words=self._parameters.words, threads=threads):
            pass

    def mask_parts(
        self, words: NDArray[np.uint64], *, part_words: int, threads: int = 1, masker: Masker | None = None
    ) -> Generator[memoryview, None, None]:
        """R2 part by part: mask the next `part_words` words in place and give them out, little-endian bytes.

        In order, each part masked only when it is asked for, so that the ones before it can be sent meanwhile; `words`
        is uint64 [parameters.words], and no copy of it is made. Works once: from this call on no other vector can be
        masked, and the survivors cannot be signed before the last part. A `masker` that holds the words elsewhere puts
        them into `words` as it masks them. If one fails, or the generator is closed
        half way, the vector and the session are spoiled and the session is abandoned.
        """
        rule = client_transition(self._state, ClientEvent.MASK)
        check_vector(words)
        if words.size != self._parameters.words:
            raise UsageError(f"the vector has {words.size} words, the round's parameters say {self._parameters.words}")
        if part_words < 1:
            raise UsageError("a part has one word or more")
        self._state = rule.target
        try:
            self._secrets.mask_terms = tuple(self._masks())
        except BaseException:
            self.abandon()
            raise
        self._secrets.self_secret, self._secrets.pair_secrets = None, {}
        return self._masked(words, part_words, threads, masker)

    def _masked(
        self, words: NDArray[np.uint64], part_words: int, threads: int, masker: Masker | None
    ) -> Generator[memoryview, None, None]:
        """The parts; the seeds stay in `_secrets`, so that abandoning the session erases them here too."""
        try:
            for start in range(0, words.size, part_words):
                if not self._secrets.mask_terms:
                    raise IllegalTransition(self._state, ClientEvent.MASK)
                part = words[start : start + part_words]
                (masker or apply_masks)(part, self._secrets.mask_terms, threads=threads, offset=start)
                yield part.astype("<u8", copy=False).data.cast("B")
        except BaseException:
            self.abandon()
            raise
        self._secrets.mask_terms = ()

    def sign_survivors(self, message: Survivors) -> ConsistencySignature:
        """R3: check the survivors U3 and sign what this client has seen of the round."""
        rule = client_transition(self._state, ClientEvent.SIGN_SURVIVORS)
        if self._secrets.mask_terms:  # parts are still to be masked: nobody can have the vector yet
            raise IllegalTransition(self._state, ClientEvent.SIGN_SURVIVORS)
        message.check()
        if rule.repeat:
            return repeated(self._answers.signed, message, Check.SECOND_SURVIVOR_SET)
        inspection.check_survivors(message.survivors, self._client_id, self._sharers, self._floor)
        signature = sign(self._identity, self._outcome(message).statement())
        answer = ConsistencySignature(self._client_id, signature)
        self._survivors = message
        self._answers.signed = PastAnswer(message.digest(), answer)
        self._state = rule.target
        return answer

    def unmask(self, message: SignatureSet) -> UnmaskShares:
        """R4: with a quorum of signatures on the very same survivors, release one share for each owner, erase all."""
        rule = client_transition(self._state, ClientEvent.UNMASK)
        message.check()
        if rule.repeat:
            return repeated(self._answers.released, message, Check.SECOND_UNMASK)
        self._check_signatures(message)
        survivors = set(self._survivors.survivors)
        answer = UnmaskShares(
            self._client_id,
            {v: shares.of_self for v, shares in self._secrets.shares.items() if v in survivors},
            {v: shares.of_key for v, shares in self._secrets.shares.items() if v not in survivors},
        )
        self._answers.released = PastAnswer(message.digest(), answer)
        self._secrets = ClientSecrets()
        self._state = rule.target
        return answer

    def abandon(self) -> None:
        """Leave the round: every secret and every answer is erased, and no further step is legal."""
        self._state = client_transition(self._state, ClientEvent.ABANDON).target
        self._secrets = ClientSecrets()
        self._answers = ClientAnswers()

    def _signed(self, message: KeyShares, transcript: schedule.Transcript, graph: Graph) -> KeyShares:
        """The message with the signature over all that it deals."""
        root = dealing.dealing_tree(message, graph).root
        signed = dealing.dealing_statement(transcript, self._client_id, message.commitment, root)
        return replace(message, signature=sign(self._identity, signed))

    def _open_shares(self, sender: int, parcel: bytes) -> DealtShares:
        text, fault = self._opened(sender, parcel)
        if fault is Check.SHARE_UNSEALING:
            raise _not_sealed_for_us(sender)
        if text is None or fault is not None:
            raise ProtocolViolation(
                Check.UNCOMMITTED_SHARE, f"client {sender} sealed another share than it committed to", peer=sender
            )
        return DealtShares(text[: shamir.SHARE_BYTES], text[shamir.SHARE_BYTES :])

    def _opened(self, sender: int, parcel: bytes) -> tuple[bytes | None, Check | None]:
        """The text of a parcel, and what is wrong with it."""
        commitments, sealed = dealing.split_parcel(parcel)
        text = schedule.open_shares(
            present(self._transcript),
            present(self._secrets.seal_pair),
            self._publics[sender].c_public,
            sender=sender,
            receiver=self._client_id,
            sealed=sealed,
        )
        return text, dealing.fault_in(text, commitments, self._context, sender, self._client_id)

    def _fault_of(self, case: complaint.Case) -> tuple[ComplaintSubject, KeyPair]:
        """What to complain of, and the key pair that it was sealed for; UsageError if everything is right."""
        accused, seal_pair, mask_pair = case.accused.client_id, self._secrets.seal_pair, self._secrets.mask_pair
        if self._opened(accused, case.parcel)[1] is not None:
            return ComplaintSubject.SHARES, present(seal_pair)
        try:
            self._pair_secret(accused, case.pair_secret)
        except ProtocolViolation:
            return ComplaintSubject.PAIR_SECRET, present(mask_pair)
        raise UsageError(f"there is nothing wrong with what client {accused} has sealed", check="no-fault")

    def _pair_secret(self, peer: int, sealed: bytes | None) -> Secret:
        """The secret shared with a neighbour: what it sealed for this client, or this client's own choice."""
        transcript, pair = present(self._transcript), present(self._secrets.mask_pair)
        if sealed is None:
            return schedule.pair_secret(transcript, pair.root, chooser=self._client_id, peer=peer)
        public = self._publics[peer].s_public
        secret = schedule.open_pair_secret(
            transcript, pair, public, sender=peer, receiver=self._client_id, sealed=sealed
        )
        if secret is None:
            raise _not_sealed_for_us(peer)
        return secret

    def _masks(self) -> list[MaskTerm]:
        """Every mask that this client adds: its own, and one for each neighbour among the sharers."""
        transcript = present(self._transcript)
        own = schedule.self_mask(transcript, present(self._secrets.self_secret))
        return [own] + [
            schedule.pair_mask(transcript, secret, owner=self._client_id, peer=peer)
            for peer, secret in self._secrets.pair_secrets.items()
        ]

    def _outcome(self, message: Survivors) -> schedule.Outcome:
        return schedule.Outcome(
            context=self._context,
            cohort=present(self._transcript).cohort,
            sharers=self._sharers,
            survivors=message.survivors,
            coin=message.coin,
        )

    def _check_signatures(self, message: SignatureSet) -> None:
        inspection.check_signers(message.signatures, self._survivors.survivors, self._roster)
        expected = self._outcome(self._survivors).statement()
        valid = sum(
            self._verify(self._roster[signer], signature, expected) for signer, signature in message.signatures.items()
        )
        if valid < self._parameters.quorum:
            raise ProtocolViolation(
                Check.INCONSISTENT_SURVIVORS,
                f"{valid} clients signed the survivors that this client was shown,"
                f" {self._parameters.quorum} are needed",
            )


def _not_sealed_for_us(sender: int) -> ProtocolViolation:
    return ProtocolViolation(
        Check.SHARE_UNSEALING,
        f"what client {sender} sealed was not sealed for this client, round and cohort",
        peer=sender,
    )
