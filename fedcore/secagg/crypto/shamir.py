"""Shamir's secret sharing over GF(p), with reconstruction that notices wrong shares.

p = 2^256 + 297 is the smallest prime above 2^256, so a 32-byte secret is a field element as it is; a share is an
element in 33 big-endian bytes. With m holders the shares lie at the points 1 to m: small numbers, whose differences
make all coefficients cheap. Sources: Shamir 1979 (CACM 22); the parity check is SCRAPE's (Cascudo and David 2017,
section 2.1). Which share is wrong is not found out here: each holder's was committed to (`dealing`).

This arithmetic does not run in constant time. A client only evaluates its own polynomials, on a machine where nobody
else measures; the server rebuilds secrets that it is entitled to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fedcore.errors import UnmaskFailed, UsageError
from fedcore.secagg.crypto import polynomial
from fedcore.secagg.crypto.keys import Randomness, Secret, draw
from fedcore.secagg.crypto.polynomial import PRIME

SECRET_BYTES = 32
SHARE_BYTES = 33

# 128 bits more than the field needs: the remainder modulo p is then within 2^-128 of uniform (RFC 9380, section 5).
_ELEMENT_DRAW_BYTES = 49


def split(secret: Secret, *, threshold: int, holders: int, randomness: Randomness) -> tuple[bytes, ...]:
    """Share 32 secret bytes so that any `threshold` of `holders` can rebuild them and fewer learn nothing.

    Returns 33-byte shares; the one at index i belongs to point i + 1.
    """
    raw = secret.reveal()
    if len(raw) != SECRET_BYTES:
        raise UsageError(f"a shared secret has {SECRET_BYTES} bytes")
    if not 1 <= threshold <= holders:
        raise UsageError("the threshold lies between 1 and the number of holders")
    coefficients = [int.from_bytes(raw, "big"), *_elements(threshold - 1, randomness)]
    values = polynomial.evaluate(coefficients, holders)
    return tuple([value.to_bytes(SHARE_BYTES, "big") for value in values])


def _elements(count: int, randomness: Randomness) -> list[int]:
    """Uniform elements of the field."""
    pool = draw(randomness, _ELEMENT_DRAW_BYTES * count)
    parts = (pool[i : i + _ELEMENT_DRAW_BYTES] for i in range(0, len(pool), _ELEMENT_DRAW_BYTES))
    return [int.from_bytes(part, "big") % PRIME for part in parts]


def is_share(raw: object) -> bool:
    """Whether `raw` is 33 bytes that encode an element of the field."""
    return isinstance(raw, bytes) and len(raw) == SHARE_BYTES and int.from_bytes(raw, "big") < PRIME


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What depends on the points alone. `weights` are Lagrange's coefficients at zero over all points.

    `parity` is a word of the dual code over all points: its product with the shares is zero if they lie on one
    polynomial of degree < t, and with probability m / p at most if they do not.
    """

    points: tuple[int, ...]
    weights: tuple[int, ...]
    parity: tuple[int, ...]

    def consistent(self, values: Sequence[int]) -> bool:
        return sum(map(int.__mul__, self.parity, values)) % PRIME == 0

    def secret(self, values: Sequence[int]) -> int:
        return sum(map(int.__mul__, self.weights, values)) % PRIME


class Rebuilder:
    """Rebuilds secrets that were shared with the same threshold among as many holders.

    Whether all shares lie on one polynomial costs one product, so shares that are all right cost next to nothing. A
    rebuilder is made after the shares came, so that nobody can aim at its challenge.
    """

    def __init__(self, *, threshold: int, holders: int, randomness: Randomness) -> None:
        self._threshold = threshold
        self._lagrange = polynomial.SmallPoints(holders)
        self._challenge = _elements(1, randomness)[0]
        self._last: _Plan | None = None

    def rebuild(self, shares: Mapping[int, bytes], verify: Callable[[Secret], bool]) -> Secret | None:
        """The secret behind point -> share; None if not all lie on one polynomial, or `verify` refuses its secret.

        Raises UnmaskFailed if there are fewer than the threshold.
        """
        if len(shares) < self._threshold:
            raise UnmaskFailed(f"{len(shares)} good shares of it came back, {self._threshold} are needed")
        plan = self._plan(tuple(sorted(shares)))
        values = [int.from_bytes(shares[point], "big") for point in plan.points]
        return _accepted(plan.secret(values), verify) if plan.consistent(values) else None

    def _plan(self, points: tuple[int, ...]) -> _Plan:
        """On the full graph the same for every secret; in a sparse one the holders that are left differ."""
        if self._last is None or self._last.points != points:
            scales = self._lagrange.scales(points)
            self._last = _Plan(
                points=points,
                weights=self._lagrange.weights_at_zero(points, scales),
                parity=self._lagrange.dual_word(points, scales, self._threshold, self._challenge),
            )
        return self._last


def _accepted(value: int, verify: Callable[[Secret], bool]) -> Secret | None:
    """The field element as a secret if it is one and `verify` agrees."""
    if value >= 1 << (8 * SECRET_BYTES):
        return None
    secret = Secret(value.to_bytes(SECRET_BYTES, "big"))
    return secret if verify(secret) else None
