"""A number as the sum of four squares (Rabin and Shallit 1986)."""

from __future__ import annotations

from math import isqrt

from fedcore.secagg.crypto.keys import Randomness
from fedcore.secagg.norm.group import below

_BASES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
"""Miller and Rabin's test by these is exact below 3 * 10^24."""
_TRIES = 256
"""Draws at once, of which about one in 15 succeeds: how long they take says little of the number."""
_PARITIES = {1: (0, 0), 2: (1, 0), 3: (1, 1)}
"""Of two numbers whose squares leave 1 modulo 4, by the number modulo 4."""


def four_squares(number: int, randomness: Randomness) -> tuple[int, int, int, int]:
    """Four numbers whose squares sum up to `number`; raises ValueError if it is negative."""
    if number < 0:
        raise ValueError("a negative number is no sum of squares: the norm is over the bound")
    if number < 50:
        return _by_trial(number)
    if number % 4 == 0:
        one, two, three, four = four_squares(number // 4, randomness)
        return 2 * one, 2 * two, 2 * three, 2 * four
    while True:
        drawn = [_draw(number, randomness) for _ in range(_TRIES)]
        primes = [(one, two, rest) for one, two, rest in drawn if _is_prime(rest)]
        if primes:
            one, two, rest = primes[0]
            return one, two, *_two_squares(rest)


def _draw(number: int, randomness: Randomness) -> tuple[int, int, int]:
    """Two random numbers, and what their squares leave of `number`: 1 modulo 4."""
    first, second = _PARITIES[number % 4]
    one = 2 * below((isqrt(number) - first) // 2 + 1, randomness) + first
    two = 2 * below(max(isqrt(number - one * one) - second, 0) // 2 + 1, randomness) + second
    return one, two, number - one * one - two * two


def _by_trial(number: int) -> tuple[int, int, int, int]:
    small = range(isqrt(number) + 1)
    return next(
        (a, b, c, d)
        for a in small
        for b in small
        for c in small
        if (d := isqrt(max(0, rest := number - a * a - b * b - c * c))) ** 2 == rest
    )


def _is_prime(number: int) -> bool:
    if number < 2 or any(number % base == 0 for base in _BASES):
        return number in _BASES
    twos = (number - 1 & 1 - number).bit_length() - 1
    return all(_passes(pow(base, number - 1 >> twos, number), number, twos) for base in _BASES)


def _passes(power: int, number: int, twos: int) -> bool:
    if power in (1, number - 1):
        return True
    return any((power := power * power % number) == number - 1 for _ in range(twos - 1))


def _two_squares(prime: int) -> tuple[int, int]:
    """Of a prime that is 1 modulo 4: a root of -1, then Euclid's algorithm down to the root of the prime."""
    base = next(base for base in range(2, prime) if pow(base, (prime - 1) // 2, prime) == prime - 1)
    one, two = prime, pow(base, (prime - 1) // 4, prime)
    while one * one > prime:
        one, two = two, one % two
    return one, two
