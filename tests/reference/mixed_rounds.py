"""Exchanges of our implementation and the reference's, side by side, in which each party speaks for one of the two.

    python tests/reference/mixed_rounds.py --rounds 10000 --json

Every message, true or a lie, goes to both implementations of its receiver. They have to answer with the same bytes, or
to refuse it with the same check.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from reference import messages as m
from reference import primitives as p
from reference import standards
from reference.client import ReferenceClient
from reference.server import ReferenceServer

from fedcore import errors, secagg

FOREIGN = 2**40
STAGES = ("advertisements", "shares", "inputs", "consistency", "unmask")
DEALER_CHECKS = {"share-unsealing", "uncommitted-share"}


class DisagreementError(Exception):
    """The two implementations do not say the same."""


def plain(value: Any) -> Any:
    """A message of either implementation as the reference's, with tuples."""
    if is_dataclass(value) and not isinstance(value, type):
        kind, values = getattr(m, type(value).__name__), {f.name: getattr(value, f.name) for f in fields(value)}
        known = {f.name: plain(values.pop(f.name)) for f in fields(kind)}
        if any(values.values()):
            raise DisagreementError(f"{kind.__name__} of an option that the reference leaves out: {values}")
        return kind(**known)
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(plain, value))
    return str(value) if isinstance(value, str) else value


def our(value: Any) -> Any:
    """A message of the reference as ours."""
    if isinstance(value, m.Complaint):
        return secagg.Complaint(**asdict(value) | {"part": secagg.ComplaintSubject(value.part)})
    if is_dataclass(value):
        return getattr(secagg, type(value).__name__)(**{f.name: our(getattr(value, f.name)) for f in fields(value)})
    return tuple(map(our, value)) if isinstance(value, tuple) else value


class OurClient:
    """`ClientSession` with the reference's methods."""

    def __init__(self, session: secagg.ClientSession) -> None:
        self.session = session

    def advertise(self) -> Any:
        return self.session.advertise()

    def share_keys(self, message: Any) -> Any:
        return self.session.share_keys(our(message))

    def receive_shares(self, message: Any) -> Any:
        return self.session.receive_shares(our(message))

    def mask(self, vector: Sequence[int]) -> list[int]:
        words = np.array(vector, dtype=np.uint64)
        self.session.mask(words)
        return words.tolist()

    def sign_survivors(self, message: Any) -> Any:
        return self.session.sign_survivors(our(message))

    def unmask(self, message: Any) -> Any:
        return self.session.unmask(our(message))

    def complain(self, _: p.Refusal, message: Any, dealing: Any) -> Any:
        return self.session.complain(our(message), our(dealing))


class OurServer:
    """`ServerRound` with the reference's methods."""

    def __init__(self, parameters: secagg.RoundParameters, roster: Mapping[int, bytes]) -> None:
        self.round = secagg.ServerRound(parameters=parameters, roster=roster)
        self.words: dict[int, Any] = {}

    def receive_advertisements(self, message: Any) -> None:
        self.round.receive_advertisement(our(message))

    def close_advertisements(self) -> Any:
        self.round.close_stage()
        return {v: self.round.advertised(v) for v in sorted(self.round.expected)}

    def receive_shares(self, message: Any) -> None:
        self.round.receive_shares(our(message))

    def close_shares(self) -> Any:
        self.round.close_stage()
        return {v: self.round.delivery(v) for v in sorted(self.round.expected)}

    def receive_inputs(self, message: Any) -> None:
        words = np.array(message.vector, dtype=np.uint64)
        self.round.receive_input(message.client_id, hashlib.sha256(words.tobytes()).digest())
        self.words[message.client_id] = words

    def close_inputs(self) -> Any:
        self.round.close_stage()
        return self.round.survivors()

    def receive_consistency(self, message: Any) -> None:
        self.round.receive_consistency(our(message))

    def close_consistency(self) -> Any:
        self.round.close_stage()
        return self.round.signatures()

    def receive_unmask(self, message: Any) -> None:
        self.round.receive_unmask(our(message))

    def close_unmask(self) -> list[int]:
        self.round.close_stage()
        total = np.sum([self.words[v] for v in self.round.survivors().survivors], axis=0, dtype=np.uint64)
        secagg.apply_masks(total, self.round.mask_terms())
        return total.tolist()

    def dealing(self, dealer: int, holder: int) -> Any:
        return self.round.dealing(holder, dealer)

    def judge(self, message: Any) -> tuple[int, str]:
        verdict = self.round.judge(our(message))
        return verdict.client_id, str(verdict.fault)


class TheirClient(ReferenceClient):
    """The reference's client, with a name for each message."""

    share_keys = receive_shares = sign_survivors = unmask = ReferenceClient.receive


class TheirServer(ReferenceServer):
    """The reference's server, with a name for each message."""

    receive_advertisements = receive_shares = receive_inputs = ReferenceServer.receive
    receive_consistency = receive_unmask = ReferenceServer.receive
    close_advertisements = close_shares = close_inputs = close_consistency = close_unmask = ReferenceServer.close


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """The answer, or the check that refuses."""
    try:
        return "answer", plain(call())
    except p.Refusal as refusal:
        return "refused", (refusal.check, refusal.dealer if refusal.check in DEALER_CHECKS else None)
    except errors.ProtocolViolation as refusal:
        return "refused", (str(refusal.check), refusal.peer if refusal.check in DEALER_CHECKS else None)
    except errors.IllegalTransition:
        return "refused", ("out-of-order", None)
    except errors.ConflictingMessage:
        return "refused", ("conflict", None)
    except errors.CohortTooSmall:
        return "refused", ("too-few", None)
    except errors.UnmaskFailed:
        return "refused", ("lost", None)


def determined(answer: Any) -> Any:
    """What is the same in each implementation: all but what ML-KEM's encapsulation and what follows from it."""
    if isinstance(answer, m.KeyShares) and any(len(sealed) > 114 for sealed in answer.shares.values()):
        shares = {v: sealed[:32] + bytes(len(sealed) - 32) for v, sealed in answer.shares.items()}
        secrets = {v: bytes(len(sealed)) for v, sealed in answer.pair_secrets.items()}
        return replace(answer, shares=shares, pair_secrets=secrets, signature=bytes(64))
    return answer


class Party:
    """Both implementations of one party; what it says is what one of them does."""

    def __init__(self, name: str, pair: tuple[Any, Any], voice: int, tally: Counter[str]) -> None:
        self.name, self.pair, self.voice, self.tally = name, pair, voice, tally

    def ask(self, method: str, *arguments: Any) -> tuple[str, Any]:
        """The outcome that both have."""
        outcomes = [outcome(lambda one=one: getattr(one, method)(*arguments)) for one in self.pair]
        self.tally["messages"] += 1
        if outcomes[0][0] == "refused":
            self.tally[f"refused: {outcomes[0][1][0]}"] += 1
        ours, theirs = ((kind, determined(answer)) for kind, answer in outcomes)
        if ours != theirs:
            raise DisagreementError(f"{self.name} {method}: ours {outcomes[0]}, reference {outcomes[1]}: {arguments}")
        return outcomes[self.voice]


def drawing(seed: str) -> Callable[[int], bytes]:
    """Seeded randomness."""
    calls = iter(range(10**6))
    return lambda size: hashlib.shake_256(f"{seed}/{next(calls)}".encode()).digest(size)


class Liar:
    """Changes one thing in a message."""

    def __init__(self, random: Random, ids: Sequence[int]) -> None:
        self.random, self.ids = random, ids

    def change(self, value: Any) -> Any:
        """A value of the same type, hardly ever the same."""
        random = self.random
        if is_dataclass(value):
            names = [f.name for f in fields(value) if f.name not in {"part", "vector"}]
            name = random.choice(names)
            return replace(value, **{name: self.change(getattr(value, name))})
        if isinstance(value, bytes):
            return self._bytes(value)
        if isinstance(value, int):
            return random.choice([*self.ids, FOREIGN, 0])
        if isinstance(value, Mapping):
            return self._map(dict(value))
        return self._list(list(value))

    def _bytes(self, value: bytes) -> bytes:
        kind = self.random.randrange(6)
        if kind == 0 or not value:
            return self.random.choice([value[:-1], value + b"\0", value[:32], bytes(64)])
        if kind == 1:
            return bytes(len(value))
        return self.flip(value)

    def flip(self, value: bytes) -> bytes:
        """One bit changed."""
        position = self.random.randrange(len(value))
        return value[:position] + bytes([value[position] ^ 1 << self.random.randrange(8)]) + value[position + 1 :]

    def _map(self, value: dict[int, Any]) -> dict[int, Any]:
        kind, keys = self.random.randrange(5), list(value)
        if kind == 0 and keys:
            del value[self.random.choice(keys)]
        elif kind == 1 and keys:
            value[self.random.choice([*self.ids, FOREIGN, 0])] = value[self.random.choice(keys)]
        elif kind == 2 and len(keys) > 1:
            a, b = self.random.sample(keys, 2)
            value[a], value[b] = value[b], value[a]
        elif keys:
            key = self.random.choice(keys)
            value[key] = self.change(value[key])
        return value

    def _list(self, value: list[Any]) -> tuple[Any, ...]:
        kind, random = self.random.randrange(6), self.random
        numbers = bool(value) and isinstance(value[0], int)
        if kind == 0 and value:
            value.remove(random.choice(value))
        elif kind == 1:
            value.append(random.choice(value) if value and not numbers else random.choice([*self.ids, FOREIGN]))
            value = sorted(value) if numbers else [part for part in value if not isinstance(part, int)] + [bytes(32)]
            value = value if numbers or not any(is_dataclass(part) for part in value) else value[:-1]
        elif kind == 2 and len(value) > 1:
            random.shuffle(value)
        elif kind == 3 and value and is_dataclass(value[0]):
            a, b = random.randrange(len(value)), random.randrange(len(value))
            value[a] = replace(value[a], signature=value[b].signature)
        elif value:
            position = random.randrange(len(value))
            value[position] = self.change(value[position])
        return tuple(value)


class MixedRound:
    """One exchange; all that happens in it follows from its seed."""

    def __init__(self, seed: int, lies: float = 0.1) -> None:
        self.random, self.seed, self.lies = Random(seed), seed, lies
        self.tally: Counter[str] = Counter()
        self.parameters, self.ours = self._parameters()
        self.ids = self.parameters.cohort
        seeds = {v: hashlib.sha256(f"identity {v}".encode()).digest() for v in self.ids}
        self.identities, self.roster = seeds, {v: standards.public_identity(key) for v, key in seeds.items()}
        self.liar = Liar(self.random, list(self.ids))
        n, graph = len(self.ids), "full" if self.parameters.degree == len(self.ids) - 1 else "ring"
        self.tally.update([f"cohort of {n:02}", f"graph: {graph}", f"agreement: {self.parameters.agreement}"])
        self.server = self._party("server", (OurServer(self.ours, self.roster), TheirServer(*self._public())))
        self.clients = {v: self._client(v) for v in self.ids}
        words = self.parameters.words
        self.vectors = {v: [self.random.getrandbits(64) for _ in range(words)] for v in self.ids}
        self.history: list[tuple[str, Any]] = []
        self.spoiled = False
        self.thief: int | None = None

    def _public(self) -> tuple[p.Parameters, Mapping[int, bytes]]:
        return self.parameters, self.roster

    def _party(self, name: str, pair: tuple[Any, Any]) -> Party:
        return Party(f"seed {self.seed}: {name}", pair, self.random.randrange(2), self.tally)

    def _client(self, v: int) -> Party:
        names = {"parameters": self.ours, "client_id": v, "roster": self.roster, "min_cohort": 0, "min_threshold": 0}
        identity = Ed25519PrivateKey.from_private_bytes(self.identities[v])
        draws = [drawing(f"{self.seed} {v}") for _ in range(2)]
        minima = [self.random.choice([0, 0, 0, 0, 5]) for _ in range(2)]
        for least in (minima, [0, 0]):
            names |= dict(zip(("min_cohort", "min_threshold"), least, strict=True))
            try:
                ours = OurClient(secagg.ClientSession(identity=identity, randomness=draws[0], **names))
                check = ""
            except errors.ProtocolViolation as refusal:
                check = str(refusal.check)
            try:
                theirs = TheirClient(self.parameters, v, self.identities[v], self.roster, draws[1], minima=tuple(least))
                other = ""
            except p.Refusal as refusal:
                other = refusal.check
            if check != other:
                raise DisagreementError(f"seed {self.seed}: owner's minima {least}: ours {check}, reference {other}")
            if not check:
                break
        return self._party(f"client {v}", (ours, theirs))

    def _parameters(self) -> tuple[p.Parameters, secagg.RoundParameters]:
        """Parameters that both accept, out of some that both refuse."""
        random = self.random
        hybrid, ring = random.random() < 0.06, random.random() < 0.5
        while True:
            n = random.randint(3, 5) if hybrid else random.randint(3, 12)
            cohort = tuple(sorted(random.sample(range(0 if self._maybe(0.1) else 1, 40), n)))
            values: dict[str, Any] = {
                "federation": "mixed", "run": f"run {self.seed}" if self._maybe(0.95) else "",
                "round": random.randrange(5), "cohort": cohort,
                "quorum": min(random.randint(n // 2, n) for _ in range(2)),
                "degree": random.randint(1, n - 1) if ring else n - 1,
                "threshold": random.randint(1, n), "corrupt": random.choice([0, 0, 0, 1, 2]),
                "agreement": p.HYBRID if hybrid else "x25519", "words": random.choice([*range(1, 10), 0]),
                "encoding": random.randbytes(3), "roster_hash": random.randbytes(32),
                "model_hash": random.randbytes(32), "task_hash": random.randbytes(32),
            }  # fmt: skip
            theirs, accepts = p.Parameters(**values), [True, True]
            try:
                agreement = secagg.Agreement(values["agreement"])
                ours = secagg.RoundParameters.from_peer(**values | {"agreement": agreement})
            except errors.ProtocolViolation:
                accepts[0] = False
            try:
                theirs.check()
            except p.Refusal:
                accepts[1] = False
            self.tally["parameters"] += 1
            if accepts[0] != accepts[1]:
                raise DisagreementError(f"seed {self.seed}: parameters {values}: ours, reference {accepts}")
            if accepts[0]:
                return theirs, ours

    def _maybe(self, share: float) -> bool:
        return self.random.random() < share

    def say(self, party: Party, method: str, message: Any, sender: int | None = None) -> Any:
        """Tell a party something, with lies before and after; the answer, or None if it refuses."""
        arguments = message if isinstance(message, tuple) else (message,)
        if self._maybe(self.lies):
            lie = self._lie(arguments[-1], sender)
            self.tally["lies"] += 1
            kind, answer = party.ask(method, *arguments[:-1], lie)
            if kind == "answer" and lie != arguments[-1]:
                self.tally["lies accepted"] += 1
                self.spoiled = True
                if party is not self.server:
                    return answer if answer is not None else True
        kind, answer = party.ask(method, *arguments)
        if self._maybe(self.lies / 2):
            self._ask_again(party, method, arguments, (kind, answer))
        if kind == "refused":
            if not self.spoiled and answer[0] != "holders-below-threshold":
                raise DisagreementError(f"{party.name} {method}: both refuse an honest message: {answer}")
            return self._complain(party, method, arguments[-1], answer)
        return answer if answer is not None else True

    def _ask_again(self, party: Party, method: str, arguments: Sequence[Any], before: tuple[str, Any]) -> None:
        if before[0] == "answer" and party.ask(method, *arguments) != before:
            raise DisagreementError(f"{party.name} {method}: another answer to a repeated message")
        self.tally["lies"] += 1
        lie = self._lie(arguments[-1], None)
        kind, _ = party.ask(method, *arguments[:-1], lie)
        self.spoiled |= kind == "answer" and (lie != arguments[-1] or before[0] == "refused")

    def _lie(self, message: Any, sender: int | None) -> Any:
        """A message with a change, perhaps signed again by its sender."""
        signs = sender is not None and self._maybe(0.6)
        if isinstance(message, m.Advertisement) and signs:
            other = self.history[0][1] if self.history and self._maybe(0.3) else message
            values = [other.c_public, bytes(32) + message.c_public[32:], b"\xee" + b"\xff" * 30 + b"\x7f"]
            values += [self.random.randbytes(32) + message.c_public[32:], message.c_public[:32] + b"\xff" * 1184]
            name = self.random.choice(["c_public", "s_public"])
            lie = replace(message, **{name: self.random.choice(values)})
            text = p.statement("adv", self.parameters.ctx, sender, lie.c_public, lie.s_public)
            return replace(lie, signature=standards.sign(self.identities[sender], text))
        if isinstance(message, m.UnmaskShares) and self._maybe(0.2):
            return replace(message, key_shares={**message.key_shares, **message.self_shares})
        lie = self.liar.change(message)
        if self._maybe(0.3):
            lie = self.liar.change(lie)
        if isinstance(message, m.KeyShares) and signs and self._maybe(0.5):
            v, position = self.random.choice(sorted(message.shares)), self.random.randrange(32)
            sealed = bytearray(message.shares[v])
            sealed[position] ^= 1
            lie = replace(message, shares={**message.shares, v: bytes(sealed)})
            if self._maybe(0.5):
                lie = replace(lie, possession=self._unproven(message.possession))
        if isinstance(lie, m.MaskedVector) and lie.client_id == 0:
            return replace(lie, client_id=FOREIGN)  # ours is told who sends a vector, and takes no number for an id
        fits = isinstance(message, m.KeyShares) and lie.shares.keys() == message.shares.keys()
        if signs and fits and lie.client_id == sender:
            theirs = self.server.pair[1]
            text = theirs.dealing_text(lie, p.tree_root(theirs.leaves(lie)))
            return replace(lie, signature=standards.sign(self.identities[sender], text))
        return lie

    def _unproven(self, possession: bytes) -> bytes:
        """Proofs of possession that do not hold, or a response that a careless reader takes modulo q."""
        response = int.from_bytes(possession[32:64], "little") + standards.ORDER
        above = possession[:32] + response.to_bytes(32, "little") + possession[64:]
        crossed = possession[64:] + possession[:64]
        return self.random.choice([above, crossed, bytes(128), self.liar.flip(possession)])

    def _take_key(self, thief: int, sent: dict[int, Any]) -> None:
        """Have a client advertise a key of another, or a multiple of it, and deal with a pair that does not fit it."""
        one = TheirClient(self.parameters, thief, self.identities[thief], self.roster, self.random.randbytes)
        own, other = one.advertise(), sent[self.random.choice([v for v in self.ids if v != thief])]
        name = self.random.choice(["c_public", "s_public"])
        key = getattr(other, name)[:32]
        multiple = standards.multiple(self.random.randrange(2, standards.ORDER), standards.lift_8(key))
        key = self.random.choice([key, key[:31] + bytes([key[31] ^ 128]), standards.montgomery(multiple)])
        forged = replace(own, **{name: key + getattr(own, name)[32:]})
        text = p.statement("adv", self.parameters.ctx, thief, forged.c_public, forged.s_public)
        sent[thief] = replace(forged, signature=standards.sign(self.identities[thief], text))
        one.answers["advertise"] = b"", sent[thief]
        self.clients[thief] = self._party(f"thief {thief}", (one, one))
        self.thief, self.spoiled = thief, True
        self.tally["keys of others"] += 1

    def _complain(self, party: Party, method: str, delivery: Any, refusal: Any) -> None:
        """What a client does that cannot accept what was sealed for it."""
        if method != "receive_shares" or refusal[0] not in DEALER_CHECKS:
            return
        theirs = party.pair[1]
        kind, dealing = self.server.ask("dealing", refusal[1], theirs.id)
        if kind == "refused":
            return
        try:
            theirs.receive_shares(delivery)
        except p.Refusal as again:
            reason = again
        if self._maybe(self.lies):
            kind, complaint = party.ask("complain", reason, delivery, self.liar.change(dealing))
            if kind == "answer":
                return
        kind, complaint = party.ask("complain", reason, delivery, dealing)
        if kind == "answer" and refusal[1] == self.thief:
            raise DisagreementError(f"{party.name}: both disclose what another than the dealer can use")
        if kind == "answer":
            party.ask("advertise")
            if self._maybe(0.5):
                self.judge(self.liar.change(complaint))
            self.judge(complaint)

    def judge(self, complaint: m.Complaint) -> None:
        """A verdict of both servers."""
        kind, verdict = self.server.ask("judge", complaint)
        self.tally["complaints"] += 1
        if kind == "answer":
            self.tally[f"verdict: {verdict[1]}"] += 1
            self._compare_faults()

    def _compare_faults(self) -> None:
        ours, theirs = self.server.pair
        faults = {v: str(fault) for v, fault in ours.round.blamed.items()}
        if faults != theirs.faults:
            raise DisagreementError(f"seed {self.seed}: ours blames {faults}, reference {theirs.faults}")

    def _stray(self) -> None:
        """Something that is not due."""
        v = self.random.choice([*self.ids, FOREIGN])
        strays = [*self.history, ("consistency", m.ConsistencySignature(v, bytes(64)))]
        strays += [("unmask", m.UnmaskShares(v, {}, {})), ("inputs", m.MaskedVector(v, (0,) * self.parameters.words))]
        stage, message = self.random.choice(strays)
        kind, _ = self.server.ask(f"receive_{stage}", message)
        self.spoiled |= kind == "answer" and (stage, message) not in self.history
        self.tally["strays"] += 1
        if self._maybe(0.3):
            self.server.ask("dealing", self.random.choice(self.ids), v)
            part = self.random.choice(["shares", "pair-secret"])
            self.server.ask("judge", m.Complaint(v, self.random.choice(self.ids), part, bytes(32), bytes(64), b""))
        client = self.clients[self.random.choice(self.ids)]
        if not hasattr(client.pair[1], "answers"):
            return
        method, early = self.random.choice([
            ("unmask", m.SignatureSet({})), ("sign_survivors", m.Survivors((1, 2))),
            ("receive_shares", m.ShareDelivery((1, 2), {}, {})),
        ])  # fmt: skip
        client.ask(method, early)

    def _close(self, stage: str) -> Any:
        kind, answer = self.server.ask(f"close_{stage}")
        self.tally[f"ended: {stage}"] += kind == "refused"
        return None if kind == "refused" else answer

    def _send(self, stage: str, messages: Iterable[tuple[int, Any]]) -> Any:
        """What clients send in a stage, some of it lost; what the server says when it closes."""
        arrivals = [(v, message) for v, message in messages if message is not None]
        if self._maybe(0.3):
            for _ in range(self.random.choice([1, 1, 2])):
                if arrivals:
                    arrivals.remove(self.random.choice(arrivals))
                    self.tally["dropouts"] += 1
        self.random.shuffle(arrivals)
        for v, message in arrivals:
            if self.say(self.server, f"receive_{stage}", message, v):
                self.history.append((stage, message))
            if self._maybe(self.lies / 2):
                self._stray()
        return self._close(stage)

    def deal(self) -> Any:
        """The first two stages; what is delivered, or None."""
        said = {v: self.clients[v].ask("advertise")[1] for v in self.ids}
        if self._maybe(self.lies):
            self._take_key(self.random.choice(self.ids), said)
        cohorts = self._send("advertisements", said.items())
        if cohorts is None:
            return None
        sent = [(v, self.say(self.clients[v], "share_keys", cohorts[v])) for v in cohorts]
        return self._send("shares", [(v, message) for v, message in sent if isinstance(message, m.KeyShares)])

    def run(self) -> Counter[str]:
        """All five stages, and what comes after them."""
        self.tally["rounds"] += 1
        self._exchange()
        for _ in range(3):
            self._stray()
        self.server.ask(f"close_{self.random.choice(STAGES)}")
        self._compare_faults()
        self.tally["keys of others: convicted"] += self.server.pair[1].faults.get(self.thief) == "unsigned-dealing"
        return self.tally

    def _exchange(self) -> None:
        deliveries = self.deal()
        if deliveries is None:
            return
        deliveries.pop(self.thief, None)  # it cannot open what is sealed for a key that is not its own
        ready = [v for v in deliveries if self.say(self.clients[v], "receive_shares", deliveries[v])]
        if ready and self._maybe(self.lies):
            self._accuse(self.random.choice(ready))
        masked = [(v, self.clients[v].ask("mask", self.vectors[v])[1]) for v in ready]
        survivors = self._send("inputs", [(v, m.MaskedVector(v, words)) for v, words in masked])
        if survivors is None:
            return
        ready = [v for v in survivors.survivors if v in ready]
        signed = [(v, self.say(self.clients[v], "sign_survivors", survivors)) for v in ready]
        signatures = self._send("consistency", [pair for pair in signed if is_dataclass(pair[1])])
        if signatures is None:
            return
        signers = [v for v, message in signed if is_dataclass(message)]
        signers = [v for v in signers if v in self.server.pair[1].members]
        shares = [(v, self.say(self.clients[v], "unmask", signatures)) for v in signers]
        total = self._send("unmask", [pair for pair in shares if is_dataclass(pair[1])])
        self._compare_faults()
        if total is not None:
            self.tally["sums"] += 1
            true = [sum(self.vectors[v][i] for v in survivors.survivors) % 2**64 for i in range(self.parameters.words)]
            if not self.spoiled and list(total) != true:
                raise DisagreementError(f"seed {self.seed}: both give a wrong sum")
            self.tally["true sums"] += list(total) == true

    def _accuse(self, v: int) -> None:
        """A complaint about what is right."""
        theirs, draw = self.clients[v].pair[1], self.clients[v].pair[1].draw
        theirs.draw = self.random.randbytes
        dealer, part = self.random.choice(sorted(theirs.senders)), self.random.choice(["shares", "pair-secret"])
        self.judge(theirs.accuse(dealer, part))
        theirs.draw = draw


def run_rounds(seeds: Iterable[int], seconds: float = float("inf"), lies: float = 0.1) -> Counter[str]:
    """The sums of the tallies of some rounds; a disagreement is counted, and printed."""
    total, end = Counter[str](), time.monotonic() + seconds
    total["disagreements"] = 0
    for seed in seeds:
        if time.monotonic() > end:
            break
        try:
            total += MixedRound(seed, lies if seed % 4 else 0).run()
        except DisagreementError as disagreement:
            total["rounds"] += 1
            total["disagreements"] += 1
            sys.stderr.write(f"{str(disagreement)[:3000]}\n")
    return total


def main() -> int:
    """Run rounds and say what happened in them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="seed of the first round")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no round after as many")
    parser.add_argument("--lies", type=float, default=0.1, help="share of the messages that a lie precedes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    total = run_rounds(range(options.first, options.first + options.rounds), options.seconds, options.lies)
    total.setdefault("disagreements", 0)
    lines = [f"{name}: {count}" for name, count in sorted(total.items())]
    sys.stdout.write((json.dumps(total, indent=2, sort_keys=True) if options.json else "\n".join(lines)) + "\n")
    return 1 if total["disagreements"] else 0


if __name__ == "__main__":
    sys.exit(main())
