"""The client of the secure sum, from `docs/reference/specification.md` alone: sections 7 and 9."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reference import messages as m
from reference import primitives as p
from reference import standards
from reference.primitives import Pair, Parameters, Refusal, digest, kdf, require, statement


class ReferenceClient(m.Party):
    """Section 7: `advertise` and `mask`, and `receive` for what the server sends."""

    def __init__(
        self, parameters: Parameters, client_id: int, identity: bytes, roster: Mapping[int, bytes],
        draw: Callable[[int], bytes], minima: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """2.3 and 2.4; `minima` are min-cohort and min-threshold."""
        parameters.check()
        require(client_id in parameters.cohort, "own-id-missing")
        require(set(parameters.cohort) <= roster.keys(), "off-roster")
        require(parameters.quorum - parameters.corrupt >= minima[0], "cohort-below-minimum")
        require(parameters.threshold >= minima[1], "threshold-below-minimum")
        super().__init__(parameters, roster)
        self.id, self.identity, self.draw = client_id, identity, draw
        self.answers: dict[str, tuple[bytes, Any]] = {}

    def receive(self, message: Any) -> Any:
        """6.3 and 6.6, then the step that a message is for: what it is due after, and how a second one is refused."""
        step, before, check = {
            "cohort": (self._share_keys, "advertise", "second-cohort"),
            "delivery": (self._receive_shares, "cohort", "second-delivery"),
            "survivors": (self._sign_survivors, "mask", "second-survivor-set"),
            "signatures": (self._unmask, "survivors", "second-unmask"),
        }[message.kind]
        require(before in self.answers, "out-of-order")
        message.check()
        if message.kind not in self.answers:
            answer = step(message)
            self.answers[message.kind] = message.digest(), answer
        received, answer = self.answers[message.kind]
        require(received == message.digest(), check)
        return answer

    def advertise(self) -> Any:
        """R0, 7.1; none after 9.9."""
        require("complain" not in self.answers, "out-of-order")
        if "advertise" not in self.answers:
            self.c, self.s = (Pair(self.draw(32), self.parameters.agreement) for _ in range(2))
            keys = (self.c.public, self.s.public)
            signature = standards.sign(self.identity, statement("adv", self.ctx, self.id, *keys))
            self.answers["advertise"] = b"", m.Advertisement(self.id, *keys, signature)
        return self.answers["advertise"][1]

    def _share_keys(self, message: Any) -> Any:
        """R1, 7.2."""
        ids, members = set(message.ids), {member.client_id: member for member in message.members}
        require(len(ids) >= self.parameters.quorum, "cohort-below-minimum")
        require(ids <= set(self.parameters.cohort), "off-roster")
        l1, graph = self.ring(ids, message.root())
        require(members.get(self.id) == self.answers["advertise"][1], "own-entry-altered")
        require(members.keys() == graph.neighbours(self.id) | {self.id}, "wrong-neighbours")
        self.check_advertisements(message.members)
        self.ids, self.members, self.l1, self.graph = ids, members, l1, graph
        return self._deal()

    def _deal(self) -> Any:
        """7.3 to 7.6."""
        t, holders, self.b = self.parameters.threshold, self.graph.holders(self.id), self.draw(32)
        points = [self.graph.point(self.id, v) for v in holders]
        both = [p.deal(secret, t, self.draw(49 * (t - 1)), points) for secret in (self.s.root, self.b)]
        texts = {v: key + own for v, key, own in zip(holders, *both, strict=True)}
        parcels, secrets, self.pair_secrets = {}, {}, {}
        for v, text in texts.items():
            ids, parcels[v] = (self.id, v), self.commitments(self.id, v, text)
            if v != self.id:
                parcels[v] += self.seal("share", self.c, self.members[v].c_public, ids, text)
            if v != self.id and self.graph.chooses(*ids):
                secret = self.pair_secrets[v] = kdf(self.s.root, self.ctx, "pair-secret", self.l1, *ids)
                secrets[v] = self.seal("pair-seal", self.s, self.members[v].s_public, ids, secret)
        self.shares, own = {self.id: texts[self.id]}, parcels.pop(self.id)
        possession = self._possession("c", self.c) + self._possession("s", self.s)
        answer = m.KeyShares(self.id, digest("bcom", self.ctx, self.id, self.b), own, parcels, secrets, b"", possession)
        text = self.dealing_text(answer, p.tree_root(self.leaves(answer)))
        return replace(answer, signature=standards.sign(self.identity, text))

    def _possession(self, part: str, pair: Pair) -> bytes:
        """3.6."""
        halves = [kdf(pair.root, self.ctx, "possession-nonce", self.id, part, half) for half in (0, 1)]
        k = int.from_bytes(b"".join(halves), "little")
        e = digest("possession", self.ctx, self.id, part, pair.public[:32], standards.multiple(k, standards.BASE_8))
        return standards.prove(k, e, pair.private)

    def _keys(self, part: str, peer: int) -> tuple[Pair, bytes]:
        """The own pair and the peer's public key of 9.2."""
        return self.c if part == "shares" else self.s, getattr(self.members[peer], m.PARTS[part][0])

    def _open(self, part: str, sender: int, sealed: bytes) -> bytes:
        """What a neighbour sealed, 7.7."""
        (pair, public), (_, usage, skip) = self._keys(part, sender), m.PARTS[part]
        shared = standards.x25519(pair.private, public[:32])
        text = self.unseal(usage, shared, pair.seeds, (sender, self.id), sealed[skip:])
        if text is None:
            raise Refusal("share-unsealing", sender, part)
        return text

    def _receive_shares(self, message: Any) -> None:
        """7.7."""
        sharers, graph = set(message.sharers), self.graph
        require(sharers <= self.ids, "sharers-not-advertised")
        require(self.id in sharers, "own-id-missing")
        require(len(sharers) >= self.parameters.quorum, "cohort-below-minimum")
        require(len(sharers & set(graph.holders(self.id))) >= self.parameters.threshold, "holders-below-threshold")
        self.check_sizes(message)
        senders = graph.neighbours(self.id) & sharers
        chosen = {v for v in senders if graph.chooses(v, self.id)}
        require(message.shares.keys() == senders and message.pair_secrets.keys() == chosen, "wrong-recipients")
        shares = {}
        for v, parcel in sorted(message.shares.items()):
            shares[v] = self._open("shares", v, parcel)
            if not self.is_committed(v, self.id, parcel, shares[v]):
                raise Refusal("uncommitted-share", v, "shares")
        secrets = {v: self._open("pair-secret", v, sealed) for v, sealed in sorted(message.pair_secrets.items())}
        self.sharers, self.senders = sharers, senders
        self.shares, self.pair_secrets = self.shares | shares, self.pair_secrets | secrets

    def masks(self) -> list[tuple[int, bytes]]:
        """Sign and seed of each mask of 7.8."""
        own = (1, kdf(self.b, self.ctx, "self", self.l1))
        return [own, *(self.pair_mask(self.id, v, self.pair_secrets[v]) for v in sorted(self.senders))]

    def mask(self, vector: Sequence[int]) -> list[int]:
        """R2, 7.8; once, 6.4."""
        require("delivery" in self.answers and "mask" not in self.answers, "out-of-order")
        require(len(vector) == self.parameters.words, "malformed")
        self.answers["mask"] = b"", None
        return p.apply(vector, self.masks())

    def _sign_survivors(self, message: Any) -> Any:
        """R3, 7.10."""
        survivors = set(message.survivors)
        require(survivors <= self.sharers, "survivors-not-sharers")
        require(self.id in survivors, "own-id-missing")
        require(len(survivors) >= self.parameters.quorum, "cohort-below-minimum")
        self.survivors = survivors
        return m.ConsistencySignature(self.id, standards.sign(self.identity, self.consistency_text()))

    def _unmask(self, message: Any) -> Any:
        """R4, 7.11."""
        signatures, text = message.signatures, self.consistency_text()
        require(signatures.keys() <= self.roster.keys(), "off-roster")
        require(signatures.keys() <= self.survivors, "signer-not-survivor")
        valid = sum(standards.verifies(self.roster[v], text, signature) for v, signature in signatures.items())
        require(valid >= self.parameters.quorum, "inconsistent-survivors")
        self_shares = {v: text[33:] for v, text in self.shares.items() if v in self.survivors}
        key_shares = {v: text[:33] for v, text in self.shares.items() if v not in self.survivors}
        del self.b, self.c, self.s, self.shares, self.pair_secrets
        return m.UnmaskShares(self.id, self_shares, key_shares)

    def complain(self, refusal: Refusal, message: Any, dealing: Any) -> Any:
        """9.1, 9.8 and 9.9, about what 7.7 refused."""
        dealing.check()
        dealer = dealing.client_id
        require(dealer in message.shares, "wrong-recipients")
        holders = self.graph.holders(dealer)
        leaf = digest("shares-leaf", self.id, message.shares[dealer], message.pair_secrets.get(dealer, b""))
        root = p.proven_root(len(holders), {holders.index(self.id): leaf}, dealing.proof)
        require(self.is_signed(dealing, root, self.members[dealer]) and dealer == refusal.dealer, "unsigned-dealing")
        self.answers = {"complain": (b"", self.accuse(dealer, refusal.part))}
        return self.answers["complain"][1]

    def accuse(self, dealer: int, part: str) -> Any:
        """9.2 to 9.4."""
        pair, public = self._keys(part, dealer)
        complaint = m.Complaint(self.id, dealer, part, bytes(32), bytes(64), pair.seeds)
        other = standards.lift_8(public)
        if other is None:
            return complaint
        k = int.from_bytes(self.draw(64), "little")
        complaint = replace(complaint, shared=standards.multiple(standards.factor(pair.private) // 8, other))
        nonces = (standards.multiple(k, standards.BASE_8), standards.multiple(k, other))
        e = self.challenge(complaint, (pair.public, public), *nonces)
        return replace(complaint, proof=standards.prove(k, e, pair.private))
