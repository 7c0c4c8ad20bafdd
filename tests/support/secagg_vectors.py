"""Replays tests/vectors/secagg_v3.json through fedcore.

The file was made without fedcore. A case is one value of it beside what fedcore comes to; a round is replayed by
sessions and a server that are given the recorded messages, so that ciphertexts which nobody can draw twice are no
hindrance: what is behind them has to come out.

    PYTHONPATH=.:tests python -m support.secagg_vectors        counts the vectors
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.secagg import (
    AdvertisedCohort,
    Advertisement,
    Agreement,
    ClientSession,
    Complaint,
    ComplaintSubject,
    ConsistencySignature,
    KeyShares,
    MaskTerm,
    RoundParameters,
    Secret,
    ServerRound,
    ShareDelivery,
    SignatureSet,
    Survivors,
    UnmaskShares,
    apply_masks,
    complaint,
    dealing,
)
from fedcore.secagg.crypto import possession, schedule, shamir
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.domain import Usage, derive, statement, tagged_hash
from fedcore.secagg.crypto.tree import Tree, root_of
from fedcore.secagg.graph import Graph

FILE = Path(__file__).parents[1] / "vectors" / "secagg_v3.json"
STEPS = ("advertise", "share", "deliver", "upload", "sign", "unmask", "end")


@dataclass(frozen=True, slots=True)
class Case:
    """One vector: what the file says, and what fedcore says."""

    step: str
    what: str
    got: Any
    expected: Any


@functools.cache
def load() -> dict[str, Any]:
    """The file."""
    return json.loads(FILE.read_text())


def raw(value: Any) -> Any:
    """Hexadecimal texts as bytes, keys as numbers, lists as tuples."""
    if isinstance(value, str):
        return bytes.fromhex(value)
    if isinstance(value, dict):
        return {int(key): raw(part) for key, part in value.items()}
    return tuple(raw(part) for part in value) if isinstance(value, list) else value


# The parts


def statements() -> Iterator[Case]:
    for entry in load()["statements"]:
        usage = Usage(entry["tag"])
        fields = [raw(v) if kind == "bytes" else v for field in entry["fields"] for kind, v in field.items()]
        secret, salt = (hashlib.sha256(name).digest() for name in (b"secret", b"salt"))
        yield Case("statement", usage, statement(usage, *fields), raw(entry["statement"]))
        yield Case("hash", usage, tagged_hash(usage, *fields), raw(entry["hash"]))
        yield Case("derivation", usage, derive(secret, salt, usage, *fields), raw(entry["derived"]))


def streams() -> Iterator[Case]:
    """As one range, and word by word."""
    for entry in load()["streams"]:
        seed, offset, expected = Secret(raw(entry["seed"])), entry["offset"], entry["words"]
        whole, single = (np.zeros(len(expected), dtype=np.uint64) for _ in range(2))
        apply_masks(whole, [MaskTerm(sign=1, seed=seed)], offset=offset)
        for i in range(len(single)):
            apply_masks(single[i : i + 1], [MaskTerm(sign=-1, seed=seed)], offset=offset + i)
        yield Case("range", f"words from {offset}", whole.tolist(), expected)
        yield Case("words", f"words from {offset}", (np.uint64(0) - single).tolist(), expected)


def trees() -> Iterator[Case]:
    for entry in load()["trees"]:
        count, shown = entry["leaves"], entry["shown"]
        leaves = [hashlib.sha256(b"leaf %d" % i).digest() for i in range(count)]
        tree, proof = Tree(leaves), raw(entry["proof"])
        yield Case("root", f"{count} leaves", tree.root, raw(entry["root"]))
        yield Case("proof", f"{shown} of {count}", tree.prove(shown), proof)
        yield Case("verified", f"{shown} of {count}", root_of({i: leaves[i] for i in shown}, count, proof), tree.root)


def orders() -> Iterator[Case]:
    for entry in load()["orders"]:
        members, ring = tuple(range(1, entry["members"] + 1)), entry["ring"]
        graph = Graph(members, degree=entry["degree"], seed=raw(entry["seed"]))
        for place, member in enumerate(ring):
            near = {ring[(place + step) % len(ring)] for step in _window(entry["degree"], len(ring))}
            yield Case("order", f"client {member} of {ring}", graph.neighbours(member), tuple(sorted(near - {member})))


def _window(degree: int, size: int) -> range:
    return range(size) if degree >= size - 1 else range(-(degree // 2), degree // 2 + 1)


def sharings() -> Iterator[Case]:
    for k, entry in enumerate(load()["sharings"]):
        secret, shares, threshold = Secret(raw(entry["secret"])), raw(entry["shares"]), entry["threshold"]
        pool = raw(entry["pool"])
        made = shamir.split(
            secret, threshold=threshold, holders=len(shares), randomness=lambda size, pool=pool: pool[:size]
        )
        yield Case("split", f"sharing {k}", made, shares)
        rebuilder = shamir.Rebuilder(threshold=threshold, holders=len(shares), randomness=_randomness("server"))
        for points in (range(1, threshold + 1), range(len(shares) - threshold + 1, len(shares) + 1)):
            some = {point: shares[point - 1] for point in points}
            yield Case("rebuild", f"sharing {k}", rebuilder.rebuild(some, secret.__eq__), secret)


def possessions() -> Iterator[Case]:
    """What the owner of a pair makes, where nothing is altered; and whether it holds."""
    for entry in load()["possessions"]:
        context, public, proof = (raw(entry[key]) for key in ("ctx", "public", "proof"))
        owner, name = entry["id"], possession.PairName(entry["part"])
        what = entry.get("changed", f"{name} of client {owner}")
        yield Case("holds", what, possession.holds(public, proof, context, owner, name), entry["holds"])
        if "changed" not in entry:
            pair = KeyPair.from_root(Agreement.X25519, Secret(raw(entry["root"])))
            yield Case("proof", what, possession.prove(pair, context, owner, name), proof)


PARTS: dict[str, Callable[[], Iterator[Case]]] = {
    "statements": statements, "streams": streams, "trees": trees, "orders": orders, "sharings": sharings,
    "possessions": possessions,
}  # fmt: skip


# The rounds


class Replay:
    """A round of the file; `run` takes every step and keeps the cases."""

    def __init__(self, name: str) -> None:
        self.record = next(record for record in load()["rounds"] if record["name"] == name)
        self.present = self.record["present"]
        self.parameters = _parameters(self.record["parameters"])
        identities = {i: Ed25519PrivateKey.from_private_bytes(key) for i, key in self._raw("identities").items()}
        roster = {i: key.public_key().public_bytes_raw() for i, key in identities.items()}
        self.server = ServerRound(parameters=self.parameters, roster=roster, randomness=_randomness("server"))
        self.sessions = {
            i: ClientSession(
                parameters=self.parameters, client_id=i, identity=identities[i], roster=roster,
                min_cohort=2, min_threshold=2, randomness=_randomness(f"{name} {i}"),
            )
            for i in self.parameters.cohort
        }  # fmt: skip
        self.transcript = schedule.Transcript(context=self._raw("ctx"), cohort=self._raw("L1"))
        self.graph = Graph(tuple(self.present["advertise"]), degree=self.parameters.degree, seed=self._raw("ring_seed"))
        self.cases: list[Case] = []

    def _raw(self, key: str) -> Any:
        return raw(self.record[key])

    def _case(self, what: str, got: Any, expected: Any) -> None:
        self.cases.append(Case(self._step, what, got, expected))

    def until(self, step: str) -> Replay:
        """Take every step before this one."""
        for name in STEPS[: STEPS.index(step)]:
            self._step = name
            getattr(self, f"_{name}")()
        return self

    # The messages as the file has them

    def advertisement(self, i: int) -> Advertisement:
        entry = self._raw_of("advertisements", i)
        return Advertisement(i, entry["c"], entry["s"], entry["signature"])

    def cohort(self, i: int) -> AdvertisedCohort:
        shown = sorted((i, *self.record["neighbours"][str(i)]))
        members = tuple(self.advertisement(v) for v in shown)
        return AdvertisedCohort(tuple(self.present["advertise"]), members, self._raw("proofs")[i])

    def key_shares(self, i: int) -> KeyShares:
        entry = self.record["key_shares"][str(i)]
        fields = (raw(entry[key]) for key in ("commitment", "own", "shares", "pair_secrets", "signature", "possession"))
        return KeyShares(i, *fields)

    def delivery(self, i: int) -> ShareDelivery:
        sealed = {v: self.key_shares(v) for v in self.record["neighbours"][str(i)] if v in self.present["share"]}
        chosen = {v: message.pair_secrets[i] for v, message in sealed.items() if i in message.pair_secrets}
        return ShareDelivery(tuple(self.present["share"]), {v: m.shares[i] for v, m in sealed.items()}, chosen)

    def survivors(self, _: int = 0) -> Survivors:
        return Survivors(tuple(self.present["upload"]))

    def consistency(self, i: int) -> ConsistencySignature:
        return ConsistencySignature(i, self._raw("signatures")[i])

    def signatures(self, _: int = 0) -> SignatureSet:
        some = sorted(self._raw("signatures").items())[: self.parameters.quorum]
        return SignatureSet(dict(some))

    def unmask_shares(self, i: int) -> UnmaskShares:
        entry = self.record["unmask"][str(i)]
        return UnmaskShares(i, raw(entry["self"]), raw(entry["key"]))

    def _raw_of(self, key: str, i: int) -> dict[str, bytes]:
        return {name: raw(value) for name, value in self.record[key][str(i)].items()}

    def complaints(self) -> Iterator[Case]:
        """What fedcore says in the complainant's place, where nothing is altered afterwards; and the verdict."""
        for entry in self.record["complaints"]:
            own, accused, part = entry["complainant"], entry["accused"], ComplaintSubject(entry["part"])
            case = complaint.Case(
                transcript=self.transcript,
                agreement=self.parameters.agreement,
                complainant=self.advertisement(own),
                accused=self.advertisement(accused),
                parcel=raw(entry["parcel"]),
                pair_secret=raw(entry["pair_secret"]) or None,
            )
            said = Complaint(own, accused, part, *(raw(entry[key]) for key in ("shared", "proof", "mlkem_seed")))
            verdict, name = complaint.judge(said, case), f"of client {own} about the {part} of {accused}"
            yield Case("verdict", name, (verdict.client_id, verdict.fault), (entry["guilty"], entry["fault"]))
            root = Secret(self._raw_of("roots", own)["c" if part is ComplaintSubject.SHARES else "s"])
            pair = KeyPair.from_root(self.parameters.agreement, root)
            made = complaint.complain(case, part, pair, lambda _, nonce=entry["nonce"]: raw(nonce))
            yield Case("complaint", name, made == said, not entry["altered"])

    # The steps

    def _advertise(self) -> None:
        self._case("ctx", self.parameters.ctx(), self._raw("ctx"))
        for i in self.present["advertise"]:
            expected, roots = self.advertisement(i), self._raw_of("roots", i)
            for name, public in (("c", expected.c_public), ("s", expected.s_public)):
                pair = KeyPair.from_root(self.parameters.agreement, Secret(roots[name]))
                self._case(f"key {name} of client {i}", pair.public, public)
            self._case(f"advertisement of client {i}", self.sessions[i].advertise(), expected)
            self._case(f"leaf of client {i}", expected.digest(), self._raw("leaves")[i])
            self.server.receive_advertisement(expected)
        self.server.close_stage()

    def _share(self) -> None:
        self._case_of_cohort()
        for i in self.present["advertise"]:
            answer = self.sessions[i].share_keys(self.cohort(i))
            if i in self.present["share"]:
                self._case_of_shares(i, answer)
                self.server.receive_shares(self.key_shares(i))
        self.server.close_stage()

    def _case_of_cohort(self) -> None:
        ids, root = tuple(self.present["advertise"]), self._raw("tree_root")
        self._case("tree root", Tree([self._raw("leaves")[i] for i in ids]).root, root)
        self._case("L1", schedule.cohort_hash(self._raw("ctx"), ids, root), self._raw("L1"))
        self._case("ring seed", schedule.ring_seed(self.transcript), self._raw("ring_seed"))
        for i in ids:
            near = self.graph.neighbours(i)
            chosen = [v for v in near if self.graph.chooses(i, v)]
            points = {str(v): self.graph.point(i, v) for v in (i, *near)}
            self._case(f"neighbours of client {i}", list(near), self.record["neighbours"][str(i)])
            self._case(f"chosen by client {i}", chosen, self.record["chooses"][str(i)])
            self._case(f"points of client {i}", points, self.record["points"][str(i)])
            self._case(f"cohort for client {i}", self.server.advertised(i), self.cohort(i))

    def _case_of_shares(self, i: int, answer: KeyShares) -> None:
        expected, self_secret = self.key_shares(i), Secret(self._raw("self_secrets")[i])
        self._case(f"commitment of client {i}", answer.commitment, expected.commitment)
        committed = schedule.commitment(self._raw("ctx"), i, self_secret)
        self._case(f"commitment of client {i}, alone", committed, expected.commitment)
        root = Secret(self._raw_of("roots", i)["s"])
        for v, secret in self._raw("pair_secrets")[i].items():
            got = schedule.pair_secret(self.transcript, root, chooser=i, peer=v)
            self._case(f"secret of clients {i} and {v}", got.reveal(), secret)
        if self.parameters.agreement is Agreement.X25519:
            for v in expected.shares:
                self._case(f"shares of client {i} for {v}", answer.shares[v], expected.shares[v])
            for v in expected.pair_secrets:
                self._case(f"secret of client {i} for {v}", answer.pair_secrets[v], expected.pair_secrets[v])
            self._case(f"signature of client {i} over its dealing", answer.signature, expected.signature)
        self._case(f"own commitments of client {i}", answer.own_commitments, expected.own_commitments)
        self._case(f"proofs of possession of client {i}", answer.possession, expected.possession)
        leaves = self._raw("dealings")[i]
        self._case(f"dealing of client {i}", dealing.dealing_tree(expected, self.graph).root, Tree(leaves).root)
        self._case_of_sharing(i)

    def _case_of_sharing(self, i: int) -> None:
        """Any t of the recorded shares rebuild the secrets; those of the last points, say."""
        threshold, points = self.parameters.threshold, self.record["points"][str(i)]
        last = sorted(points, key=points.get)[-threshold:]
        rebuilder = shamir.Rebuilder(threshold=threshold, holders=len(points), randomness=_randomness("server"))
        secrets = (self._raw_of("roots", i)["s"], self._raw("self_secrets")[i])
        for half, secret in zip((slice(33), slice(33, 66)), secrets, strict=True):
            shares = {points[v]: self._raw("shares")[i][int(v)][half] for v in last}
            found = rebuilder.rebuild(shares, lambda _: True)
            self._case(f"sharing of client {i}", found and found.reveal(), secret)

    def _deliver(self) -> None:
        for i in self.present["share"]:
            message, roots = self.delivery(i), self._raw_of("roots", i)
            self._case(f"delivery to client {i}", self.server.delivery(i), message)
            pair_c, pair_s = (KeyPair.from_root(self.parameters.agreement, Secret(roots[name])) for name in "cs")
            for v, parcel in message.shares.items():
                public, ends = self.advertisement(v).c_public, {"sender": v, "receiver": i}
                commitments, sealed = dealing.split_parcel(parcel)
                text = schedule.open_shares(self.transcript, pair_c, public, **ends, sealed=sealed)
                self._case(f"shares of client {v} opened by {i}", text, self._raw("shares")[v][i])
                committed = dealing.commit(self._raw("ctx"), v, i, self._raw("shares")[v][i])
                self._case(f"commitments of client {v} for {i}", committed, commitments)
                shown = dealing.dealing_for(self.key_shares(v), self.graph, i)
                root = dealing.dealt_root(shown, self.graph, i, parcel, message.pair_secrets.get(v, b""))
                self._case(f"dealing of client {v} to {i}", root, Tree(self._raw("dealings")[v]).root)
            for v, sealed in message.pair_secrets.items():
                public, ends = self.advertisement(v).s_public, {"sender": v, "receiver": i}
                secret = schedule.open_pair_secret(self.transcript, pair_s, public, **ends, sealed=sealed)
                self._case(f"secret of client {v} opened by {i}", secret, Secret(self._raw("pair_secrets")[v][i]))
            self.sessions[i].receive_shares(message)

    def _upload(self) -> None:
        for i in self.present["upload"]:
            terms = sorted(
                ((term.sign, term.seed.reveal().hex()) for term in self.sessions[i]._masks()), key=lambda t: t[1]
            )
            self._case(f"masks of client {i}", [list(term) for term in terms], self.record["masks"][str(i)])
            words = np.array(self.record["inputs"][str(i)], dtype=np.uint64)
            self.sessions[i].mask(words)
            self._case(f"vector of client {i}", words.tolist(), self.record["masked"][str(i)])
            self.server.receive_input(i, hashlib.sha256(words.astype("<u8").tobytes()).digest())
        self.server.close_stage()

    def _sign(self) -> None:
        survivors = self.survivors()
        signed = schedule.consistency_statement(self.transcript, self.present["share"], survivors.survivors)
        self._case("what is signed", signed, self._raw("consistency"))
        self._case("survivors", self.server.survivors(), survivors)
        for i in self.present["sign"]:
            self._case(f"signature of client {i}", self.sessions[i].sign_survivors(survivors), self.consistency(i))
            self.server.receive_consistency(self.consistency(i))
        self.server.close_stage()

    def _unmask(self) -> None:
        self._case("signatures", self.server.signatures(), self.signatures())
        for i in self.present["unmask"]:
            self._case(f"shares from client {i}", self.sessions[i].unmask(self.signatures()), self.unmask_shares(i))
            self.server.receive_unmask(self.unmask_shares(i))
        self.server.close_stage()
        terms = sorted(([term.sign, term.seed.reveal().hex()] for term in self.server.mask_terms()), key=lambda t: t[1])
        self._case("mask terms", terms, self.record["mask_terms"])
        vectors = np.array([self.record["masked"][str(i)] for i in self.present["upload"]], dtype=np.uint64)
        total = vectors.sum(axis=0, dtype=np.uint64)
        apply_masks(total, self.server.mask_terms())
        self._case("sum", total.tolist(), self.record["sum"])
        self._case("nobody to blame", self.server.blamed, {})


def _parameters(record: dict[str, Any]) -> RoundParameters:
    fields = {key: raw(record[key]) for key in ("encoding", "roster_hash", "model_hash", "task_hash")}
    cohort, agreement = tuple(record["cohort"]), Agreement(record["agreement"])
    return RoundParameters(**(record | fields | {"cohort": cohort, "agreement": agreement}))


def _randomness(party: str) -> Callable[[int], bytes]:
    calls = iter(range(1, 1 << 20))
    return lambda size: hashlib.shake_256(f"{party}/{next(calls)}".encode()).digest(size)


@functools.cache
def replayed(name: str) -> tuple[Case, ...]:
    """All cases of a round."""
    return tuple(Replay(name).until("end").cases)


# Messages that are refused

_STEP_OF = {
    "client.share_keys": ("share", Replay.cohort),
    "client.receive_shares": ("deliver", Replay.delivery),
    "client.sign_survivors": ("sign", Replay.survivors),
    "client.unmask": ("unmask", Replay.signatures),
    "server.receive_advertisement": ("advertise", Replay.advertisement),
    "server.receive_shares": ("share", Replay.key_shares),
    "server.receive_consistency": ("sign", Replay.consistency),
    "server.receive_unmask": ("unmask", Replay.unmask_shares),
}


def refusal(name: str, entry: dict[str, Any]) -> Callable[[], object]:
    """The call that must fail: a round up to the step, then its message with one part exchanged."""
    step, honest = _STEP_OF[entry["step"]]
    replay, client = Replay(name).until(step), entry["client"]
    side, method = entry["step"].split(".")
    machine = replay.server if side == "server" else replay.sessions[client]
    message = _exchanged(honest(replay, client), entry["path"], entry["value"])
    return lambda: getattr(machine, method)(message)


def _exchanged(part: Any, path: list[Any], value: Any) -> Any:
    """`part` with what is at `path` exchanged: a field of a message, a place in a tuple, or a client in a mapping."""
    if not path:
        return _as(part, value)
    step, rest = path[0], path[1:]
    if isinstance(part, tuple):
        return (*part[:step], _exchanged(part[step], rest, value), *part[step + 1 :])
    if isinstance(part, dict):
        return {**part, step: _exchanged(part.get(step), rest, value)}
    fields = {name: getattr(part, name) for name in part.__dataclass_fields__}
    return type(part)(**(fields | {step: _exchanged(fields[step], rest, value)}))


def _as(part: Any, value: Any) -> Any:
    """A value of the file as what it stands for."""
    if isinstance(part, Advertisement):
        return Advertisement(value["client_id"], *(raw(value[key]) for key in ("c_public", "s_public", "signature")))
    return raw(value)


@functools.cache
def complaints(name: str) -> tuple[Case, ...]:
    """The verdict on every complaint of a round."""
    return tuple(Replay(name).complaints())


def count() -> dict[str, int]:
    """How many vectors are replayed, by part, round, and refused messages."""
    counts = {name: sum(1 for _ in part()) for name, part in PARTS.items()}
    for record in load()["rounds"]:
        counts[f"round {record['name']}"] = len(replayed(record["name"]))
        counts[f"refused in round {record['name']}"] = len(record["refused"])
        if "complaints" in record:
            counts[f"complaints in round {record['name']}"] = len(complaints(record["name"]))
    return counts | {"all": sum(counts.values())}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(count(), indent=1) + "\n")
