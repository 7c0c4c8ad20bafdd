"""The server of the secure sum, from `docs/reference/specification.md` alone: sections 8 and 9."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from reference import messages as m
from reference import mlkem, standards
from reference import primitives as p
from reference.party import PARTS, Party
from reference.primitives import Pair, Parameters, Refusal, digest, kdf, require


def stage(number: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """What comes before a stage's own checks, 6.3, 6.6 and 8.1; stages are counted from 0."""

    def decorate(method: Callable[..., None]) -> Callable[..., None]:
        def receive(self: ReferenceServer, message: Any) -> None:
            message.check()
            require(number != 2 or len(message.vector) == self.parameters.words, "malformed")
            sender, received = message.client_id, self.messages[number]
            require(sender in self.parameters.cohort, "off-roster")
            require(number <= self.stage, "out-of-order")
            require(sender in self.members, "late-input" if number == 2 else "dropped-client")
            require(sender not in received or received[sender].digest() == message.digest(), "conflict")
            if sender not in received:
                method(self, message)
                received[sender] = message

        return receive

    return decorate


class ReferenceServer(Party):
    """Section 8: one method a message, and one that closes each stage."""

    def __init__(self, parameters: Parameters, roster: Mapping[int, bytes]) -> None:
        super().__init__(parameters, roster)
        self.stage, self.members = 0, set(parameters.cohort)
        self.messages: list[dict[int, Any]] = [{} for _ in range(5)]
        self.faults: dict[int, str] = {}

    def _close(self, least: int) -> list[int]:
        """8.2 and 8.7."""
        answers = self.messages[self.stage]
        require(len(answers) >= least, "too-few")
        self.members, self.stage = set(answers), self.stage + 1
        return sorted(answers)

    @stage(0)
    def receive_advertisement(self, message: Any) -> None:
        """8.3."""
        self.check_advertisement(message)
        self.check_distinct([*self.messages[0].values(), message])

    def close_advertisements(self) -> dict[int, Any]:
        """U1, and what 8.4 sends."""
        ids, sent = self._close(self.parameters.quorum), self.messages[0]
        leaves = [sent[v].digest() for v in ids]
        self.l1, self.graph = self.ring(set(ids), p.tree_root(leaves))
        shown = {v: sorted(self.graph.neighbours(v) | {v}) for v in ids}
        proofs = {v: p.tree_proof(leaves, map(ids.index, shown[v])) for v in ids}
        return {v: m.AdvertisedCohort(ids, [sent[u] for u in shown[v]], proofs[v]) for v in ids}

    @stage(1)
    def receive_shares(self, message: Any) -> None:
        """8.3."""
        neighbours = self.graph.neighbours(message.client_id)
        chosen = {v for v in neighbours if self.graph.chooses(message.client_id, v)}
        require(message.shares.keys() == neighbours, "wrong-recipients")
        require(message.pair_secrets.keys() == chosen, "wrong-recipients")
        self.check_sizes(message)

    def close_shares(self) -> dict[int, Any]:
        """U2, and what 8.4 sends."""
        ids, sent, deliveries = self._close(self.parameters.quorum), self.messages[1], {}
        self.sharers = set(ids)
        for v in ids:
            senders = sorted(self.graph.neighbours(v) & self.sharers)
            secrets = {u: sent[u].pair_secrets[v] for u in senders if self.graph.chooses(u, v)}
            deliveries[v] = m.ShareDelivery(ids, {u: sent[u].shares[v] for u in senders}, secrets)
        return deliveries

    @stage(2)
    def receive_input(self, message: Any) -> None:
        """8.1."""

    def close_inputs(self) -> Any:
        """U3."""
        ids = self._close(self.parameters.quorum)
        self.survivors = set(ids)
        return m.Survivors(ids)

    @stage(3)
    def receive_consistency(self, message: Any) -> None:
        """8.3."""
        identity = self.roster[message.client_id]
        signed = standards.verifies(identity, self.consistency_text(), message.signature)
        require(signed, "inconsistent-survivors")

    def close_consistency(self) -> Any:
        """The signatures of 8.4."""
        signers = self._close(self.parameters.quorum)[: self.parameters.quorum]
        return m.SignatureSet({v: self.messages[3][v].signature for v in signers})

    @stage(4)
    def receive_unmask(self, message: Any) -> None:
        """8.3."""
        owners = (self.graph.neighbours(message.client_id) | {message.client_id}) & self.sharers
        require(message.self_shares.keys() == owners & self.survivors, "wrong-recipients")
        require(message.key_shares.keys() == owners - self.survivors, "wrong-recipients")

    def close_unmask(self) -> list[int]:
        """The sum of 8.5."""
        self._close(self.parameters.threshold)
        total = [0] * self.parameters.words
        for v in self.survivors:
            total = p.add(total, 1, self.messages[2][v].vector)
        for sign, seed in self.corrections():
            total = p.add(total, sign, p.mask(seed, self.parameters.words))
        return total

    def corrections(self) -> list[tuple[int, bytes]]:
        """Sign and seed of each mask that 8.5 adds; 8.9."""
        terms, lost = [], []
        for v in sorted(self.sharers):
            try:
                terms += self._terms(v)
            except Refusal as refusal:
                lost.append(refusal)
        if lost:
            raise lost[0]
        return terms

    def _terms(self, v: int) -> list[tuple[int, bytes]]:
        """What 8.5 adds for one client of U2."""
        if v in self.survivors:
            return [(-1, kdf(self._secret(v, "self"), self.ctx, "self", self.l1))]
        pair, terms = Pair(self._secret(v, "key"), self.parameters.agreement), []
        for u in sorted(self.graph.neighbours(v) & self.survivors):
            secret: bytes | None = kdf(pair.root, self.ctx, "pair-secret", self.l1, v, u)
            if self.graph.chooses(u, v):
                shared = standards.x25519(pair.private, self.messages[0][u].s_public[:32])
                secret = self.unseal("pair-seal", shared, pair.seeds, (u, v), self.messages[1][u].pair_secrets[v])
            if secret is None:
                self._fail(u, "sealed-garbage")
            terms.append(self.pair_mask(v, u, secret))
        return terms

    def _fail(self, client_id: int, fault: str) -> None:
        self.faults.setdefault(client_id, fault)
        raise Refusal("lost")

    def _secret(self, owner: int, kind: str) -> bytes:
        """What is rebuilt of an owner, or who is at fault: 8.5, 8.6 and 8.8."""
        released = {v: getattr(message, f"{kind}_shares") for v, message in sorted(self.messages[4].items())}
        shares = {v: values[owner] for v, values in released.items() if owner in values}
        dealt, half = self.messages[1][owner], slice(0, 16) if kind == "key" else slice(16, 32)
        parcels = {**dealt.shares, owner: dealt.own_commitments}
        for _ in range(2):
            require(len(shares) >= self.parameters.threshold, "lost")
            points = {self.graph.point(owner, v): share for v, share in shares.items()}
            secret = p.rebuild(points, self.parameters.threshold)
            if secret and self._is_published(owner, kind, secret):
                return secret
            for v, share in list(shares.items()):
                if digest("share-com", self.ctx, owner, v, kind, share)[:16] != parcels[v][half]:
                    self.faults.setdefault(v, "wrong-share")
                    del shares[v]
        return self._fail(owner, "inconsistent-dealing")

    def _is_published(self, owner: int, kind: str, secret: bytes) -> bool:
        """8.5."""
        if kind == "self":
            return digest("bcom", self.ctx, owner, secret) == self.messages[1][owner].commitment
        return Pair(secret, self.parameters.agreement).public == self.messages[0][owner].s_public

    def dealing(self, dealer: int, holder: int) -> Any:
        """9.1 and 9.6."""
        message = self.messages[1][dealer]
        self._is_signed(message)
        proof = p.tree_proof(self.leaves(message), [self.graph.holders(dealer).index(holder)])
        return m.Dealing(dealer, message.commitment, message.signature, proof)

    def _is_signed(self, message: Any) -> bool:
        """9.6."""
        text = self.dealing_text(message, p.tree_root(self.leaves(message)))
        signed = standards.verifies(self.roster[message.client_id], text, message.signature)
        if not signed:
            self.faults.setdefault(message.client_id, "unsigned-dealing")
        return signed

    def judge(self, complaint: Any) -> tuple[int, str]:
        """9.5 to 9.7: who is at fault, and of what."""
        complaint.check()
        require(complaint.client_id in self.messages[1].keys() & self.members, "dropped-client")
        client_id, fault = self._verdict(complaint, complaint.client_id, complaint.accused)
        self.faults.setdefault(client_id, fault)
        return client_id, fault

    def _verdict(self, complaint: Any, holder: int, dealer: int) -> tuple[int, str]:
        """The order of 9.7."""
        false, dealt = (holder, "false-complaint"), self.messages[1].get(dealer)
        name, usage, skip = PARTS[complaint.part]
        if not dealt or holder not in dealt.shares:
            return false
        if not self._is_signed(dealt):
            return dealer, "unsigned-dealing"
        sealed = (dealt.shares if complaint.part == "shares" else dealt.pair_secrets).get(holder)
        accused, own = (getattr(self.messages[0][v], name) for v in (dealer, holder))
        if sealed and standards.lift(p.coordinate(accused)) is None:
            return dealer, "key-off-curve"
        if not sealed or not self._is_proven(complaint, own, accused):
            return false
        shared = standards.montgomery(complaint.shared)
        text = self.unseal(usage, shared, complaint.mlkem_seed, (dealer, holder), sealed[skip:])
        if text is None:
            return dealer, "sealed-garbage"
        if complaint.part == "shares" and not self.is_committed(dealer, holder, sealed, text):
            return dealer, "inconsistent-dealing"
        return false

    def _is_proven(self, complaint: Any, own: bytes, accused: bytes) -> bool:
        """The checks of 9.5; X is never neutral in a proof that holds."""
        mine, other = (standards.lift(p.coordinate(public)) for public in (own, accused))
        e, s, seeds = complaint.proof[:32], int.from_bytes(complaint.proof[32:], "little"), complaint.mlkem_seed
        if mine is None or other is None or s >= standards.ORDER or not standards.is_multiple(complaint.shared):
            return False
        if len(seeds) != 64 * (len(own) > 32) or (seeds and mlkem.keys(seeds)[0] != own[32:]):
            return False
        nonces = []
        for base, result in ((standards.BASE, mine), (other, complaint.shared)):
            first, second = standards.eightfold(base), standards.eightfold(result)
            subtracted = standards.multiple(int.from_bytes(e, "little"), second)
            nonces.append(standards.minus(standards.multiple(s, first), subtracted))
        return self.challenge(complaint, (own, accused), nonces) == e
