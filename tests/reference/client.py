"""The client of the secure sum, from `docs/reference/specification.md` alone: sections 7 and 9."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from reference import messages as m
from reference import primitives as p
from reference.primitives import Graph, Pair, Parameters, Refusal, digest, join_ids, kdf, require, statement


class ReferenceClient:
    """Section 7: one method a step."""

    def __init__(
        self,
        parameters: Parameters,
        client_id: int,
        identity: bytes,
        roster: Mapping[int, bytes],
        draw: Callable[[int], bytes],
        minima: tuple[int, int] = (0, 0),
    ) -> None:
        """Refuse what section 2 has a client refuse; `minima` are min-cohort and min-threshold."""
        parameters.check()
        require(client_id in parameters.cohort, "own-id-missing")
        require(set(parameters.cohort) <= roster.keys(), "off-roster")
        require(parameters.quorum - parameters.corrupt >= minima[0], "cohort-below-minimum")
        require(parameters.threshold >= minima[1], "threshold-below-minimum")
        self.parameters, self.ctx, self.id = parameters, parameters.ctx, client_id
        self.identity, self.roster, self.draw = identity, roster, draw
        self.answers: dict[str, tuple[bytes, object]] = {}

    def _answer(self, step: str, before: str, received: bytes, check: str) -> object | None:
        """The answer to a repeated message, 6.3."""
        if step in self.answers:
            require(self.answers[step][0] == received, check)
            return self.answers[step][1]
        require(before in self.answers, "out-of-order")
        return None

    def advertise(self) -> m.Advertisement:
        """R0."""
        require("leave" not in self.answers, "out-of-order")
        if "advertise" not in self.answers:
            self.c, self.s = (Pair(self.draw(32), self.parameters.agreement) for _ in range(2))
            keys = (self.c.public, self.s.public)
            signature = p.sign(self.identity, statement("adv", self.ctx, self.id, *keys))
            self.answers["advertise"] = b"", m.Advertisement(self.id, *keys, signature)
        return self.answers["advertise"][1]

    def share_keys(self, message: m.AdvertisedCohort) -> m.KeyShares:
        """R1."""
        require("advertise" in self.answers, "out-of-order")
        message.check()
        ids, members = message.ids, {member.client_id: member for member in message.members}
        if "share" in self.answers:
            return self._answer("share", "", message.digest(), "second-cohort")
        require(len(ids) >= self.parameters.quorum, "cohort-below-minimum")
        require(set(ids) <= set(self.parameters.cohort), "off-roster")
        l1 = digest("cohort", self.ctx, join_ids(ids), message.root())
        require(members.get(self.id) == self.answers["advertise"][1], "own-entry-altered")
        graph = Graph(digest("order", self.ctx, l1), ids, self.parameters.degree)
        require(members.keys() == graph.neighbours(self.id) | {self.id}, "wrong-neighbours")
        for member in members.values():
            member.verify(self.parameters, self.roster)
        publics = [public for member in members.values() for public in (member.c_public, member.s_public)]
        require(len(set(publics)) == len(publics), "duplicate-key")
        self.ids, self.members, self.l1, self.graph = set(ids), members, l1, graph
        answer = self._deal()
        self.answers["share"] = message.digest(), answer
        return answer

    def _seal(self, usage: str, pair: Pair, peer: bytes, receiver: int, text: bytes) -> bytes:
        """3.5."""
        ciphertext, secret = p.mlkem_encapsulate(peer[32:], os.urandom(32)) if pair.seeds else (b"", b"")
        agreed = secret + pair.secret(peer, b"")
        key, ad = p.sealing(usage, agreed, self.ctx, self.l1, ciphertext, (self.id, receiver))
        return ciphertext + p.seal(key, text, ad)

    def _open(self, usage: str, sender: int, sealed: bytes) -> bytes | None:
        """The text of what a neighbour sealed."""
        member, size = self.members[sender], p.ciphertext_size(self.parameters.agreement)
        pair, peer = (self.c, member.c_public) if usage == "share" else (self.s, member.s_public)
        agreed = pair.secret(peer, sealed[:size])
        key, ad = p.sealing(usage, agreed, self.ctx, self.l1, sealed[:size], (sender, self.id))
        return p.unseal(key, sealed[size:], ad)

    def _deal(self) -> m.KeyShares:
        """7.3 to 7.6."""
        t, holders = self.parameters.threshold, self.graph.holders(self.id)
        points = [self.graph.point(self.id, v) for v in holders]
        self.b = self.draw(32)
        both = [p.deal(secret, t, self.draw(49 * (t - 1)), points) for secret in (self.s.root, self.b)]
        dealt = dict(zip(holders, zip(*both, strict=True), strict=True))
        commitments = {
            v: b"".join(map(p.share_commitment, [self.ctx] * 2, [self.id] * 2, [v] * 2, ("key", "self"), dealt[v]))
            for v in holders
        }
        neighbours = sorted(self.graph.neighbours(self.id))
        self.pair_secrets = {
            v: kdf(self.s.root, self.ctx, "pair-secret", self.l1, self.id, v)
            for v in neighbours
            if self.graph.chooses(self.id, v)
        }
        shares = {
            v: commitments[v] + self._seal("share", self.c, self.members[v].c_public, v, b"".join(dealt[v]))
            for v in neighbours
        }
        secrets = {
            v: self._seal("pair-seal", self.s, self.members[v].s_public, v, secret)
            for v, secret in self.pair_secrets.items()
        }
        self.shares = {self.id: b"".join(dealt[self.id])}
        answer = m.KeyShares(
            self.id, digest("bcom", self.ctx, self.id, self.b), commitments[self.id], shares, secrets, b""
        )
        text = answer.statement(self.ctx, self.l1, self.graph)
        answer.signature = p.sign(self.identity, text)
        return answer

    def receive_shares(self, message: m.ShareDelivery) -> None:
        """7.7."""
        require("share" in self.answers, "out-of-order")
        message.check()
        if self._answer("receive", "share", message.digest(), "second-delivery"):
            return
        sharers, graph = set(message.sharers), self.graph
        require(sharers <= self.ids, "sharers-not-advertised")
        require(self.id in sharers, "own-id-missing")
        require(len(sharers) >= self.parameters.quorum, "cohort-below-minimum")
        require(len(sharers & set(graph.holders(self.id))) >= self.parameters.threshold, "holders-below-threshold")
        m.check_sealed(message.shares, message.pair_secrets, self.parameters.agreement)
        senders = graph.neighbours(self.id) & sharers
        require(message.shares.keys() == senders, "wrong-recipients")
        require(message.pair_secrets.keys() == {v for v in senders if graph.chooses(v, self.id)}, "wrong-recipients")
        shares, secrets = {}, {}
        for v, sealed in sorted(message.shares.items()):
            text = self._open("share", v, sealed[32:])
            if text is None:
                raise Refusal("share-unsealing", v, "shares")
            m.check_dealt(self.ctx, v, self.id, sealed, text)
            shares[v] = text
        for v, sealed in sorted(message.pair_secrets.items()):
            secret = self._open("pair-seal", v, sealed)
            if secret is None:
                raise Refusal("share-unsealing", v, "pair-secret")
            secrets[v] = secret
        self.sharers, self.senders = sharers, senders
        self.shares |= shares
        self.pair_secrets |= secrets
        self.answers["receive"] = message.digest(), True

    def masks(self) -> list[tuple[int, bytes]]:
        """Sign and seed of each mask of 7.8."""
        streams = [(1, kdf(self.b, self.ctx, "self", self.l1))]
        for v in sorted(self.senders):
            low, high = min(self.id, v), max(self.id, v)
            seed = kdf(self.pair_secrets[v], self.ctx, "pair", self.l1, low, high)
            streams.append((1 if self.id < v else -1, seed))
        return streams

    def mask(self, vector: Sequence[int]) -> list[int]:
        """R2."""
        require("receive" in self.answers and "mask" not in self.answers, "out-of-order")
        require(len(vector) == self.parameters.words, "malformed")
        for sign, seed in self.masks():
            vector = p.add(vector, sign, p.mask(seed, self.parameters.words))
        self.answers["mask"] = b"", True
        return list(vector)

    def sign_survivors(self, message: m.Survivors) -> m.ConsistencySignature:
        """R3."""
        require("mask" in self.answers, "out-of-order")
        message.check()
        answer, survivors = self._answer("sign", "mask", message.digest(), "second-survivor-set"), message.survivors
        if answer:
            return answer
        require(set(survivors) <= self.sharers, "survivors-not-sharers")
        require(self.id in survivors, "own-id-missing")
        require(len(survivors) >= self.parameters.quorum, "cohort-below-minimum")
        self.survivors = set(survivors)
        text = m.consistency(self.parameters, self.l1, self.sharers, survivors)
        answer = m.ConsistencySignature(self.id, p.sign(self.identity, text))
        self.answers["sign"] = message.digest(), answer
        return answer

    def unmask(self, message: m.SignatureSet) -> m.UnmaskShares:
        """R4."""
        require("sign" in self.answers, "out-of-order")
        message.check()
        answer, signatures = self._answer("unmask", "sign", message.digest(), "second-unmask"), message.signatures
        if answer:
            return answer
        require(signatures.keys() <= self.roster.keys(), "off-roster")
        require(signatures.keys() <= self.survivors, "signer-not-survivor")
        text = m.consistency(self.parameters, self.l1, self.sharers, self.survivors)
        valid = sum(p.verifies(self.roster[v], text, signature) for v, signature in signatures.items())
        require(valid >= self.parameters.quorum, "inconsistent-survivors")
        self_shares = {v: text[33:] for v, text in self.shares.items() if v in self.survivors}
        key_shares = {v: text[:33] for v, text in self.shares.items() if v not in self.survivors}
        answer = m.UnmaskShares(self.id, self_shares, key_shares)
        self.answers["unmask"] = message.digest(), answer
        del self.b, self.c, self.s, self.shares, self.pair_secrets
        return answer

    def complain(self, refusal: Refusal, message: m.ShareDelivery, dealing: m.Dealing) -> m.Complaint:
        """9.1 to 9.4, about what `receive_shares` refused."""
        dealing.check()
        dealer = dealing.client_id
        require(dealer in message.shares, "wrong-recipients")
        holders = self.graph.holders(dealer)
        leaf = m.parcel_leaf(self.id, message.shares[dealer], message.pair_secrets.get(dealer, b""))
        root = p.proven_root(len(holders), {holders.index(self.id): leaf}, dealing.proof)
        text = statement("shares", self.ctx, self.l1, dealer, dealing.commitment, root)
        signed = p.verifies(self.roster[dealer], text, dealing.signature)
        require(signed and dealer == refusal.dealer, "unsigned-dealing")
        complaint = self.accuse(dealer, refusal.part)
        self.answers = {"leave": (b"", complaint)}
        return complaint

    def accuse(self, dealer: int, part: str) -> m.Complaint:
        """9.2 to 9.4."""
        member, shares = self.members[dealer], part == "shares"
        pair, public = (self.c, member.c_public) if shares else (self.s, member.s_public)
        complaint = m.Complaint(self.id, dealer, part, bytes(32), bytes(64), pair.seeds)
        other = p.lift(public)
        if other is None:
            return complaint
        a, other = int.from_bytes(pair.private, "little") & 2**255 - 8 | 2**254, p.times(8, other)
        if p.times(a, p.BASE)[0] % 2:
            a = -a
        k = int.from_bytes(self.draw(64), "little") % p.ORDER
        complaint.shared = p.encode_point(p.times(a // 8 % p.ORDER, other))
        nonces = (p.times(k, p.BASE_8), p.times(k, other))
        e = complaint.challenge(self.ctx, self.l1, (pair.public, public), nonces)
        s = (k + int.from_bytes(e, "little") * a) % p.ORDER
        complaint.proof = e + s.to_bytes(32, "little")
        return complaint
