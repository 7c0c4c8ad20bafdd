"""The server of the secure sum, from `docs/reference/specification.md` alone: sections 8 and 9."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from reference import messages as m
from reference import mlkem, standards
from reference import primitives as p
from reference.primitives import Pair, Parameters, Refusal, digest, kdf, require


class ReferenceServer(m.Party):
    """Section 8: `receive` takes each message, `close` closes a stage, counted from 0."""

    def __init__(self, parameters: Parameters, roster: Mapping[int, bytes]) -> None:
        super().__init__(parameters, roster)
        self.stage, self.is_over, self.members = 0, False, set(parameters.cohort)
        self.messages: list[dict[int, Any]] = [{} for _ in range(5)]
        self.sharers, self.survivors = self.messages[1].keys(), self.messages[2].keys()
        self.faults: dict[int, str] = {}

    def receive(self, message: Any) -> None:
        """6.3, 6.6 and 8.1, then 8.3."""
        message.check()
        number, check = {
            "advertisement": (0, lambda one: self.check_advertisements([one], self.messages[0].values())),
            "key-shares": (1, self._check_shares),
            "input": (2, lambda _: None),
            "consistency": (3, self._check_consistency),
            "unmask": (4, self._check_unmask),
        }[message.kind]
        sender, received = message.client_id, self.messages[number]
        require(number != 2 or len(message.vector) == self.parameters.words, "malformed")
        require(sender in self.parameters.cohort, "off-roster")
        require(number <= self.stage and not self.is_over, "out-of-order")
        require(sender in self.members, "late-input" if number == 2 else "dropped-client")
        require(sender not in received or received[sender].digest() == message.digest(), "conflict")
        if sender not in received:
            check(message)
            received[sender] = message

    def close(self) -> Any:
        """8.2 and 8.7; what 8.4 sends, or the sum."""
        require(self.stage < 5 and not self.is_over, "out-of-order")
        ids, self.is_over = sorted(self.messages[self.stage]), True
        require(len(ids) >= (self.parameters.threshold if self.stage == 4 else self.parameters.quorum), "too-few")
        answer = (self._cohorts, self._deliveries, m.Survivors, self._signatures, self._sum)[self.stage](ids)
        self.members, self.stage, self.is_over = set(ids), self.stage + 1, False
        return answer

    def _cohorts(self, ids: list[int]) -> dict[int, Any]:
        """8.4, of U1."""
        sent, leaves = self.messages[0], [self.messages[0][v].digest() for v in ids]
        self.l1, self.graph = self.ring(set(ids), p.tree_root(leaves))
        shown = {v: sorted(self.graph.neighbours(v) | {v}) for v in ids}
        proofs = {v: p.tree_proof(leaves, set(map(ids.index, shown[v]))) for v in ids}
        return {v: m.AdvertisedCohort(ids, [sent[u] for u in shown[v]], proofs[v]) for v in ids}

    def _check_shares(self, message: Any) -> None:
        """8.3."""
        peers = self.graph.neighbours(message.client_id)
        chosen = {v for v in peers if self.graph.chooses(message.client_id, v)}
        require(message.shares.keys() == peers and message.pair_secrets.keys() == chosen, "wrong-recipients")
        self.check_sizes(message)

    def _deliveries(self, ids: list[int]) -> dict[int, Any]:
        """8.4, of U2."""
        sent, deliveries = self.messages[1], {}
        for v in ids:
            senders = sorted(self.graph.neighbours(v) & self.sharers)
            secrets = {u: sent[u].pair_secrets[v] for u in senders if self.graph.chooses(u, v)}
            deliveries[v] = m.ShareDelivery(ids, {u: sent[u].shares[v] for u in senders}, secrets)
        return deliveries

    def _check_consistency(self, message: Any) -> None:
        """8.3."""
        text, identity = self.consistency_text(), self.roster[message.client_id]
        require(standards.verifies(identity, text, message.signature), "inconsistent-survivors")

    def _signatures(self, ids: list[int]) -> Any:
        """8.4, of those who signed."""
        return m.SignatureSet({v: self.messages[3][v].signature for v in ids[: self.parameters.quorum]})

    def _check_unmask(self, message: Any) -> None:
        """8.3."""
        owners = (self.graph.neighbours(message.client_id) | {message.client_id}) & self.sharers
        require(message.self_shares.keys() == owners & self.survivors, "wrong-recipients")
        require(message.key_shares.keys() == owners - self.survivors, "wrong-recipients")

    def _sum(self, _: list[int]) -> list[int]:
        """8.5."""
        vectors = zip(*(self.messages[2][v].vector for v in self.survivors), strict=True)
        return p.apply(list(map(sum, vectors)), self.corrections())

    def corrections(self) -> list[tuple[int, bytes]]:
        """Sign and seed of each mask that 8.5 adds; 8.9."""
        terms, lost = [], 0
        for v in sorted(self.sharers):
            try:
                terms += self._terms(v)
            except Refusal:
                lost += 1
        require(not lost, "lost")
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
                self.faults.setdefault(u, "sealed-garbage")
                raise Refusal("lost")
            terms.append(self.pair_mask(v, u, secret))
        return terms

    def _secret(self, owner: int, kind: str) -> bytes:
        """What is rebuilt of an owner, or who is at fault: 8.5, 8.6 and 8.8."""
        released = {v: getattr(message, f"{kind}_shares") for v, message in sorted(self.messages[4].items())}
        shares = {v: values[owner] for v, values in released.items() if owner in values}
        dealt, half = self.messages[1][owner], slice(0, 16) if kind == "key" else slice(16, 32)
        parcels = {**dealt.shares, owner: dealt.own_commitments}
        for _ in range(2):
            require(len(shares) >= self.parameters.threshold, "lost")
            secret = p.rebuild({self.graph.point(owner, v): s for v, s in shares.items()}, self.parameters.threshold)
            if kind == "self":
                fits = secret and digest("bcom", self.ctx, owner, secret) == dealt.commitment
            else:
                fits = secret and Pair(secret, self.parameters.agreement).public == self.messages[0][owner].s_public
            if fits:
                return secret
            for v, share in list(shares.items()):
                if digest("share-com", self.ctx, owner, v, kind, share)[:16] != parcels[v][half]:
                    self.faults.setdefault(v, "wrong-share")
                    del shares[v]
        self.faults.setdefault(owner, "inconsistent-dealing")
        raise Refusal("lost")

    def dealing(self, dealer: int, holder: int) -> Any:
        """9.1 and 9.6."""
        require(self.stage > 1, "out-of-order")
        require({dealer, holder} <= self.sharers and dealer in self.graph.neighbours(holder), "wrong-recipients")
        message = self.messages[1][dealer]
        if not self.is_signed(message, p.tree_root(self.leaves(message)), self.messages[0][dealer]):
            self.faults.setdefault(dealer, "unsigned-dealing")
        proof = p.tree_proof(self.leaves(message), {self.graph.holders(dealer).index(holder)})
        return m.Dealing(dealer, message.commitment, message.signature, message.possession, proof)

    def judge(self, complaint: Any) -> tuple[int, str]:
        """9.5 to 9.7: who is at fault, and of what."""
        complaint.check()
        require(self.stage > 1, "out-of-order")
        require(complaint.client_id in self.sharers & self.members, "dropped-client")
        client_id, fault = self._verdict(complaint, complaint.client_id, complaint.accused)
        self.faults.setdefault(client_id, fault)
        return client_id, fault

    def _verdict(self, complaint: Any, holder: int, dealer: int) -> tuple[int, str]:
        """The order of 9.7."""
        false, dealt = (holder, "false-complaint"), self.messages[1].get(dealer)
        name, usage, skip = m.PARTS[complaint.part]
        if not dealt or holder not in dealt.shares:
            return false
        if not self.is_signed(dealt, p.tree_root(self.leaves(dealt)), self.messages[0][dealer]):
            return dealer, "unsigned-dealing"
        sealed = (dealt.shares if complaint.part == "shares" else dealt.pair_secrets).get(holder)
        accused, own = (getattr(self.messages[0][v], name) for v in (dealer, holder))
        if sealed and standards.lift_8(accused) is None:
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
        seeded = (mlkem.keys(complaint.mlkem_seed)[0] if complaint.mlkem_seed else b"") == own[32:]
        mine, other, shared = standards.lift_8(own), standards.lift_8(accused), complaint.shared
        if not mine or not other or not standards.is_multiple(shared) or not seeded:
            return False
        sides = ((standards.BASE_8, mine), (other, standards.eightfold(shared)))
        return standards.holds(complaint.proof, partial(self.challenge, complaint, (own, accused)), *sides)
