"""Makes secagg_v1.json: one round of four clients with fixed randomness, one of which drops out.

    python tests/vectors/make_secagg_v1.py

Besides the messages it records what an implementation in another language would trip over (ctx, L1, seeds, the start
of a masked vector), and altered messages with the name of the check that must refuse them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from fedcore.errors import ProtocolViolation
from fedcore.secagg import (
    AdvertisedCohort,
    ClientSession,
    RoundParameters,
    ServerRound,
    ShareDelivery,
    SignatureSet,
    Survivors,
    apply_masks,
)

IDS = (1, 2, 3, 4)
WORDS = 12


def build() -> dict[str, Any]:
    """Everything that the JSON file holds."""
    identities = {i: Ed25519PrivateKey.from_private_bytes(_hash(f"identity {i}")) for i in IDS}
    roster = {i: key.public_key().public_bytes_raw() for i, key in identities.items()}
    parameters = RoundParameters(
        federation="vectors", run="run", round=7, cohort=IDS, threshold=3, degree=3, words=WORDS,
        encoding=b"opaque", roster_hash=_hash("roster"), model_hash=_hash("model"), task_hash=_hash("task"),
    )  # fmt: skip
    server = ServerRound(parameters=parameters, roster=roster, randomness=_stream("server"))
    clients = {
        i: ClientSession(
            parameters=parameters, client_id=i, identity=identities[i], roster=roster,
            min_cohort=3, min_threshold=3, randomness=_stream(f"client {i}"),
        )
        for i in IDS
    }  # fmt: skip
    record: dict[str, Any] = {
        "what": "fedcore secure aggregation, version 1: four clients, the fourth drops out before its upload",
        "randomness": "call k (from 1) for n bytes by party P: the first n bytes of SHAKE-256('P/k')",
        "ctx": parameters.ctx().hex(),
        "roster_hash": parameters.roster_hash.hex(),
        "refused": [],
    }
    _share(server, clients, record)
    total = _upload(server, clients, record)
    _unmask(server, clients, record)
    apply_masks(total, server.mask_terms())
    record["sum"] = [int(word) for word in total]
    # The way through JSON turns the keys into text, as they are in the file.
    loaded: dict[str, Any] = json.loads(json.dumps(record))
    return loaded


def _share(server: ServerRound, clients: dict[int, ClientSession], record: dict[str, Any]) -> None:
    for session in clients.values():
        server.receive_advertisement(session.advertise())
    server.close_stage()
    cohort = server.advertised()
    record["advertisements"] = {
        m.client_id: {"c": m.c_public.hex(), "s": m.s_public.hex(), "signature": m.signature.hex()}
        for m in cohort.members
    }
    record["L1"] = cohort.digest().hex()
    swapped = replace(cohort.members[1], c_public=cohort.members[2].s_public)
    forged = AdvertisedCohort((cohort.members[0], swapped, *cohort.members[2:]))
    _refused(record, "client 2's c replaced by client 3's s", lambda: clients[1].share_keys(forged))
    shares = {i: session.share_keys(cohort) for i, session in clients.items()}
    record["key_shares"] = {
        i: {"commitment": m.commitment.hex(), "sealed": {v: raw.hex() for v, raw in m.sealed.items()}}
        for i, m in shares.items()
    }
    for message in shares.values():
        server.receive_shares(message)
    server.close_stage()
    delivery = server.delivery(1)
    replayed = ShareDelivery(delivery.sharers, {**delivery.sealed, 2: delivery.sealed[3]})
    _refused(record, "client 3's share delivered as client 2's", lambda: clients[1].receive_shares(replayed))
    for i, session in clients.items():
        session.receive_shares(server.delivery(i))


def _upload(server: ServerRound, clients: dict[int, ClientSession], record: dict[str, Any]) -> NDArray[np.uint64]:
    total = np.zeros(WORDS, dtype=np.uint64)
    record["inputs"], record["masked"] = {}, {}
    for i in IDS[:3]:
        words = np.arange(i, i + WORDS, dtype=np.uint64)
        record["inputs"][i] = [int(word) for word in words]
        clients[i].mask(words)
        record["masked"][i] = words.astype("<u8").tobytes().hex()
        server.receive_input(i, hashlib.sha256(words.astype("<u8").tobytes()).digest())
        total += words
    server.close_stage()
    return total


def _unmask(server: ServerRound, clients: dict[int, ClientSession], record: dict[str, Any]) -> None:
    lie = Survivors((2, 3, 4))
    _refused(record, "survivors without the client that is asked", lambda: clients[1].sign_survivors(lie))
    for i in IDS[:3]:
        server.receive_consistency(clients[i].sign_survivors(server.survivors()))
    server.close_stage()
    signatures = dict(server.signatures().signatures)
    record["consistency"] = {i: raw.hex() for i, raw in signatures.items()}
    short = SignatureSet({1: signatures[1], 2: signatures[2], 3: signatures[2]})
    _refused(record, "two valid signatures where three are needed", lambda: clients[1].unmask(short))
    for i in IDS[:3]:
        message = clients[i].unmask(server.signatures())
        record.setdefault("unmask", {})[i] = {
            "self": {v: raw.hex() for v, raw in message.self_shares.items()},
            "key": {v: raw.hex() for v, raw in message.key_shares.items()},
        }
        server.receive_unmask(message)
    server.close_stage()
    record["mask_terms"] = [{"sign": t.sign, "seed": t.seed.reveal().hex()} for t in server.mask_terms()]


def _refused(record: dict[str, Any], what: str, call: Callable[[], object]) -> None:
    try:
        call()
    except ProtocolViolation as violation:
        record["refused"].append({"message": what, "check": str(violation.check)})
    else:
        raise AssertionError(f"not refused: {what}")


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _stream(party: str) -> Callable[[int], bytes]:
    calls = 0

    def randomness(size: int) -> bytes:
        nonlocal calls
        calls += 1
        return hashlib.shake_256(f"{party}/{calls}".encode()).digest(size)

    return randomness


if __name__ == "__main__":
    Path(__file__).with_name("secagg_v1.json").write_text(json.dumps(build(), indent=1) + "\n")
