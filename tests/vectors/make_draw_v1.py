"""Makes draw_v1.json: draws of groups with fixed keys and random bytes, from docs/protocol.md and without fedcore.

    python tests/vectors/make_draw_v1.py

A field is packed after its length in 8 bytes, big-endian; text is UTF-8, a number 8 bytes, big-endian. A client signs
(tag, federation, the digest of the draw's task, its 32 random bytes), with Ed25519 (RFC 8032). Its place on the ring is
SHA-256 of (tag, digest, its id, its bytes). Groups are consecutive parts of the ring, the larger ones first. A group's
task has SHA-256 of (tag, then id, bytes and signature of each client, in the order of their ids).

A liar's task is the honest one of a group with some fields changed; where it changes the answers, the hash over them is
made anew, unless that is the lie.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FILE = Path(__file__).with_name("draw_v1.json")
VERSION = "fedcore/draw/v1"
LARGEST = 2**31 - 1

Answer = dict[str, Any]


def packed(*fields: bytes | str | int) -> bytes:
    """Each field after its length."""
    whole = b""
    for field in fields:
        match field:
            case int():
                raw = field.to_bytes(8, "big")
            case str():
                raw = field.encode("utf-8")
            case _:
                raw = field
        whole += len(raw).to_bytes(8, "big") + raw
    return whole


def digest(text: str) -> bytes:
    """32 bytes that everybody can make again."""
    return hashlib.sha256(text.encode()).digest()


def identity(client: int) -> Ed25519PrivateKey:
    """The key of a client."""
    return Ed25519PrivateKey.from_private_bytes(digest(f"identity {client}"))


def answer(federation: str, draw: bytes, client: int, again: str = "") -> Answer:
    """What one client answers; `again` for other bytes than it gave first."""
    nonce = digest(f"bytes of {client}{again}")
    statement = packed(f"{VERSION}/place", federation, draw, nonce)
    return {
        "client": client,
        "identity": identity(client).private_bytes_raw().hex(),
        "nonce": nonce.hex(),
        "statement": statement.hex(),
        "signature": identity(client).sign(statement).hex(),
        "place": place(draw, client, nonce),
    }


def place(draw: bytes, client: int, nonce: bytes) -> str:
    """Where these bytes put a client."""
    return hashlib.sha256(packed(f"{VERSION}/ring", draw, client, nonce)).hexdigest()


def hash_of(answers: Sequence[Answer]) -> str:
    """Over all answers, as a group's task names them."""
    fields: list[bytes | int] = []
    for one in answers:
        fields += [one["client"], bytes.fromhex(one["nonce"]), bytes.fromhex(one["signature"])]
    return hashlib.sha256(packed(f"{VERSION}/places", *fields)).hexdigest()


def cut(order: list[int], groups: int, least: int) -> list[list[int]]:
    """Consecutive parts of the ring, each by ascending ids."""
    count = min(groups, len(order) // least)
    sizes = [len(order) // count + (1 if number < len(order) % count else 0) for number in range(count)]
    rest, parts = list(order), []
    for size in sizes:
        parts.append(sorted(rest[:size]))
        rest = rest[size:]
    return parts


def drawn(name: str, federation: str, asked: int, clients: Sequence[int], groups: int, least: int) -> dict[str, Any]:
    """A whole draw: who answered what, the order on the ring, and the groups."""
    draw = digest(name)
    answers = [answer(federation, draw, client) for client in sorted(clients)]
    order = [one["client"] for one in sorted(answers, key=lambda one: one["place"])]
    return {
        "name": name,
        "federation": federation,
        "draw": draw.hex(),
        "asked": asked,
        "cut": {"groups": groups, "least": least},
        "answers": answers,
        "places": hash_of(answers),
        "order": order,
        "groups": cut(order, groups, least),
    }


def lies(honest: dict[str, Any]) -> list[dict[str, Any]]:
    """What a server may tell a member of the first group in place of its task; all of it is refused."""
    answers, groups, least = honest["answers"], honest["groups"], honest["cut"]["least"]
    federation, draw = honest["federation"], bytes.fromhex(honest["draw"])
    member, mate = groups[0][:2]
    stranger = groups[1][0]

    def told(lie: str, shown: Sequence[Answer] = answers, **changes: Any) -> dict[str, Any]:
        ring = sorted(shown, key=lambda one: place(draw, one["client"], bytes.fromhex(one["nonce"])))
        parts = cut([one["client"] for one in ring], honest["cut"]["groups"], least)
        number = next((number for number, part in enumerate(parts, 1) if member in part), 1)
        task = {"places": hash_of(shown), "number": number, "of": len(parts), "cohort": parts[number - 1], **changes}
        kept = [{key: one[key] for key in ("client", "nonce", "signature")} for one in shown]
        return {"lie": lie, "to": member, "answers": kept, **task}

    def with_answer(client: int, **fields: Any) -> list[Answer]:
        return [{**one, **fields} if one["client"] == client else one for one in answers]

    def without(client: int) -> list[Answer]:
        return [one for one in answers if one["client"] != client]

    def by(client: int) -> Answer:
        return next(one for one in answers if one["client"] == client)

    elsewhere = answer("another federation", draw, stranger)
    earlier = answer(federation, digest("another draw"), stranger)
    moved = answer(federation, draw, member, again=", again")
    return [
        told("a stranger in the cohort", cohort=sorted([*groups[0], stranger])),
        told("the cohort of another group", cohort=groups[1]),
        told("a number beyond the groups", number=len(groups) + 1),
        told("more groups than there are", of=len(groups) + 1),
        told("a cohort that is too small", cohort=groups[0][: least - 1]),
        told("a hash of other answers", places=digest("other answers").hex()),
        told("the receiver left out", without(member)),
        told("other bytes in the receiver's name", [moved if one["client"] == member else one for one in answers]),
        told("bytes that nobody signed", with_answer(stranger, nonce=digest("chosen by the server").hex())),
        told("a signature of somebody else", with_answer(stranger, signature=by(mate)["signature"])),
        told("a signature for another federation", with_answer(stranger, signature=elsewhere["signature"])),
        told("a signature for another draw", with_answer(stranger, signature=earlier["signature"])),
        told("a client that is not on the roster", [*without(stranger), answer(federation, draw, LARGEST)]),
        told("an answer twice", sorted([*answers, by(stranger)], key=lambda one: one["client"])),
        told("answers in another order", answers[::-1]),
        told("too few answers", [by(client) for client in sorted({*groups[0], *groups[1]})]),
    ]


def build() -> dict[str, Any]:
    """Everything that the JSON file holds."""
    nine = drawn("nine in three", "vectors", 9, range(1, 10), 3, 3)
    return {
        "what": "draws of groups, version 1; bytes are in hexadecimal",
        "draws": [
            nine,
            drawn("uneven parts", "vectors", 11, [*range(2, 12), LARGEST], 3, 2),
            drawn("fewer groups than wanted", "vectors", 7, range(1, 8), 4, 3),
            drawn("a single group", "fédération", 6, range(1, 6), 2, 3),
            drawn("answers missing", "vectors", 13, [1, 2, 3, 5, 8, 9, 10, 12, 13], 4, 2),
        ],
        "refused": lies(nine),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(build(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
