"""Fingerprints of keys, which two people read to each other over a line that they trust."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final

from fedcore.errors import KitError

_GROUP: Final = 4
_SEPARATORS: Final = re.compile(r"[\s:-]")


def fingerprint(public_key: bytes) -> str:
    """SHA-256 of a raw public key, as hexadecimal digits in groups of four."""
    digits = hashlib.sha256(public_key).hexdigest()
    return "-".join(digits[start : start + _GROUP] for start in range(0, len(digits), _GROUP))


def check_fingerprint(public_key: bytes, expected: Iterable[str], what: str) -> None:
    """KitError unless one that was `expected`, grouped in any way, is the fingerprint of `public_key`."""
    if _digits(fingerprint(public_key)) not in map(_digits, expected):
        raise KitError(
            f"{what} has the fingerprint {fingerprint(public_key)}, which is not the one that was named; ask its owner "
            "over a channel that you trust, and accept nothing until the two agree",
            check="other-fingerprint",
        )


def _digits(text: str) -> str:
    return _SEPARATORS.sub("", text).lower()
