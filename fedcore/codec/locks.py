"""Two locks on a sum: it opens if at most `failures` clients contributed nothing, and no update was too large.

Secure aggregation promises a sum over so many clients; of those that failed it would hold nothing, and a model under
which all but one fail would lay that one open. So a client that fails draws a key k, adds a mask that follows from k to
its words, and puts the powers k^1 .. k^F into the sum, elements of GF(p) with p = 2^255 - 19. Those that do not fail
put zeros there.

If F' <= F clients failed the sum tells the first F power sums of their F' keys. Newton's identities turn these into
the coefficients of the polynomial that has the keys as its roots; its roots are found as by Cantor and Zassenhaus
("A new algorithm for factoring polynomials over finite fields", Mathematics of Computation 36, 1981), and the masks
come off. If F' > F the coefficients from x^(F' - F - 1) down are free, so each key can still be any of about p
values; a mask under such a key is as good as random, and so is what it covers. Keys of clients that help the server
are known to it, and taken off: what counts is how many honest ones failed.

Words add up modulo 2^64, and not in GF(p). A power is therefore cut into limbs of 16 bits, and the sums of the limbs
tell more than the sum modulo p: how often each was carried over. Those carries are hidden: each client adds a random
multiple of 2^16 to a limb and takes as much from the next one, and adds p or nothing to the whole.

A client of which some element exceeds its scale closes the sum for good: it adds a mask of a key that it forgets. The
sum then tells how many such clients there were, and the magnitudes from which the next scales follow
(`Encoding.unlocked`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import PeerError
from fedcore.secagg import MaskTerm, Secret, apply_masks
from fedcore.state.mapped import give_back

MOST_FAILURES = 32
"""Of more no sum needs to know the keys: finding them takes the server time in the cube of their number."""

LIMBS = 16
"""Words of one power sum."""

PRIME = 2**255 - 19

_RANGE_WORDS = 1 << 22
"""32 MiB, which a large vector in a file has in memory at a time."""
_LIMB_BITS = 16
_FOLD = 2**256 % PRIME
_SUM_BITS = 62
_TRIES = 128
_DOMAIN = b"fedcore/codec/lock/v1"
_MALFORMED = "the keys of the clients that failed do not fit together: a client sent a malformed update"

_Polynomial = list[int]
"""Coefficients in GF(p) from x^0 on; the highest is not zero."""


def carry_noise_bits(n_max: int) -> int:
    """Bits of the random number that hides a carry: as many as the sums of `n_max` limbs leave room for."""
    return _SUM_BITS - _LIMB_BITS - (n_max - 1).bit_length()


def draw_key(randomness: Callable[[int], bytes]) -> int:
    """A client's key, uniform in GF(p) but for 2^-250."""
    return int.from_bytes(randomness(32), "little") % PRIME


def mask_of(key: int) -> MaskTerm:
    """The mask that a client with this key adds to its words."""
    return MaskTerm(sign=1, seed=Secret(hashlib.sha256(_DOMAIN + key.to_bytes(32, "little")).digest()))


def forgotten_mask(randomness: Callable[[int], bytes]) -> MaskTerm:
    """A mask that nobody can take off, since its key is in no other place."""
    return MaskTerm(sign=1, seed=Secret(randomness(32)))


def power_words(key: int, failures: int, n_max: int, randomness: Callable[[int], bytes]) -> NDArray[np.uint64]:
    """What a client that failed adds to the section `keys` ([failures * LIMBS], uint64)."""
    words = [_limbs(pow(key, power, PRIME), n_max, randomness) for power in range(1, failures + 1)]
    return np.array(words, np.int64).reshape(-1).view(np.uint64)


def _limbs(value: int, n_max: int, randomness: Callable[[int], bytes]) -> list[int]:
    """Whole numbers that stand for `value` at the powers of 2^16, modulo p; a sum of `n_max` is below 2^63."""
    value += PRIME * (randomness(1)[0] & 1)
    limbs = [value >> _LIMB_BITS * position & 0xFFFF for position in range(LIMBS)]
    bits = carry_noise_bits(n_max)
    for position in range(LIMBS):
        carry = int.from_bytes(randomness(8), "little") >> 64 - bits
        limbs[position] += carry << _LIMB_BITS
        # 2^256 is 38 modulo p: what is carried out of the last limb comes in at the first.
        limbs[(position + 1) % LIMBS] -= carry if position + 1 < LIMBS else carry * _FOLD
    return limbs


def apply_lock(words: NDArray[np.uint64], spared: slice, masks: Sequence[MaskTerm], *, threads: int = 1) -> None:
    """Add masks to `words` in place, but not to the slice `spared`."""
    if not masks:
        return
    for first, last in ((0, spared.start), (spared.stop, words.size)):
        for start in range(first, last, _RANGE_WORDS):
            part = words[start : min(start + _RANGE_WORDS, last)]
            apply_masks(part, masks, threads=threads, offset=start)
            give_back(part)


def find_keys(words: NDArray[np.uint64], count: int) -> list[int]:
    """The keys of `count` clients from the sum of their sections `keys`; `count` is at most the number of power sums.

    Raises PeerError if no honest clients can have made that sum.
    """
    rows = words.view(np.int64).reshape(-1, LIMBS).tolist()
    sums = [sum(limb << _LIMB_BITS * position for position, limb in enumerate(row)) % PRIME for row in rows]
    keys = _roots(_from_power_sums(sums[:count])) if count else []
    if any(
        sum(pow(key, power, PRIME) for key in keys) % PRIME != expected for power, expected in enumerate(sums, start=1)
    ):
        raise PeerError(_MALFORMED, check="failure-keys")
    return keys


# --- polynomials over GF(p) ------------------------------------------------------------------------------------------


def _from_power_sums(sums: Sequence[int]) -> _Polynomial:
    """The product of (x - k) over as many keys k as there are power sums, by Newton's identities."""
    # i * e_i = e_(i-1) p_1 - e_(i-2) p_2 + ..., with e_i the elementary symmetric functions of the keys.
    symmetric = [1]
    for degree in range(1, len(sums) + 1):
        total = sum((-1) ** (j - 1) * symmetric[degree - j] * sums[j - 1] for j in range(1, degree + 1))
        symmetric.append(total * pow(degree, -1, PRIME) % PRIME)
    return [(-1) ** degree * value % PRIME for degree, value in enumerate(symmetric)][::-1]


def _roots(polynomial: _Polynomial) -> list[int]:
    """The roots of a product of different linear factors; raises PeerError for any other polynomial."""
    if _trimmed(_minus(_power([0, 1], PRIME, polynomial), _remainder([0, 1], polynomial))):
        raise PeerError(_MALFORMED, check="failure-keys")
    parts = [polynomial]
    # k + shift is a square for half of all shifts: so each of them parts two keys with a chance of one half.
    for shift in range(1, _TRIES):
        if all(len(part) == 2 for part in parts):
            return [-part[0] % PRIME for part in parts]
        parts = [piece for part in parts for piece in _parted(part, shift)]
    # Nobody draws such keys; who computes them spoils the sum, as any garbage would.
    raise PeerError(_MALFORMED, check="failure-keys")


def _parted(part: _Polynomial, shift: int) -> list[_Polynomial]:
    if len(part) == 2:
        return [part]
    half = _trimmed(_minus(_power([shift, 1], (PRIME - 1) // 2, part), [1]))
    common = _common_divisor(part, half)
    return [common, _divided(part, common)[0]] if 1 < len(common) < len(part) else [part]


def _power(base: _Polynomial, exponent: int, modulus: _Polynomial) -> _Polynomial:
    """base^exponent modulo a monic polynomial."""
    result = [1]
    for bit in bin(exponent)[2:]:
        result = _remainder(_times(result, result), modulus)
        if bit == "1":
            result = _remainder(_times(result, base), modulus)
    return result


def _times(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    product = [0] * max(len(one) + len(other) - 1, 0)
    for position, left in enumerate(one):
        for offset, right in enumerate(other):
            product[position + offset] += left * right
    return [value % PRIME for value in product]


def _minus(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    size = max(len(one), len(other))
    return [(a - b) % PRIME for a, b in zip(_padded(one, size), _padded(other, size), strict=True)]


def _padded(polynomial: _Polynomial, size: int) -> _Polynomial:
    return polynomial + [0] * (size - len(polynomial))


def _trimmed(polynomial: _Polynomial) -> _Polynomial:
    size = len(polynomial)
    while size and not polynomial[size - 1]:
        size -= 1
    return polynomial[:size]


def _divided(dividend: _Polynomial, divisor: _Polynomial) -> tuple[_Polynomial, _Polynomial]:
    """Quotient and remainder; the divisor is monic."""
    rest, quotient = list(dividend), []
    low = len(divisor) - 1
    for position in range(len(dividend) - 1, low - 1, -1):
        factor = rest[position] % PRIME
        quotient.append(factor)
        for offset, value in enumerate(divisor):
            rest[position - low + offset] -= factor * value
    return quotient[::-1], _trimmed([value % PRIME for value in rest[:low]])


def _remainder(dividend: _Polynomial, divisor: _Polynomial) -> _Polynomial:
    return _divided(dividend, divisor)[1]


def _common_divisor(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    """The greatest common divisor, monic."""
    while other:
        inverse = pow(other[-1], -1, PRIME)
        monic = [value * inverse % PRIME for value in other]
        one, other = monic, _remainder(one, monic)
    return one
