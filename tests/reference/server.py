"""The server of the secure sum, from `docs/reference/specification.md` alone: sections 8 and 9."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reference import messages as m
from reference import primitives as p
from reference.primitives import Graph, Pair, Parameters, Refusal, digest, join_ids, kdf, require

STAGES = 5


class ReferenceServer:
    """Section 8: one method a message, and one that closes each stage."""

    def __init__(self, parameters: Parameters, roster: Mapping[int, bytes]) -> None:
        """Wait for advertisements."""
        self.parameters, self.ctx, self.roster = parameters, parameters.ctx, roster
        self.stage = 0
        self.messages: list[dict[int, Any]] = [{} for _ in range(STAGES)]
        self.digests: list[dict[int, bytes]] = [{} for _ in range(STAGES)]
        self.members: set[int] = set(parameters.cohort)
        self.faults: dict[int, str] = {}

    def _is_new(self, stage: int, message: m.Message) -> bool:
        """8.1 and 6.3: whether a message is not a repeated one."""
        message.check()
        sender, received = message.client_id, message.digest()
        require(sender in self.parameters.cohort, "off-roster")
        require(stage <= self.stage, "out-of-order")
        require(sender in self.members, "late-input" if stage == 2 else "dropped-client")
        require(self.digests[stage].get(sender, received) == received, "conflict")
        return sender not in self.digests[stage]

    def _store(self, stage: int, message: m.Message) -> None:
        self.digests[stage][message.client_id], self.messages[stage][message.client_id] = message.digest(), message

    def _close(self, least: int) -> list[int]:
        """8.2."""
        answers = self.messages[self.stage]
        require(len(answers) >= least, "too-few")
        self.members, self.stage = set(answers), self.stage + 1
        return sorted(answers)

    def receive_advertisement(self, message: m.Advertisement) -> None:
        """Stage 1."""
        message.check()
        if self._is_new(0, message):
            message.verify(self.parameters, self.roster)
            publics = [key for a in (*self.messages[0].values(), message) for key in (a.c_public, a.s_public)]
            require(len(set(publics)) == len(publics), "duplicate-key")
            self._store(0, message)

    def close_advertisements(self) -> dict[int, m.AdvertisedCohort]:
        """U1, and what 8.4 sends."""
        ids = self.ids = self._close(self.parameters.quorum)
        leaves = [self.messages[0][v].digest() for v in ids]
        self.l1 = digest("cohort", self.ctx, join_ids(ids), p.tree_root(leaves))
        self.graph = Graph(digest("order", self.ctx, self.l1), ids, self.parameters.degree)
        cohorts = {}
        for v in ids:
            entries = sorted(self.graph.neighbours(v) | {v})
            proof = p.tree_proof(leaves, [ids.index(u) for u in entries])
            cohorts[v] = m.AdvertisedCohort(ids, [self.messages[0][u] for u in entries], proof)
        return cohorts

    def receive_shares(self, message: m.KeyShares) -> None:
        """Stage 2."""
        if self._is_new(1, message):
            neighbours = self.graph.neighbours(message.client_id)
            peers = {v for v in neighbours if self.graph.chooses(message.client_id, v)}
            require(message.shares.keys() == neighbours, "wrong-recipients")
            require(message.pair_secrets.keys() == peers, "wrong-recipients")
            m.check_sealed(message.shares, message.pair_secrets, self.parameters.agreement)
            self._store(1, message)

    def close_shares(self) -> dict[int, m.ShareDelivery]:
        """U2, and what 8.4 sends."""
        sharers = self.sharers = self._close(self.parameters.quorum)
        deliveries = {}
        for v in sharers:
            senders = sorted(self.graph.neighbours(v) & set(sharers))
            shares = {u: self.messages[1][u].shares[v] for u in senders}
            secrets = {u: self.messages[1][u].pair_secrets[v] for u in senders if self.graph.chooses(u, v)}
            deliveries[v] = m.ShareDelivery(sharers, shares, secrets)
        return deliveries

    def dealing(self, dealer: int, holder: int) -> m.Dealing:
        """9.1 and 9.6."""
        message = self.messages[1][dealer]
        self._is_signed(message)
        proof = p.tree_proof(message.leaves(self.graph), [self.graph.holders(dealer).index(holder)])
        return m.Dealing(dealer, message.commitment, message.signature, proof)

    def _is_signed(self, message: m.KeyShares) -> bool:
        """9.6."""
        dealer, text = message.client_id, message.statement(self.ctx, self.l1, self.graph)
        if not p.verifies(self.roster[dealer], text, message.signature):
            self.faults.setdefault(dealer, "unsigned-dealing")
            return False
        return True

    def receive_input(self, message: m.MaskedVector) -> None:
        """Stage 3."""
        require(len(message.vector) == self.parameters.words, "malformed")
        if self._is_new(2, message):
            self._store(2, message)

    def close_inputs(self) -> m.Survivors:
        """U3."""
        self.survivors = self._close(self.parameters.quorum)
        return m.Survivors(self.survivors)

    def receive_consistency(self, message: m.ConsistencySignature) -> None:
        """Stage 4."""
        if self._is_new(3, message):
            text = m.consistency(self.parameters, self.l1, self.sharers, self.survivors)
            signed = p.verifies(self.roster[message.client_id], text, message.signature)
            require(signed, "inconsistent-survivors")
            self._store(3, message)

    def close_consistency(self) -> m.SignatureSet:
        """The signatures of 8.4."""
        signers = self._close(self.parameters.quorum)[: self.parameters.quorum]
        return m.SignatureSet({v: self.messages[3][v].signature for v in signers})

    def receive_unmask(self, message: m.UnmaskShares) -> None:
        """Stage 5."""
        if self._is_new(4, message):
            sender = message.client_id
            owners = (self.graph.neighbours(sender) | {sender}) & set(self.sharers)
            require(message.self_shares.keys() == owners & set(self.survivors), "wrong-recipients")
            require(message.key_shares.keys() == owners - set(self.survivors), "wrong-recipients")
            self._store(4, message)

    def _secret(self, owner: int, kind: str) -> bytes:
        """What is rebuilt of an owner, or who is at fault, 8.5 and 8.6."""
        released = {
            v: message.self_shares if kind == "self" else message.key_shares for v, message in self.messages[4].items()
        }
        shares = {v: part[owner] for v, part in sorted(released.items()) if owner in part}
        secret = self._fitting(owner, kind, shares)
        if secret is None:
            dealer, begin = self.messages[1][owner], 16 * (kind == "self")
            for v, share in list(shares.items()):
                commitment = (dealer.own_commitments if v == owner else dealer.shares[v])[begin : begin + 16]
                if p.share_commitment(self.ctx, owner, v, kind, share) != commitment:
                    self.faults.setdefault(v, "wrong-share")
                    del shares[v]
            secret = self._fitting(owner, kind, shares)
        if secret is None:
            self.faults.setdefault(owner, "inconsistent-dealing")
            raise Refusal("lost", owner)
        return secret

    def _fitting(self, owner: int, kind: str, shares: Mapping[int, bytes]) -> bytes | None:
        """The secret that all shares give and that is what its owner published."""
        require(len(shares) >= self.parameters.threshold, "lost")
        secret = p.rebuild(
            {self.graph.point(owner, v): share for v, share in shares.items()}, self.parameters.threshold
        )
        if secret is None:
            return None
        if kind == "self":
            fits = digest("bcom", self.ctx, owner, secret) == self.messages[1][owner].commitment
        else:
            fits = Pair(secret, self.parameters.agreement).public == self.messages[0][owner].s_public
        return secret if fits else None

    def _terms(self, v: int) -> list[tuple[int, bytes]]:
        """What 8.5 adds for one client of U2."""
        if v in self.survivors:
            return [(-1, kdf(self._secret(v, "self"), self.ctx, "self", self.l1))]
        pair, terms = Pair(self._secret(v, "key"), self.parameters.agreement), []
        for u in sorted(self.graph.neighbours(v) & set(self.survivors)):
            if self.graph.chooses(v, u):
                secret = kdf(pair.root, self.ctx, "pair-secret", self.l1, v, u)
            else:
                sealed, public = self.messages[1][u].pair_secrets[v], self.messages[0][u].s_public
                secret = self._open("pair-seal", sealed, pair.seeds, pair.secret(public, b""), (u, v))
                if secret is None:
                    self.faults.setdefault(u, "sealed-garbage")
                    raise Refusal("lost", u)
            terms.append((1 if v < u else -1, kdf(secret, self.ctx, "pair", self.l1, min(u, v), max(u, v))))
        return terms

    def corrections(self) -> list[tuple[int, bytes]]:
        """Sign and seed of each mask that 8.5 adds; every fault is known before the exchange ends for one."""
        terms, lost = [], []
        for v in self.sharers:
            try:
                terms += self._terms(v)
            except Refusal as refusal:
                lost.append(refusal)
        if lost:
            raise lost[0]
        return terms

    def close_unmask(self) -> list[int]:
        """The sum of 8.5."""
        self._close(self.parameters.threshold)
        total = [0] * self.parameters.words
        for v in self.survivors:
            total = p.add(total, 1, self.messages[2][v].vector)
        for sign, seed in self.corrections():
            total = p.add(total, sign, p.mask(seed, self.parameters.words))
        return total

    def _open(self, usage: str, sealed: bytes, seeds: bytes, shared: bytes, ids: tuple[int, int]) -> bytes | None:
        """The text of 3.5, with the receiver's ML-KEM seeds and X25519's secret."""
        size = p.ciphertext_size(self.parameters.agreement)
        if size:
            private = p.mlkem_keys(seeds[:32], seeds[32:])[1]
            shared = p.mlkem_decapsulate(private, sealed[:size]) + shared
        key, ad = p.sealing(usage, shared, self.ctx, self.l1, sealed[:size], ids)
        return p.unseal(key, sealed[size:], ad)

    def judge(self, complaint: m.Complaint) -> tuple[int, str]:
        """9.5: who is at fault, and of what."""
        complaint.check()
        ids, shares = (complaint.accused, complaint.client_id), complaint.part == "shares"
        require(ids[1] in self.messages[1] and ids[1] in self.members, "dropped-client")
        dealt = self.messages[1].get(ids[0])
        if not dealt or ids[1] not in dealt.shares:
            return self._blame(ids[1], "false-complaint")
        if not self._is_signed(dealt):
            return ids[0], "unsigned-dealing"
        return self._blame(*self._verdict(complaint, ids, dealt, shares=shares))

    def _blame(self, client_id: int, fault: str) -> tuple[int, str]:
        self.faults.setdefault(client_id, fault)
        return client_id, fault

    def _verdict(
        self, complaint: m.Complaint, ids: tuple[int, int], dealt: m.KeyShares, *, shares: bool
    ) -> tuple[int, str]:
        """9.5, of what was dealt and signed."""
        false, parts = (ids[1], "false-complaint"), dealt.shares if shares else dealt.pair_secrets
        if ids[1] not in parts:
            return false
        keys = [self.messages[0][v] for v in ids]
        accused, own = (key.c_public if shares else key.s_public for key in keys)
        if p.lift(accused) is None:
            return ids[0], "key-off-curve"
        if not self._is_proven(complaint, own, accused):
            return false
        shared = p.montgomery(p.decode_point(complaint.shared))
        sealed = parts[ids[1]]
        usage, skip = ("share", 32) if shares else ("pair-seal", 0)
        text = self._open(usage, sealed[skip:], complaint.mlkem_seed, shared, ids)
        if text is None:
            return ids[0], "sealed-garbage"
        try:
            if shares:
                m.check_dealt(self.ctx, *ids, sealed, text)
        except Refusal:
            return ids[0], "inconsistent-dealing"
        return false

    def _is_proven(self, complaint: m.Complaint, own: bytes, accused: bytes) -> bool:
        """The checks of 9.5."""
        mine, other, shared = p.lift(own), p.lift(accused), p.decode_point(complaint.shared)
        e, s = complaint.proof[:32], int.from_bytes(complaint.proof[32:], "little")
        if mine is None or other is None or shared is None or s >= p.ORDER:
            return False
        seeds = complaint.mlkem_seed
        if len(seeds) != 64 * (len(own) > 32) or (seeds and p.mlkem_keys(seeds[:32], seeds[32:])[0] != own[32:]):
            return False
        if p.times(p.ORDER, shared) != p.NEUTRAL:
            return False
        number = int.from_bytes(e, "little")
        nonces = [
            p.plus(p.times(s, base), p.negative(p.times(number, p.times(8, result))))
            for base, result in ((p.BASE_8, mine), (p.times(8, other), shared))
        ]
        publics = (own, accused)
        return complaint.challenge(self.ctx, self.l1, publics, nonces) == e
