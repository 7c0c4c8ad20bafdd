"""A second implementation, from the specification alone, against the vectors and against ours."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from reference import messages as m
from reference import primitives as p
from reference import standards
from reference.client import ReferenceClient
from reference.mixed_rounds import MixedRound, run_rounds
from reference.primitives import Refusal
from reference.server import ReferenceServer

from fedcore.secagg.sizing import withstands

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "secagg_v3.json").read_text(encoding="utf-8"))
ROUNDS = {part["name"]: part for part in VECTORS["rounds"]}


def numbered(values: dict[str, Any]) -> dict[int, Any]:
    return {int(key): value for key, value in values.items()}


def unhex(values: dict[str, str]) -> dict[int, bytes]:
    return {int(key): bytes.fromhex(value) for key, value in values.items()}


def drawing(name: str, client_id: int) -> Callable[[int], bytes]:
    calls = iter(range(1, 100))
    return lambda size: hashlib.shake_256(f"{name} {client_id}/{next(calls)}".encode()).digest(size)


def parameters(vector: dict[str, Any]) -> p.Parameters:
    values = dict(vector["parameters"])
    names = ("encoding", "roster_hash", "model_hash", "task_hash")
    return p.Parameters(**values | {name: bytes.fromhex(values[name]) for name in names})


def key_shares(client_id: int, vector: dict[str, Any]) -> m.KeyShares:
    return m.KeyShares(
        client_id,
        bytes.fromhex(vector["commitment"]),
        bytes.fromhex(vector["own"]),
        unhex(vector["shares"]),
        unhex(vector["pair_secrets"]),
        bytes.fromhex(vector["signature"]),
        bytes.fromhex(vector["possession"]),
    )


@pytest.mark.parametrize("vector", VECTORS["statements"])
def test_statement(vector: dict[str, Any]) -> None:
    (usage,) = (vector["tag"].removeprefix("fedcore/secagg/v3").removeprefix("/") or "ctx",)
    fields = [
        bytes.fromhex(value) if kind == "bytes" else value for part in vector["fields"] for kind, value in part.items()
    ]
    assert p.statement(usage, *fields).hex() == vector["statement"]
    assert p.digest(usage, *fields).hex() == vector["hash"]
    secret, salt = (hashlib.sha256(text).digest() for text in (b"secret", b"salt"))
    assert p.kdf(secret, salt, usage, *fields).hex() == vector["derived"]


@pytest.mark.parametrize("vector", VECTORS["trees"])
def test_tree(vector: dict[str, Any]) -> None:
    leaves = [hashlib.sha256(b"leaf %d" % i).digest() for i in range(vector["leaves"])]
    proof = p.tree_proof(leaves, set(vector["shown"]))
    assert p.tree_root(leaves).hex() == vector["root"]
    assert [part.hex() for part in proof] == vector["proof"]
    assert p.proven_root(len(leaves), {i: leaves[i] for i in vector["shown"]}, proof).hex() == vector["root"]


@pytest.mark.parametrize("vector", VECTORS["streams"])
def test_stream(vector: dict[str, Any]) -> None:
    assert p.mask(bytes.fromhex(vector["seed"]), 12, vector["offset"]) == vector["words"]


@pytest.mark.parametrize("vector", VECTORS["orders"])
def test_order(vector: dict[str, Any]) -> None:
    graph = p.Graph(bytes.fromhex(vector["seed"]), range(1, vector["members"] + 1), vector["degree"])
    assert graph.ring == vector["ring"]


@pytest.mark.parametrize("vector", VECTORS["sharings"])
def test_sharing(vector: dict[str, Any]) -> None:
    secret, t = bytes.fromhex(vector["secret"]), vector["threshold"]
    shares = p.deal(secret, t, bytes.fromhex(vector["pool"]), range(1, len(vector["shares"]) + 1))
    assert [share.hex() for share in shares] == vector["shares"]
    assert p.rebuild(dict(enumerate(shares, 1)), t) == secret


@pytest.mark.parametrize("vector", VECTORS["possessions"])
def test_possession(vector: dict[str, Any]) -> None:
    ctx, public, proof = (bytes.fromhex(vector[key]) for key in ("ctx", "public", "proof"))
    client_id, part = vector["id"], vector["part"]
    hashed, lifted = partial(p.digest, "possession", ctx, client_id, part, public), standards.lift_8(public)
    assert (not lifted or standards.holds(proof, hashed, (standards.BASE_8, lifted))) == vector["holds"]


class Replay:
    """A round of the vectors, each step compared."""

    def __init__(self, vector: dict[str, Any]) -> None:
        self.vector, self.name = vector, vector["name"]
        self.parameters = parameters(vector)
        self.identities = unhex(vector["identities"])
        self.roster = {v: standards.public_identity(seed) for v, seed in self.identities.items()}
        self.server = ReferenceServer(self.parameters, self.roster)
        self.clients = {
            v: ReferenceClient(self.parameters, v, self.identities[v], self.roster, drawing(self.name, v))
            for v in self.parameters.cohort
        }
        self.vectors: dict[int, list[int]] = numbered(vector["inputs"])
        self.hybrid = self.parameters.agreement == p.HYBRID

    def run(self, until: str = "", on: Callable[[str, int, Any], None] | None = None) -> None:
        """The steps up to the messages of one of them, which `on` gets before their receivers do."""
        v3, on = self.vector, on or (lambda *_: None)
        assert self.parameters.ctx.hex() == v3["ctx"]
        for v in v3["present"]["advertise"]:
            sent = self.clients[v].advertise()
            values = {"c": sent.c_public, "s": sent.s_public, "signature": sent.signature}
            assert {name: value.hex() for name, value in values.items()} == v3["advertisements"][str(v)]
            assert {"c": self.clients[v].c.root.hex(), "s": self.clients[v].s.root.hex()} == v3["roots"][str(v)]
            assert sent.digest().hex() == v3["leaves"][str(v)]
            on("server.receive_advertisement", v, sent)
            self.server.receive(sent)
        cohorts = self.server.close()
        server, graph = self.server, self.server.graph
        assert server.l1.hex() == v3["L1"]
        assert graph.ring == v3["ring"]
        for v in graph.ring:
            assert sorted(graph.neighbours(v)) == v3["neighbours"][str(v)]
            assert [u for u in v3["neighbours"][str(v)] if graph.chooses(v, u)] == v3["chooses"][str(v)]
            assert {str(u): graph.point(v, u) for u in graph.holders(v)} == v3["points"][str(v)]
            assert [h.hex() for h in cohorts[v].proof] == v3["proofs"][str(v)]
            assert cohorts[v].root().hex() == v3["tree_root"]
        for v in v3["present"]["share"]:
            on("client.share_keys", v, cohorts[v])
            sent, vector = self.clients[v].receive(cohorts[v]), key_shares(v, v3["key_shares"][str(v)])
            assert self.clients[v].b.hex() == v3["self_secrets"][str(v)]
            assert self.clients[v].shares[v].hex() == v3["shares"][str(v)][str(v)]
            secrets = {str(u): secret.hex() for u, secret in self.clients[v].pair_secrets.items()}
            assert secrets.items() <= v3["pair_secrets"][str(v)].items()
            if self.hybrid:
                assert (sent.commitment, sent.own_commitments) == (vector.commitment, vector.own_commitments)
                assert {u: s[:32] for u, s in sent.shares.items()} == {u: s[:32] for u, s in vector.shares.items()}
            else:
                assert sent == vector
            assert [leaf.hex() for leaf in server.leaves(vector)] == v3["dealings"][str(v)]
            text = server.dealing_text(vector, p.tree_root(server.leaves(vector)))
            assert standards.verifies(self.roster[v], text, vector.signature)
            on("server.receive_shares", v, vector)
            server.receive(vector)
        deliveries = server.close()
        for v in v3["present"]["share"]:
            on("client.receive_shares", v, deliveries[v])
            self.clients[v].receive(deliveries[v])
            texts = self.clients[v].shares
            assert {u: v3["shares"][str(u)][str(v)] for u in texts} == {u: text.hex() for u, text in texts.items()}
        for v in v3["present"]["upload"]:
            seeds = [[sign, seed.hex()] for sign, seed in self.clients[v].masks()]
            assert sorted(seeds) == sorted(v3["masks"][str(v)])
            masked = self.clients[v].mask(self.vectors[v])
            assert masked == v3["masked"][str(v)]
            server.receive(m.MaskedVector(v, masked))
        survivors = server.close()
        for v in v3["present"]["sign"]:
            on("client.sign_survivors", v, survivors)
            signature = self.clients[v].receive(survivors)
            assert signature.signature.hex() == v3["signatures"][str(v)]
            on("server.receive_consistency", v, signature)
            server.receive(signature)
        text = server.consistency_text()
        assert text.hex() == v3["consistency"]
        signatures = server.close()
        for v in v3["present"]["unmask"]:
            on("client.unmask", v, signatures)
            sent = self.clients[v].receive(signatures)
            assert {str(u): share.hex() for u, share in sent.self_shares.items()} == v3["unmask"][str(v)]["self"]
            assert {str(u): share.hex() for u, share in sent.key_shares.items()} == v3["unmask"][str(v)]["key"]
            on("server.receive_unmask", v, sent)
            server.receive(sent)
        assert sorted([sign, seed.hex()] for sign, seed in server.corrections()) == sorted(v3["mask_terms"])
        assert server.close() == v3["sum"]


def unhexed(value: Any) -> Any:
    if isinstance(value, str):
        return bytes.fromhex(value)
    if isinstance(value, list):
        return [unhexed(part) for part in value]
    return unhex(value) if isinstance(value, dict) else value


def exchanged(message: Any, path: list[Any], value: Any) -> Any:
    """A message with one part exchanged."""
    if not path:
        values = {key: unhexed(part) for key, part in value.items()} if isinstance(value, dict) else value
        return dataclasses.replace(message, **values) if isinstance(values, dict) else unhexed(values)
    first, rest = path[0], path[1:]
    if dataclasses.is_dataclass(message):
        inner = getattr(message, first)
        return dataclasses.replace(message, **{first: exchanged(inner, rest, value) if rest else unhexed(value)})
    if isinstance(message, dict):
        inner = exchanged(message[first], rest, value) if rest else unhexed(value)
        return {**message, first: inner}
    inner = exchanged(message[first], rest, value) if rest else unhexed(value)
    return [*message[:first], inner, *message[first + 1 :]]


@pytest.mark.parametrize("name", ROUNDS)
def test_round_and_its_refusals(name: str) -> None:
    replay = Replay(ROUNDS[name])
    cases: list[str] = []

    def on(step: str, v: int, message: Any) -> None:
        side = step.split(".", maxsplit=1)[0]
        for case in ROUNDS[name]["refused"]:
            if case["step"] != step or case["client"] != v:
                continue
            other = exchanged(message, case["path"], case["value"])
            with pytest.raises(Refusal) as refusal:
                (replay.clients[v] if side == "client" else replay.server).receive(other)
            assert refusal.value.check == case["check"], case
            cases.append(case["check"])

    replay.run(on=on)
    assert len(cases) == len(ROUNDS[name]["refused"])


@pytest.mark.parametrize("name", [name for name, part in ROUNDS.items() if "complaints" in part])
def test_complaints(name: str) -> None:
    replay = Replay(ROUNDS[name])
    replay.run()
    for case in ROUNDS[name]["complaints"]:
        values = {key: bytes.fromhex(case[key]) for key in ("shared", "proof", "mlkem_seed")}
        complaint = m.Complaint(case["complainant"], case["accused"], case["part"], **values)
        accused = replay.server.messages[1][case["accused"]]
        parts = {"shares": bytes.fromhex(case["parcel"]), "pair_secrets": bytes.fromhex(case["pair_secret"])}
        changes = {key: {**getattr(accused, key), case["complainant"]: part} for key, part in parts.items()}
        replay.server.messages[1][case["accused"]] = dataclasses.replace(accused, **changes)
        with pytest.MonkeyPatch.context() as patch:  # what it signed is another thing, and not what is judged here
            patch.setattr(standards, "verifies", lambda *_: True)
            assert replay.server.judge(complaint) == (case["guilty"], case["fault"]), case
        if not case["altered"]:
            client, root = replay.clients[case["complainant"]], ROUNDS[name]["roots"][str(case["complainant"])]
            client.c, client.s = (p.Pair(bytes.fromhex(root[key]), client.parameters.agreement) for key in "cs")
            client.draw = lambda _, case=case: bytes.fromhex(case["nonce"])
            assert client.accuse(case["accused"], case["part"]) == complaint


@pytest.mark.parametrize("first", [0, 1000, 2000])
def test_mixed_rounds(first: int) -> None:
    tally = run_rounds(range(first, first + 20))
    assert tally["disagreements"] == 0
    assert tally["rounds"] == 20
    assert tally["true sums"]
    assert tally["dropouts"]
    assert tally["lies"]


def test_every_lie_is_refused_by_both_or_by_none() -> None:
    tally = run_rounds(range(5001, 5010), lies=0.5)
    assert tally["disagreements"] == 0
    assert sum(name.startswith("refused: ") for name in tally) > 12


def test_who_advertises_the_key_of_another_is_convicted_of_its_dealing() -> None:
    tally = run_rounds(range(6001, 6031), lies=0.2)
    assert tally["disagreements"] == 0
    assert tally["keys of others"] >= tally["keys of others: convicted"] > 2


def off_curve(public: bytes) -> bytes:
    """A key on the twist."""
    u = next(u for u in range(2, 100) if standards.lift_8(u.to_bytes(32, "little")) is None)
    return u.to_bytes(32, "little") + public[32:]


@pytest.mark.parametrize("seed", [0, 4, 12, 32])
def test_a_key_off_the_curve_convicts_its_owner(seed: int) -> None:
    mixed = MixedRound(seed, lies=0)
    deliveries = mixed.deal()
    victim = next(iter(deliveries))
    delivery, client = deliveries[victim], mixed.clients[victim]
    dealer = next(iter(delivery.shares))
    server, reference_server = mixed.server.pair
    session, reference_client = client.pair[0].session, client.pair[1]
    key = off_curve(reference_client.members[dealer].c_public)
    for publics in (server.round._publics, session._publics, reference_client.members, reference_server.messages[0]):
        publics[dealer] = dataclasses.replace(publics[dealer], c_public=key)
    kind, (check, culprit) = client.ask("receive_shares", delivery)
    assert (kind, check, culprit) == ("refused", "share-unsealing", dealer)
    kind, dealing = mixed.server.ask("dealing", dealer, victim)
    kind, complaint = client.ask("complain", Refusal("share-unsealing", dealer, "shares"), delivery, dealing)
    assert (complaint.shared, complaint.proof) == (bytes(32), bytes(64))
    assert mixed.server.ask("judge", complaint) == ("answer", (dealer, "key-off-curve"))


@pytest.mark.parametrize("quorum", [5, 20, 60, 150, 300])
def test_the_least_threshold_of_a_sparse_graph_is_the_same(quorum: int) -> None:
    for corrupt in {0, 1, quorum // 10, quorum // 3}:
        for degree in range(2, min(quorum - 1, 60), 8):
            least = p.threshold_bound(degree, quorum, corrupt)
            for threshold in (least - 1, least, degree + 1):
                fits = withstands(population=quorum, corrupt=corrupt, degree=degree, threshold=threshold)
                assert fits == (threshold >= least), (corrupt, degree, threshold)
