"""Write rotation_v1.json: the rotation of updates, from its definition, without fedcore's code.

Signs: bit i of ChaCha20(SHA-256("fedcore/codec/rotation/signs/v1" || seed), nonce = the unit's number, 96 bits,
little-endian), lowest bit of a byte first; 1 is a minus. Rows: those of the smallest of R draws of 64 bits, little-
endian, of the same with "subset". Transform: H[i, j] = (-1)^(number of ones in i AND j), over sqrt(R), on each column
of the matrix [R, columns]. The elements are ((37 i) mod 101 - 50) / 64, with zeros behind them. The first coordinates
that come out are shown.

Run it as `python tests/vectors/make_rotation_v1.py`.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

_CASES = ((0, 1024, 64, 1.0), (7, 1100, 64, 0.25), (65537, 3000, 128, 0.4))
_SHOWN = 160


def keystream(usage: bytes, seed: bytes, number: int, count: int) -> bytes:
    """`count` bytes of the stream of one unit."""
    key = hashlib.sha256(b"fedcore/codec/rotation/" + usage + b"/v1" + seed).digest()
    nonce = bytes(4) + number.to_bytes(12, "little")
    return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(count))


def case(number: int, size: int, rows: int, share: float) -> dict[str, Any]:
    """One unit: what goes in, what comes out, and the rows that are sent."""
    seed = hashlib.sha256(b"fedcore/codec/rotation/seed/v1" + b"ab" * 32).digest()
    columns = -(-size // rows)
    values = [((37 * i) % 101 - 50) / 64 if i < size else 0.0 for i in range(rows * columns)]
    bits = keystream(b"signs", seed, number, -(-len(values) // 8))
    signed = [-value if bits[i // 8] >> i % 8 & 1 else value for i, value in enumerate(values)]
    rotated = [
        sum((-1) ** (i & j).bit_count() * signed[j * columns + column] for j in range(rows)) / math.sqrt(rows)
        for i in range(rows)
        for column in range(columns)
    ]
    stream = keystream(b"subset", seed, number, 8 * rows)
    draws = [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(rows)]
    kept = max(1, math.ceil(rows * share))
    return {
        "model": "ab" * 32,
        "seed": seed.hex(),
        "number": number,
        "size": size,
        "rows": rows,
        "share": share,
        "rotated": [round(value, 6) for value in rotated[:_SHOWN]],
        "sent": sorted(sorted(range(rows), key=draws.__getitem__)[:kept]) if kept < rows else list(range(rows)),
    }


if __name__ == "__main__":
    path = Path(__file__).with_name("rotation_v1.json")
    path.write_text(json.dumps({"cases": [case(*one) for one in _CASES]}, indent=1) + "\n", encoding="utf-8")
