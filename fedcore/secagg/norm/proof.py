"""A proof as it travels, and the arithmetic that prover and verifier share.

The committed numbers v are: the lanes p of the projections, four s with sum p^2 + sum s^2 = limit (Lagrange), the pads,
and numbers m that hide sums of random subsets of the others. In these sums a pad stands for its carry h, which is
linear in the others: t - pad = sum 2^(b l) p_l + 2^64 h. The proof shows, for one opening of the commitments to v:

1. the subset sums plus m are short, so that every p, s and h is, and nothing below wraps modulo the group's order; so
   t less the committed pads is what p says, modulo 2^64;
2. the squares of p and s sum up to the limit.

The pads' commitment is older than the coin. The other one is for p, s and m alone: the two are added up with a factor
that is a challenge later than both and than the subsets, so neither can hold what belongs in the other. All is one
sigma protocol with Fiat-Shamir, z = c v + r, whose z is then folded (Attema and Cramer 2020, eprint 2020/152): with
z' = z_L + x z_R a message is halved at the cost of two points and four scalars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedcore.secagg.norm.group import ORDER, POINT_BYTES, SCALAR_BYTES, ProofTranscript, scalar_bytes
from fedcore.secagg.norm.statement import ROWS, SUM_BYTES, WORD_BITS, WORD_BYTES, Statement

_LIMB_BITS = 32
_LIMBS = 8


@dataclass(frozen=True, kw_only=True)
class ProofFold:
    """One halving: cross terms in the group, of the linear form, and of the squares."""

    points: tuple[bytes, bytes]
    scalars: tuple[int, int, int, int]

    def to_bytes(self) -> bytes:
        """Points, then scalars."""
        return b"".join((*self.points, *map(scalar_bytes, self.scalars)))


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Everything that a client sends after the coin.

    values: t [k]. points: commitments to v, to r, and to both parts of the squares of z. sums: of the subsets. scalars:
    the linear form of r, blindings of z and of its squares, and the squares of z.
    """

    values: NDArray[np.uint64]
    points: tuple[bytes, bytes, bytes, bytes]
    sums: tuple[int, ...]
    scalars: tuple[int, int, int, int]
    folds: tuple[ProofFold, ...]
    last: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """As it travels: `Statement.proof_bytes` of them."""
        parts = [self.values.astype("<u8").tobytes(), *self.points, sums_bytes(self.sums)]
        parts += map(scalar_bytes, self.scalars)
        parts += (fold.to_bytes() for fold in self.folds)
        return b"".join((*parts, *map(scalar_bytes, self.last)))

    @classmethod
    def from_bytes(cls, content: bytes, statement: Statement) -> Self:
        """Raises ValueError unless the length fits and every scalar is below the order."""
        if len(content) != statement.proof_bytes:
            raise ValueError("a proof has another length")
        reader = _Reader(content)
        values = np.frombuffer(reader.take(WORD_BYTES * statement.projections), "<u8").astype(np.uint64)
        first, second, third, fourth = (reader.take(POINT_BYTES) for _ in range(4))
        sums = tuple(int.from_bytes(reader.take(SUM_BYTES), "little", signed=True) for _ in range(ROWS))
        one, two, three, four = (reader.scalar() for _ in range(4))
        folds = tuple(reader.fold() for _ in range(statement.folds))
        last = tuple(reader.scalar() for _ in range(statement.squares + statement.others))
        return cls(
            values=values, points=(first, second, third, fourth), sums=sums, scalars=(one, two, three, four),
            folds=folds, last=last,
        )  # fmt: skip


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, size: int) -> bytes:
        self._at += size
        return self._content[self._at - size : self._at]

    def scalar(self) -> int:
        number = int.from_bytes(self.take(SCALAR_BYTES), "little")
        if number >= ORDER:
            raise ValueError("a scalar is not below the order")
        return number

    def fold(self) -> ProofFold:
        points = self.take(POINT_BYTES), self.take(POINT_BYTES)
        return ProofFold(points=points, scalars=(self.scalar(), self.scalar(), self.scalar(), self.scalar()))


def values_of(content: bytes, statement: Statement) -> NDArray[np.uint64]:
    """The t [projections] that a proof tells; raises ValueError if it has another length."""
    if len(content) != statement.proof_bytes:
        raise ValueError("a proof has another length")
    return np.frombuffer(content, "<u8", statement.projections).astype(np.uint64)


def sums_bytes(sums: Sequence[int]) -> bytes:
    """The subset sums as they travel."""
    return b"".join(number.to_bytes(SUM_BYTES, "little", signed=True) for number in sums)


def transcript_of(
    statement: Statement, context: bytes, coin: bytes, commitment: bytes, values: NDArray[np.uint64], point: bytes
) -> ProofTranscript:
    """What precedes the first challenge. commitment: to the pads; point: to the other numbers."""
    public = (statement.projections, statement.field_bits, statement.bound, statement.folds)
    transcript = ProofTranscript(context, coin, *public)
    for label, content in (("pads", commitment), ("values", values.astype("<u8").tobytes()), ("numbers", point)):
        transcript.absorb(label, content)
    return transcript


def subsets(transcript: ProofTranscript, statement: Statement) -> NDArray[np.uint8]:
    """The random subsets [ROWS, numbers] that are summed: of all numbers but those that hide."""
    drawn = np.frombuffer(transcript.stream("subsets", ROWS * -(-statement.numbers // 8)), np.uint8)
    bits = np.unpackbits(drawn.reshape(ROWS, -1), axis=1)[:, : statement.numbers]
    bits[:, [statement.position_of_other(statement.projections + row) for row in range(ROWS)]] = 0
    return bits


def absorb_sums(transcript: ProofTranscript, sums: Sequence[int]) -> tuple[int, int]:
    """The challenges after the subset sums: one for the linear form, one for the pads' commitment."""
    transcript.absorb("sums", sums_bytes(sums))
    return transcript.challenge("form"), transcript.challenge("pads")


@dataclass(frozen=True)
class LinearForm:
    """The subset sums, combined by powers of a challenge: a coefficient [numbers] for each of v, and a constant."""

    coefficients: list[int]
    constant: int

    @classmethod
    def of(
        cls, statement: Statement, bits: NDArray[np.uint8], values: NDArray[np.uint64], powers: list[int], pads: int
    ) -> Self:
        """Of subsets [ROWS, numbers], t [k], the powers of a challenge [ROWS], and the factor of the pads in v."""
        form = _weights(bits, powers)
        for row, power in enumerate(powers):
            form[statement.position_of_other(statement.projections + row)] = power
        per_carry, per_pad, constant = pow(1 << WORD_BITS, -1, ORDER), pow(pads, -1, ORDER), 0
        for index, value in enumerate(values.tolist()):
            position = statement.position_of_other(index)
            weight = form[position] * per_carry % ORDER
            constant += weight * value
            form[position] = -weight * per_pad % ORDER
            for lane in range(statement.lanes):
                square = statement.position_of_square(index * statement.lanes + lane)
                form[square] = (form[square] - (weight << statement.field_bits * lane)) % ORDER
        return cls(form, constant % ORDER)


def powers_of(factor: int) -> list[int]:
    """Those of a challenge that combine the subset sums [ROWS]."""
    powers = [1]
    while len(powers) < ROWS:
        powers.append(powers[-1] * factor % ORDER)
    return powers


def _weights(bits: NDArray[np.uint8], powers: list[int]) -> list[int]:
    """Powers [ROWS] times bits [ROWS, numbers]; limbs of 32 bits make it one exact product of floats."""
    mask = (1 << _LIMB_BITS) - 1
    limbs = np.array([[power >> _LIMB_BITS * limb & mask for power in powers] for limb in range(_LIMBS)], np.float64)
    sums = (limbs @ bits.astype(np.float64)).astype(np.uint64).T.tolist()
    return [sum(limb << _LIMB_BITS * position for position, limb in enumerate(row)) % ORDER for row in sums]


def product(one: Sequence[int], two: Sequence[int]) -> int:
    """Of two vectors, modulo the order."""
    return sum(a * b for a, b in zip(one, two, strict=True)) % ORDER


def square_product(statement: Statement, one: Sequence[int], two: Sequence[int]) -> int:
    """The same over the squared numbers alone."""
    width = statement.squares + statement.others
    pairs = enumerate(zip(one, two, strict=True))
    return sum(a * b for position, (a, b) in pairs if position % width < statement.squares) % ORDER


def absorb_masks(transcript: ProofTranscript, second: bytes, inner: bytes, outer: bytes, first_scalar: int) -> int:
    """The challenge of the sigma protocol."""
    transcript.absorb("masks", second + inner + outer + scalar_bytes(first_scalar))
    return transcript.challenge("response")


def absorb_response(transcript: ProofTranscript, scalars: Sequence[int]) -> None:
    """Blindings and squares of z, which the folds' challenges depend on."""
    transcript.absorb("response", b"".join(map(scalar_bytes, scalars)))


def absorb_fold(transcript: ProofTranscript, fold: ProofFold) -> int:
    """The challenge of one halving."""
    transcript.absorb("fold", fold.to_bytes())
    return transcript.challenge("fold")
