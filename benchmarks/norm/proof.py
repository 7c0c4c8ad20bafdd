"""The client's part: pads before the coin, and after it the projections with a proof that they are short.

The committed numbers v are: the lanes p of the projections, four s with sum p^2 + sum s^2 = limit (Lagrange), a carry h
for each projection, t - pad = sum 2^(b l) p_l + 2^64 h, and numbers m that hide sums of random subsets of the others.
The proof shows, for one opening of the commitment to v:

1. the subset sums plus m are short, so that every number is and nothing below wraps modulo the group's order;
2. t less the committed pads is what p and h say;
3. the squares of p and s sum up to the limit.

All are one sigma protocol with Fiat-Shamir, z = c v + r, whose z is then folded (Attema and Cramer 2020, eprint
2020/152): with z' = z_L + x z_R a message is halved at the cost of two points and four scalars.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.norm.group import ORDER, POINT_BYTES, SCALAR_BYTES, Transcript, combine, generators, scalar
from benchmarks.norm.squares import four_squares
from benchmarks.norm.statement import ROWS, WORD_BITS, Statement, join, project

WORD_BYTES = 8
Squares = Callable[[int], tuple[int, int, int, int]]
SHORT_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Pads:
    """What hides the projections [k]; drawn, committed to and masked before the coin is thrown."""

    words: NDArray[np.uint64] = field(repr=False)
    blinding: int = field(repr=False)
    commitment: bytes

    @classmethod
    def draw(cls, statement: Statement) -> Self:
        """Uniform ones."""
        words = np.frombuffer(secrets.token_bytes(WORD_BYTES * statement.projections), np.uint64)
        blinding = scalar()
        points = (*generators("pad", statement.projections), *generators("blinding", 1))
        return cls(
            words=words,
            blinding=blinding,
            commitment=combine(zip((*words.tolist(), blinding), points, strict=True)),
        )


@dataclass(frozen=True, kw_only=True)
class Fold:
    """One halving: cross terms in the group, of the linear form, and of the squares."""

    points: tuple[bytes, bytes]
    scalars: tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Everything that a client sends after the coin. points: to v, to r, and to both parts of the squares of z."""

    values: NDArray[np.uint64]
    points: tuple[bytes, bytes, bytes, bytes]
    sums: tuple[int, ...]
    scalars: tuple[int, int, int, int]
    folds: tuple[Fold, ...]
    last: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """As it would travel."""
        parts = [self.values.tobytes(), *self.points]
        parts += [number.to_bytes(SHORT_BYTES, "little", signed=True) for number in self.sums]
        parts += [*map(_scalar_bytes, self.scalars)]
        for fold in self.folds:
            parts += [*fold.points, *map(_scalar_bytes, fold.scalars)]
        return b"".join([*parts, *map(_scalar_bytes, self.last)])

    @classmethod
    def from_bytes(cls, content: bytes, statement: Statement) -> Self:
        """Raises ValueError unless the length fits and every scalar is below the order."""
        reader = _Reader(content)
        values = np.frombuffer(reader.take(WORD_BYTES * statement.projections), np.uint64)
        first, second, third, fourth = (reader.take(POINT_BYTES) for _ in range(4))
        sums = tuple(int.from_bytes(reader.take(SHORT_BYTES), "little", signed=True) for _ in range(ROWS))
        one, two, three, four = (reader.scalar() for _ in range(4))
        folds = tuple(reader.fold() for _ in range(statement.folds))
        last = tuple(reader.scalar() for _ in range(statement.squares + statement.others))
        if reader.rest():
            raise ValueError("a proof is too long")
        return cls(
            values=values, points=(first, second, third, fourth), sums=sums, scalars=(one, two, three, four),
            folds=folds, last=last,
        )  # fmt: skip


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, size: int) -> bytes:
        part = self._content[self._at : self._at + size]
        if len(part) < size:
            raise ValueError("a proof is too short")
        self._at += size
        return part

    def scalar(self) -> int:
        number = int.from_bytes(self.take(SCALAR_BYTES), "little")
        if number >= ORDER:
            raise ValueError("a scalar is not below the order")
        return number

    def fold(self) -> Fold:
        points = self.take(POINT_BYTES), self.take(POINT_BYTES)
        return Fold(points=points, scalars=(self.scalar(), self.scalar(), self.scalar(), self.scalar()))

    def rest(self) -> bytes:
        return self._content[self._at :]


def _scalar_bytes(number: int) -> bytes:
    return number.to_bytes(SCALAR_BYTES, "little")


def prove(
    statement: Statement,
    context: bytes,
    seed: bytes,
    steps: NDArray[np.int64],
    pads: Pads,
    *,
    pretended: NDArray[np.int64] | None = None,
    squares: Squares = four_squares,
    fitting: bool = False,
) -> Proof:
    """Prove that `steps` ([words, lanes]), which were masked with `pads`, are within the bound.

    Args:
        statement: Public values.
        context: What the proof is bound to: exchange, and client.
        seed: The coin, 32 bytes.
        steps: Elements in steps, without the offset of fields.
        pads: Those of this exchange; they serve once.
        pretended: Lanes of projections [k, lanes] to claim in place of the true ones, as a forger would.
        squares: What gives four numbers with a sum of squares; a forger has others.
        fitting: Claim the squares of z that the limit asks for, if they are others, as a forger would.

    Raises:
        ValueError: The projections are over the limit: what is left is negative, and no sum of squares.
    """
    lanes = project(seed, statement.projections, steps)
    values = join(lanes, statement.field_bits) + pads.words
    claimed = lanes if pretended is None else pretended
    numbers = committed_numbers(statement, claimed, values, pads, squares)
    return _Prover(statement, context + seed, numbers, values, pads, fitting).proof()


def committed_numbers(
    statement: Statement, lanes: NDArray[np.int64], values: NDArray[np.uint64], pads: Pads, squares: Squares
) -> list[int]:
    """The vector v, short signed numbers, without those that hide."""
    numbers = [0] * statement.numbers
    spare = statement.limit - sum(lane * lane for lane in lanes.ravel().tolist())
    for index, lane in enumerate((*lanes.ravel().tolist(), *squares(spare))):
        numbers[statement.square_at(index)] = lane
    differences = zip(values.tolist(), pads.words.tolist(), lanes.tolist(), strict=True)
    for index, (value, pad, row) in enumerate(differences):
        whole_steps = sum(lane << statement.field_bits * place for place, lane in enumerate(row))
        numbers[statement.other_at(index)] = value - pad - whole_steps >> WORD_BITS
    return numbers


def first_messages(transcript: Transcript, commitment: bytes, values: NDArray[np.uint64], point: bytes) -> None:
    """What precedes the first challenge."""
    for label, content in (("pads", commitment), ("values", values.tobytes()), ("numbers", point)):
        transcript.absorb(label, content)


def subsets(transcript: Transcript, statement: Statement) -> NDArray[np.uint8]:
    """The random subsets [ROWS, numbers] that are summed: of all numbers but those that hide."""
    drawn = np.frombuffer(transcript.stream("subsets", ROWS * -(-statement.numbers // 8)), np.uint8)
    bits = np.unpackbits(drawn.reshape(ROWS, -1), axis=1)[:, : statement.numbers]
    bits[:, [statement.other_at(statement.projections + row) for row in range(ROWS)]] = 0
    return bits


def linear_form(statement: Statement, bits: NDArray[np.uint8], factor: int) -> list[int]:
    """The subset sums, combined by powers of a challenge: one coefficient for each number."""
    powers = [1]
    while len(powers) < ROWS:
        powers.append(powers[-1] * factor % ORDER)
    # Limbs of 32 bits make the sums over subsets one exact product of floats.
    limbs = np.array([[power >> 32 * limb & 0xFFFFFFFF for power in powers] for limb in range(8)], np.float64)
    sums = (limbs @ bits.astype(np.float64)).astype(np.uint64).T.tolist()
    form = [sum(limb << 32 * place for place, limb in enumerate(row)) % ORDER for row in sums]
    for row, power in enumerate(powers):
        form[statement.other_at(statement.projections + row)] = power
    return form


def absorb_sums(transcript: Transcript, sums: Sequence[int]) -> tuple[int, int]:
    """The challenges after the subset sums: one for the linear form, one for the pads' generators."""
    transcript.absorb("sums", b"".join(number.to_bytes(SHORT_BYTES, "little", signed=True) for number in sums))
    return transcript.challenge("form"), transcript.challenge("pads")


def pad_terms(statement: Statement, numbers: Sequence[int]) -> list[int]:
    """What the committed numbers say of t - pad, modulo the order: [k]."""
    return [
        (
            sum(
                numbers[statement.square_at(index * statement.lanes + lane)] << statement.field_bits * lane
                for lane in range(statement.lanes)
            )
            + (numbers[statement.other_at(index)] << WORD_BITS)
        )
        % ORDER
        for index in range(statement.projections)
    ]


def product(one: Sequence[int], two: Sequence[int]) -> int:
    """Of two vectors, modulo the order."""
    return sum(a * b for a, b in zip(one, two, strict=True)) % ORDER


def square_product(statement: Statement, one: Sequence[int], two: Sequence[int]) -> int:
    """The same over the squared numbers alone."""
    width = statement.squares + statement.others
    pairs = enumerate(zip(one, two, strict=True))
    return sum(a * b for place, (a, b) in pairs if place % width < statement.squares) % ORDER


class _Prover:
    def __init__(
        self,
        statement: Statement,
        context: bytes,
        numbers: list[int],
        values: NDArray[np.uint64],
        pads: Pads,
        fitting: bool,
    ) -> None:
        missing = statement.limit - square_product(statement, numbers, numbers)
        self._lie = missing if fitting else 0
        self._statement, self._pads, self._values = statement, pads, values
        self._transcript = Transcript(context)
        self._numbers = numbers
        for row in range(ROWS):
            numbers[statement.other_at(statement.projections + row)] = secrets.randbelow(statement.hiding)
        self._points = generators("number", statement.numbers)
        self._pad_points = generators("pad", statement.projections)
        self._square_point, self._blinding_point = generators("square", 1)[0], generators("blinding", 1)[0]

    def _commit(self, numbers: Sequence[int], blinding: int, pad_factor: int = 0) -> bytes:
        terms = [*zip(numbers, self._points, strict=True), (blinding, self._blinding_point)]
        if pad_factor:
            pads = pad_terms(self._statement, numbers)
            terms += [(pad_factor * pad, point) for pad, point in zip(pads, self._pad_points, strict=True)]
        return combine(terms)

    def proof(self) -> Proof:
        statement, transcript = self._statement, self._transcript
        blinding = scalar()
        commitment = self._commit(self._numbers, blinding)
        first_messages(transcript, self._pads.commitment, self._values, commitment)
        bits = subsets(transcript, statement)
        sums = self._subset_sums(bits)
        factor, pad_factor = absorb_sums(transcript, sums)
        form = linear_form(statement, bits, factor)
        hiders, hidden_by = [scalar() for _ in self._numbers], scalar()
        second = self._commit(hiders, hidden_by, pad_factor)
        outer, inner, outer_blinding, inner_blinding = self._square_parts(hiders)
        first_scalar = product(form, hiders)
        transcript.absorb("masks", second + inner + outer + _scalar_bytes(first_scalar))
        challenge = transcript.challenge("response")
        response = [(challenge * v + r) % ORDER for v, r in zip(self._numbers, hiders, strict=True)]
        scalars = (
            first_scalar,
            (challenge * (blinding - pad_factor * self._pads.blinding) + hidden_by) % ORDER,
            (challenge * inner_blinding + outer_blinding) % ORDER,
            (square_product(statement, response, response) + challenge * challenge * self._lie) % ORDER,
        )
        transcript.absorb("response", b"".join(map(_scalar_bytes, scalars[1:])))
        folds, last = self._fold(response, form, self._folding_points(pad_factor))
        return Proof(
            values=self._values, points=(commitment, second, inner, outer), sums=sums, scalars=scalars,
            folds=folds, last=last,
        )  # fmt: skip

    def _subset_sums(self, bits: NDArray[np.uint8]) -> tuple[int, ...]:
        """Exact: the numbers that count are short, and those that hide are added apart."""
        statement = self._statement
        hiding = [self._numbers[statement.other_at(statement.projections + row)] for row in range(ROWS)]
        short = np.array([n if abs(n) <= isqrt(statement.limit) else 0 for n in self._numbers], np.int64)
        return tuple(int(row) + hider for row, hider in zip(bits.astype(np.int64) @ short, hiding, strict=True))

    def _square_parts(self, hiders: list[int]) -> tuple[bytes, bytes, int, int]:
        """Commitments to what the squares of z have without and with the challenge, and their blindings."""
        outer_blinding, inner_blinding = scalar(), scalar()
        parts = (
            (square_product(self._statement, hiders, hiders), outer_blinding),
            (2 * square_product(self._statement, self._numbers, hiders), inner_blinding),
        )
        outer, inner = (
            combine(((part, self._square_point), (blinding, self._blinding_point))) for part, blinding in parts
        )
        return outer, inner, outer_blinding, inner_blinding

    def _folding_points(self, pad_factor: int) -> list[bytes]:
        """Generators for numbers that count in the commitment and in the pads at once."""
        statement, points = self._statement, list(self._points)
        for index, pad_point in enumerate(self._pad_points):
            places = [statement.square_at(index * statement.lanes + lane) for lane in range(statement.lanes)]
            shifts = [statement.field_bits * lane for lane in range(statement.lanes)]
            for place, shift in zip((*places, statement.other_at(index)), (*shifts, WORD_BITS), strict=True):
                points[place] = combine(((1, points[place]), (pad_factor << shift, pad_point)))
        return points

    def _fold(
        self, response: list[int], form: list[int], points: list[bytes]
    ) -> tuple[tuple[Fold, ...], tuple[int, ...]]:
        folds = []
        for _ in range(self._statement.folds):
            half = len(response) // 2
            (low, high), (form_low, form_high) = (response[:half], response[half:]), (form[:half], form[half:])
            fold = Fold(
                points=(
                    combine(zip(low, points[half:], strict=True)),
                    combine(zip(high, points[:half], strict=True)),
                ),
                scalars=(
                    product(form_high, low),
                    product(form_low, high),
                    square_product(self._statement, low, low),
                    square_product(self._statement, low, high),
                ),
            )
            x = absorb_fold(self._transcript, fold)
            response = [(a + x * b) % ORDER for a, b in zip(low, high, strict=True)]
            form = [(x * a + b) % ORDER for a, b in zip(form_low, form_high, strict=True)]
            points = [combine(((x, a), (1, b))) for a, b in zip(points[:half], points[half:], strict=True)]
            folds.append(fold)
        return tuple(folds), tuple(response)


def absorb_fold(transcript: Transcript, fold: Fold) -> int:
    """The challenge of one halving."""
    transcript.absorb("fold", b"".join((*fold.points, *map(_scalar_bytes, fold.scalars))))
    return transcript.challenge("fold")


def context_of(exchange: bytes, client: int) -> bytes:
    """What ties a proof to one exchange and one client."""
    return hashlib.sha256(exchange + client.to_bytes(8, "big")).digest()
