"""Makes secagg_v3.json: whole rounds with fixed randomness, and vectors of the parts that no small round reaches.

    python tests/vectors/make_secagg_v3.py            writes the file
    python tests/vectors/make_secagg_v3.py --check    fails unless the file is what would be written

It runs the protocol of secagg_v3_spec, not fedcore, which has to come to the same bytes. Encapsulation of ML-KEM draws
its own randomness: in the hybrid round the ciphertexts differ at every run, so `--check` leaves that round out.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import secagg_v3_spec as spec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE = Path(__file__).with_name("secagg_v3.json")
WORDS = 12
MODULUS = 2**64


class Round:
    """One honest round; `present` says for each step who takes it."""

    def __init__(self, name: str, present: dict[str, list[int]], **parameters: Any) -> None:
        cohort = parameters["cohort"]
        self.p = {
            "federation": "vectors", "run": "run", "round": 7, "corrupt": 0, "words": WORDS, "encoding": b"opaque",
            "roster_hash": _hash("roster"), "model_hash": _hash("model"), "task_hash": _hash("task"), **parameters,
        }  # fmt: skip
        self.name, self.present = name, present
        self.identities = {i: Ed25519PrivateKey.from_private_bytes(_hash(f"identity {i}")) for i in cohort}
        self.draw = {i: spec.randomness(f"{name} {i}") for i in cohort}
        self.context = self._context()
        self._advertise()
        self._share()
        self._upload()

    def _context(self) -> bytes:
        p = self.p
        return spec.tagged_hash(
            "", p["federation"], p["run"], p["round"], len(p["cohort"]), spec.pack_ids(p["cohort"]), p["quorum"],
            p["degree"], p["threshold"], p["corrupt"], p["agreement"], p["words"], p["encoding"], p["roster_hash"],
            p["model_hash"], p["task_hash"],
        )  # fmt: skip

    def _advertise(self) -> None:
        self.ids = self.present["advertise"]
        self.seal_pairs, self.mask_pairs, self.advertisements, leaves = {}, {}, {}, []
        for i in self.ids:
            self.seal_pairs[i], self.mask_pairs[i] = (
                spec.Pair(self.p["agreement"], self.draw[i](32)) for _ in range(2)
            )
            keys = self.seal_pairs[i].public, self.mask_pairs[i].public
            signature = self.identities[i].sign(spec.statement("adv", self.context, i, *keys))
            self.advertisements[i] = {"c": keys[0], "s": keys[1], "signature": signature}
            leaves.append(spec.tagged_hash("message", "advertisement", i, *keys, signature))
        self.leaves, self.root = leaves, spec.tree_root(leaves)
        cohort = spec.tagged_hash("cohort", self.context, spec.pack_ids(self.ids), self.root)
        self.bound = spec.Bound(self.context, cohort)
        self.ring_seed = spec.tagged_hash("order", self.context, cohort)
        self.ring = spec.Ring.of(self.ids, self.p["degree"], self.ring_seed)

    def _proof(self, client: int) -> list[bytes]:
        shown = {self.ids.index(i) for i in (client, *self.ring.neighbours(client))}
        return spec.tree_proof(self.leaves, shown)

    def _share(self) -> None:
        t = self.p["threshold"]
        self.sharers = self.present["share"]
        self.self_secrets, self.key_shares, self.shares, self.chosen, self.dealings = {}, {}, {}, {}, {}
        for i in self.sharers:
            holders = (i, *self.ring.neighbours(i))
            self.self_secrets[i] = self.draw[i](32)
            split = [
                spec.split(secret, self.draw[i](49 * (t - 1)), t, len(holders))
                for secret in (self.mask_pairs[i].root, self.self_secrets[i])
            ]
            self.shares[i] = {v: tuple(s[self.ring.point(i, v) - 1] for s in split) for v in holders}
            self.key_shares[i] = self._sealed(i)

    def _sealed(self, i: int) -> dict[str, Any]:
        sealed: dict[str, dict[int, bytes]] = {"shares": {}, "pair_secrets": {}}
        for v in self.ring.neighbours(i):
            text, peer = b"".join(self.shares[i][v]), self.advertisements[v]
            parcel = self.bound.commitments(i, v, self.shares[i][v])
            sealed["shares"][v] = parcel + self.bound.seal("share", self.seal_pairs[i], peer["c"], i, v, text)
            if self.ring.chooses(i, v):
                self.chosen[i, v] = secret = self.bound.pair_secret(self.mask_pairs[i].root, i, v)
                sealed["pair_secrets"][v] = self.bound.seal("pair-seal", self.mask_pairs[i], peer["s"], i, v, secret)
        commitment = spec.tagged_hash("bcom", self.context, i, self.self_secrets[i])
        own = self.bound.commitments(i, i, self.shares[i][i])
        dealt = {i: own, **sealed["shares"]}
        leaves = [
            spec.tagged_hash("shares-leaf", v, dealt[v], sealed["pair_secrets"].get(v, b""))
            for v in sorted(dealt, key=lambda v: self.ring.point(i, v))
        ]
        signature = self.identities[i].sign(self.bound.dealing(i, commitment, leaves))
        self.dealings[i] = leaves
        pairs = (("c", self.seal_pairs[i]), ("s", self.mask_pairs[i]))
        possession = b"".join(spec.possession(self.context, pair, i, part) for part, pair in pairs)
        return {"commitment": commitment, "own": own, "signature": signature, "possession": possession, **sealed}

    def _mask(self, i: int, v: int) -> tuple[int, bytes]:
        secret = self.chosen[(i, v) if self.ring.chooses(i, v) else (v, i)]
        return (1 if i < v else -1), self.bound.pair_seed(secret, i, v)

    def _upload(self) -> None:
        self.survivors = self.present["upload"]
        self.inputs = {i: spec.words(hashlib.shake_256(b"input %d" % i).digest(8 * WORDS)) for i in self.survivors}
        self.masks, self.masked = {}, {}
        for i in self.survivors:
            peers = [v for v in self.ring.neighbours(i) if v in self.sharers]
            self.masks[i] = [(1, self.bound.self_seed(self.self_secrets[i])), *(self._mask(i, v) for v in peers)]
            self.masked[i] = _added(self.inputs[i], self.masks[i])
        statement = self.bound.consistency(self.sharers, self.survivors)
        self.statement = statement
        self.signatures = {i: self.identities[i].sign(statement) for i in self.present["sign"]}

    def _unmask(self, i: int) -> dict[str, dict[int, bytes]]:
        owners = [v for v in (i, *self.ring.neighbours(i)) if v in self.sharers]
        return {
            "self": {v: self.shares[v][i][1] for v in owners if v in self.survivors},
            "key": {v: self.shares[v][i][0] for v in owners if v not in self.survivors},
        }

    def _mask_terms(self) -> list[tuple[int, bytes]]:
        own = [(-sign, seed) for i in self.survivors for sign, seed in self.masks[i][:1]]
        lost = [i for i in self.sharers if i not in self.survivors]
        pairs = [self._mask(i, v) for i in lost for v in self.ring.neighbours(i) if v in self.survivors]
        return sorted(own + pairs, key=lambda term: term[1])

    def record(self) -> dict[str, Any]:
        ring = self.ring
        return {
            "name": self.name,
            "parameters": self.p,
            "present": self.present,
            "identities": {i: key.private_bytes_raw() for i, key in self.identities.items()},
            "ctx": self.context,
            "roots": {i: {"c": self.seal_pairs[i].root, "s": self.mask_pairs[i].root} for i in self.ids},
            "advertisements": self.advertisements,
            "leaves": dict(zip(self.ids, self.leaves, strict=True)),
            "tree_root": self.root,
            "L1": self.bound.cohort,
            "ring_seed": self.ring_seed,
            "ring": ring.order,
            "neighbours": {i: ring.neighbours(i) for i in self.ids},
            "chooses": {i: [v for v in ring.neighbours(i) if ring.chooses(i, v)] for i in self.ids},
            "points": {i: {v: ring.point(i, v) for v in (i, *ring.neighbours(i))} for i in self.ids},
            "proofs": {i: self._proof(i) for i in self.ids},
            "self_secrets": self.self_secrets,
            "shares": {i: {v: b"".join(pair) for v, pair in held.items()} for i, held in self.shares.items()},
            "key_shares": self.key_shares,
            "dealings": self.dealings,
            "pair_secrets": {i: {v: s for (c, v), s in self.chosen.items() if c == i} for i in self.sharers},
            "inputs": self.inputs,
            "masks": {i: sorted(terms, key=lambda term: term[1]) for i, terms in self.masks.items()},
            "masked": self.masked,
            "consistency": self.statement,
            "signatures": self.signatures,
            "unmask": {i: self._unmask(i) for i in self.present["unmask"]},
            "mask_terms": self._mask_terms(),
            "sum": [sum(column) % MODULUS for column in zip(*self.inputs.values(), strict=True)],
        }


def _added(plain: Sequence[int], masks: Sequence[tuple[int, bytes]]) -> list[int]:
    total = list(plain)
    for sign, seed in masks:
        stream = spec.words(spec.keystream(seed, 0, 8 * len(total)))
        total = [(value + sign * mask) % MODULUS for value, mask in zip(total, stream, strict=True)]
    return total


def _complaints(made: Round, dealer: int, receiver: int) -> list[dict[str, Any]]:
    """What `receiver` says of what `dealer` sealed for it, right or wrongly, and who is at fault then.

    `parcel` and `pair_secret` are what the dealer signed; the nonce is what the receiver draws.
    """
    dealt = made.key_shares[dealer]
    parcel, secret = dealt["shares"][receiver], dealt["pair_secrets"].get(receiver, b"")
    pairs, publics = (made.seal_pairs[receiver], made.mask_pairs[receiver]), made.advertisements[dealer]
    other = made.bound.commitments(dealer, receiver, made.shares[dealer][dealer])
    cases = [
        ("shares", parcel[:-1] + bytes([parcel[-1] ^ 1]), secret, dealer, "sealed-garbage"),
        ("shares", other + parcel[32:], secret, dealer, "inconsistent-dealing"),
        ("shares", parcel, secret, receiver, "false-complaint"),
        ("pair-secret", parcel, secret[:-1] + bytes([secret[-1] ^ 1]) if secret else b"", dealer, "sealed-garbage"),
        ("pair-secret", parcel, secret, receiver, "false-complaint"),
    ]
    record = []
    for part, shown, sealed, guilty, fault in cases if secret else cases[:3]:
        nonce, pair = made.draw[receiver](64), pairs[part != "shares"]
        public = publics["c" if part == "shares" else "s"]
        shared, proof, seed = spec.complaint(made.bound, part, pair, public, receiver, dealer, nonce)
        entry = {"complainant": receiver, "accused": dealer, "part": part, "nonce": nonce, "parcel": shown,
                 "pair_secret": sealed, "mlkem_seed": seed}  # fmt: skip
        record.append({**entry, "shared": shared, "proof": proof, "altered": False, "guilty": guilty, "fault": fault})
        wrong = {"shared": _flipped(shared, 0)} if fault == "false-complaint" else {"proof": _flipped(proof, 32)}
        record.append({**record[-1], **wrong, "altered": True, "guilty": receiver, "fault": "false-complaint"})
    return record


def full_round() -> dict[str, Any]:
    """Four clients on the full graph; the fourth is gone before its upload."""
    everybody, left = [1, 2, 3, 4], [1, 2, 3]
    present = {"advertise": everybody, "share": everybody, "upload": left, "sign": left, "unmask": left}
    made = Round("full", present, cohort=everybody, quorum=3, degree=3, threshold=3, agreement="x25519")
    record = made.record()
    other = record["advertisements"][3]["s"]
    record["complaints"] = [case for v in (2, 3) for case in _complaints(made, v, 1)]
    record["refused"] = [
        _no("client.share_keys", 1, ["members", 1, "c_public"], other, "key-substitution"),
        _no("client.share_keys", 1, ["members", 1, "signature"], bytes(64), "key-substitution"),
        _no("client.share_keys", 1, ["members", 0, "s_public"], other, "own-entry-altered"),
        _no("client.share_keys", 1, ["ids"], [1, 2, 3, 3], "duplicate-id"),
        _no("client.share_keys", 1, ["proof"], [bytes(32)], "malformed"),
        _no("client.receive_shares", 1, ["shares", 2], record["key_shares"][3]["shares"][1], "share-unsealing"),
        _no("client.receive_shares", 1, ["shares", 2], bytes(1202), "malformed"),
        _no(
            "client.receive_shares",
            1,
            ["shares", 2],
            _flipped(record["key_shares"][2]["shares"][1], 31),
            "uncommitted-share",
        ),
        _no(
            "client.receive_shares",
            1,
            ["shares", 2],
            _flipped(record["key_shares"][2]["shares"][1], 32),
            "share-unsealing",
        ),
        _no("client.receive_shares", 1, ["sharers"], [1, 2], "cohort-below-minimum"),
        _no("client.receive_shares", 1, ["sharers"], [2, 3, 4], "own-id-missing"),
        _no("client.receive_shares", 1, ["sharers"], [1, 2, 3, 4, 5], "sharers-not-advertised"),
        _no("client.sign_survivors", 1, ["survivors"], [2, 3, 4], "own-id-missing"),
        _no("client.sign_survivors", 1, ["survivors"], [1, 2], "cohort-below-minimum"),
        _no("client.sign_survivors", 1, ["survivors"], [1, 2, 5], "survivors-not-sharers"),
        _no("client.unmask", 1, ["signatures", 3], record["signatures"][2], "inconsistent-survivors"),
        _no("client.unmask", 1, ["signatures", 4], record["signatures"][2], "signer-not-survivor"),
        _no("server.receive_advertisement", 2, ["s_public"], other, "key-substitution"),
        _no("server.receive_advertisement", 2, ["signature"], bytes(63), "malformed"),
        _no("server.receive_consistency", 2, ["signature"], record["signatures"][1], "inconsistent-survivors"),
        _no("server.receive_unmask", 2, ["key_shares", 1], bytes(33), "shares-for-both"),
        _no("server.receive_unmask", 2, ["self_shares"], {}, "wrong-recipients"),
        _no("server.receive_unmask", 2, ["self_shares", 1], spec.PRIME.to_bytes(33, "big"), "malformed"),
    ]
    return record


def ring_round() -> dict[str, Any]:
    """Thirteen clients on a ring of degree six; one is lost at each step, the last two in sight of each other."""
    everybody = [*range(1, 13), 2**63 - 1]
    present = {"advertise": everybody}
    order = Round(
        "ring", dict.fromkeys(("advertise", "share", "upload", "sign", "unmask"), everybody), **RING
    ).ring.order
    gone: set[int] = set()
    for step, place in (("share", 0), ("upload", 1), ("sign", 7)):
        gone.add(order[place])
        present[step] = [i for i in everybody if i not in gone]
    present["unmask"] = present["sign"]
    made = Round("ring", present, **RING)
    record, ring = made.record(), made.ring
    reader = next(
        i for i in present["sign"] if sum(ring.chooses(v, i) for v in ring.neighbours(i) if v in made.sharers) > 1
    )
    one, two = [v for v in ring.neighbours(reader) if v in made.sharers and ring.chooses(v, reader)][:2]
    chosen = next(v for v in ring.neighbours(reader) if ring.chooses(reader, v))
    sealed, stranger = made.key_shares, next(v for v in everybody if v != reader and v not in ring.neighbours(reader))
    record["refused"] = [
        _no("client.share_keys", reader, ["proof", 0], bytes(32), "wrong-neighbours"),
        _no("client.share_keys", reader, ["proof"], [], "malformed"),
        _no(
            "client.receive_shares",
            reader,
            ["pair_secrets", one],
            sealed[two]["pair_secrets"][reader],
            "share-unsealing",
        ),
        _no("client.receive_shares", reader, ["shares", one], sealed[two]["shares"][reader], "share-unsealing"),
        _no("client.receive_shares", reader, ["pair_secrets", chosen], bytes(48), "wrong-recipients"),
        _no("client.receive_shares", reader, ["shares", stranger], bytes(114), "wrong-recipients"),
        _no("client.receive_shares", reader, ["pair_secrets"], {}, "wrong-recipients"),
        _no("client.unmask", reader, ["signatures", made.present["sign"][0]], bytes(64), "inconsistent-survivors"),
        _no("server.receive_shares", reader, ["pair_secrets"], {}, "wrong-recipients"),
        _no("server.receive_shares", reader, ["shares", stranger], bytes(114), "wrong-recipients"),
        _no("server.receive_unmask", reader, ["self_shares", stranger], bytes(33), "wrong-recipients"),
    ]
    return record


RING: dict[str, Any] = {
    "cohort": [*range(1, 13), 2**63 - 1], "quorum": 9, "degree": 6, "threshold": 5, "agreement": "x25519"
}  # fmt: skip


def hybrid_round() -> dict[str, Any]:
    """Three clients with X25519 and ML-KEM-768; the third is gone before its upload."""
    everybody, left = [1, 2, 3], [1, 2]
    present = {"advertise": everybody, "share": everybody, "upload": left, "sign": left, "unmask": left}
    made = Round("hybrid", present, cohort=everybody, quorum=2, degree=2, threshold=2, agreement=spec.HYBRID)
    record = made.record()
    parcel = record["key_shares"][2]["shares"][1]
    record["complaints"] = [case for ends in ((2, 1), (1, 2), (3, 2)) for case in _complaints(made, *ends)]
    key = bytearray(record["advertisements"][2]["c"])
    key[32:34] = b"\xff\xff"
    signature = made.identities[2].sign(
        spec.statement("adv", made.context, 2, bytes(key), record["advertisements"][2]["s"])
    )
    record["refused"] = [
        _no("client.receive_shares", 1, ["shares", 2], _flipped(parcel, 32), "share-unsealing"),
        _no("client.receive_shares", 1, ["shares", 2], parcel[1088:], "malformed"),
        _no("server.receive_advertisement", 2, [], {"client_id": 2, "c_public": bytes(key),
            "s_public": record["advertisements"][2]["s"], "signature": signature}, "malformed"),
    ]  # fmt: skip
    return record


def _no(step: str, client: int, path: list[Any], value: Any, check: str) -> dict[str, Any]:
    """The honest message of a step with the part at `path` exchanged, and the check that refuses it.

    `step` is the method of the client or of the server that gets the message; `client` is whose message it is to
    receive or was to send.
    """
    return {"step": step, "client": client, "path": path, "value": value, "check": check}


def _flipped(raw: bytes, place: int) -> bytes:
    return raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]


def statements() -> list[dict[str, Any]]:
    """Every usage, with fields of every kind."""
    usages = [
        "",
        "x25519",
        "mlkem768",
        "adv",
        "tree",
        "cohort",
        "order",
        "share",
        "bcom",
        "share-com",
        "shares",
        "shares-leaf",
        "complaint",
        "self",
        "pair-secret",
        "pair-seal",
        "pair",
        "sets",
        "consistency",
        "message",
        "possession",
        "possession-nonce",
    ]
    fields = [[], [b""], ["text", 5, b"\x00\xff"], [2**63 - 1, "é"]]
    return [
        {
            "tag": f"{spec.VERSION}/{usage}" if usage else spec.VERSION,
            "fields": [{type(field).__name__: field} for field in some],
            "statement": spec.statement(usage, *some),
            "hash": spec.tagged_hash(usage, *some),
            "derived": spec.derive(_hash("secret"), _hash("salt"), usage, *some),
        }
        for k, usage in enumerate(usages)
        for some in (fields[k % 4], fields[2])
    ]


def streams() -> list[dict[str, Any]]:
    """Masks from their start, from inside a cipher block, and across the end of a chunk."""
    border = spec.CHUNK // 8
    return [
        {"seed": seed, "offset": offset, "words": spec.words(spec.keystream(seed, 8 * offset, 8 * 12))}
        for seed in (bytes(32), _hash("seed"))
        for offset in (0, 3, 4096, border - 8, border - 5, border, 2**32 * border - 1)
    ]


def trees() -> list[dict[str, Any]]:
    """Roots, and proofs of some leaves."""
    cases = [(1, [0]), (2, [1]), (3, [0, 2]), (7, [3]), (8, [0, 7]), (13, [2, 3, 11]), (100, [0, 50, 99])]
    leaves = {count: [_hash(f"leaf {i}") for i in range(count)] for count, _ in cases}
    return [
        {"leaves": count, "shown": shown, "root": spec.tree_root(leaves[count]),
         "proof": spec.tree_proof(leaves[count], set(shown))}
        for count, shown in cases
    ]  # fmt: skip


def sharings() -> list[dict[str, Any]]:
    """Splits at the edges of the field and of the threshold."""
    cases = [(1, 1), (2, 3), (3, 7), (5, 7), (5, 9), (24, 35)]
    record = []
    for k, (threshold, holders) in enumerate(cases):
        secret = [_hash("secret"), bytes(32), b"\xff" * 32][k % 3]
        pool = spec.randomness(f"sharing {k}")(49 * (threshold - 1))
        shares = spec.split(secret, pool, threshold, holders)
        record.append({"secret": secret, "threshold": threshold, "pool": pool, "shares": shares})
    return record


def orders() -> list[dict[str, Any]]:
    """Rings of several sizes; in the last pair one bit of the seed differs."""
    flipped = bytes([_hash("order")[0] ^ 1]) + _hash("order")[1:]
    sizes = [(2, 1), (5, 2), (5, 4), (20, 8), (21, 8)]
    made = [(size, degree, seed) for size, degree in sizes for seed in (_hash("order"), flipped)]
    return [
        {"members": size, "degree": degree, "seed": seed,
         "ring": spec.Ring.of(range(1, size + 1), degree, seed).order}
        for size, degree, seed in made
    ]  # fmt: skip


def possessions() -> list[dict[str, Any]]:
    """Proofs that hold, of several pairs, and what was made of one, with whether that holds."""
    record = []
    for client, part in ((1, "c"), (1, "s"), (2**63 - 1, "c"), (2, "s")):
        pair = spec.Pair("x25519", _hash(f"possession {client} {part}"))
        record.append({"ctx": _hash("ctx"), "id": client, "part": part, "root": pair.root, "public": pair.public,
                       "proof": spec.possession(_hash("ctx"), pair, client, part), "holds": True})  # fmt: skip
    one, other = record[0], record[2]["public"]
    response = int.from_bytes(one["proof"][32:], "little") + spec.CURVE_ORDER
    changes = [
        ("another client", {"id": 2}),
        ("another part", {"part": "s"}),
        ("another exchange", {"ctx": _hash("other ctx")}),
        ("another's key", {"public": other}),
        ("the same coordinate otherwise", {"public": one["public"][:31] + bytes([one["public"][31] ^ 128])}),
        ("another challenge", {"proof": _flipped(one["proof"], 0)}),
        ("another response", {"proof": _flipped(one["proof"], 32)}),
        ("a response above q", {"proof": one["proof"][:32] + response.to_bytes(32, "little")}),
        ("zeros", {"proof": bytes(64)}),
    ]
    record += [{**one, "changed": what, **change, "holds": False} for what, change in changes]
    twist = (2).to_bytes(32, "little")
    return [*record, {**one, "changed": "a key without lift", "public": twist, "proof": bytes(64), "holds": True}]


def build() -> dict[str, Any]:
    """Everything that the JSON file holds."""
    return {
        "what": "fedcore secure aggregation, version 3; bytes are in hexadecimal",
        "randomness": "call k (from 1) for n bytes by client i of a round: the first n bytes of SHAKE-256('NAME i/k')",
        "statements": statements(),
        "streams": streams(),
        "trees": trees(),
        "orders": orders(),
        "sharings": sharings(),
        "possessions": possessions(),
        "rounds": [full_round(), ring_round(), hybrid_round()],
    }


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _plain(value: Any) -> Any:
    """As JSON has it: bytes in hexadecimal, keys as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def main() -> None:
    made = _plain(build())
    if "--check" not in sys.argv:
        FILE.write_text(json.dumps(made, indent=1) + "\n")
        return
    kept = json.loads(FILE.read_text())
    for version in (made, kept):
        version["rounds"] = [record for record in version["rounds"] if record["name"] != "hybrid"]
    if made != kept:
        sys.exit("secagg_v3.json is not what make_secagg_v3.py makes")


if __name__ == "__main__":
    main()
