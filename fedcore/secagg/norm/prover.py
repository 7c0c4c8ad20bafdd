"""The client's part: pads before the coin, and after it the projections with a proof that they are short."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from fedcore.errors import UsageError
from fedcore.secagg.crypto.keys import Randomness, draw
from fedcore.secagg.norm.group import ORDER, ProofTranscript, below, combine, fold_points, generators, scalar
from fedcore.secagg.norm.projection import join, project
from fedcore.secagg.norm.proof import (
    LinearForm,
    Proof,
    ProofFold,
    absorb_fold,
    absorb_masks,
    absorb_response,
    absorb_sums,
    powers_of,
    product,
    square_product,
    subsets,
    transcript_of,
)
from fedcore.secagg.norm.squares import four_squares
from fedcore.secagg.norm.statement import ROWS, WORD_BITS, WORD_BYTES, Statement


@dataclass(slots=True, kw_only=True, eq=False)
class Pads:
    """What hides the projections [k]: drawn, committed to and masked before the coin is thrown; they serve once."""

    words: NDArray[np.uint64] = field(repr=False)
    blinding: int = field(repr=False)
    commitment: bytes

    @classmethod
    def draw(cls, statement: Statement, randomness: Randomness = os.urandom, threads: int = 1) -> Self:
        """Uniform ones."""
        words = np.frombuffer(bytearray(draw(randomness, WORD_BYTES * statement.projections)), np.uint64)
        return cls.commit(statement, words, randomness, threads)

    @classmethod
    def commit(
        cls,
        statement: Statement,
        words: NDArray[np.uint64],
        randomness: Randomness = os.urandom,
        threads: int = 1,
    ) -> Self:
        """Uniform words [k] that were drawn before, which are kept as they are, and erased with the pads."""
        blinding = scalar(randomness)
        points = generators("number", statement.numbers)
        terms = [(word, points[statement.position_of_other(index)]) for index, word in enumerate(words.tolist())]
        commitment = combine([*terms, (blinding, generators("blinding", 1)[0])], threads)
        return cls(words=words, blinding=blinding, commitment=commitment)

    def erase(self) -> None:
        """Forget the secrets; the commitment stays."""
        self.words.fill(0)
        self.blinding = 0

    def __reduce__(self) -> NoReturn:
        raise UsageError("pads are never pickled")


def prove(
    statement: Statement,
    context: bytes,
    coin: bytes,
    steps: Iterable[NDArray[np.int64]],
    pads: Pads,
    randomness: Randomness = os.urandom,
    threads: int = 1,
) -> bytes:
    """Prove that a vector that was masked with `pads` is within the bound.

    Args:
        statement: Public values.
        context: What the proof is bound to: exchange, and client.
        coin: 32 bytes.
        steps: The vector from its first word on, in blocks [m, lanes] of any m: elements in steps, without the offset
            of fields.
        pads: Those of this exchange.
        randomness: Where secrets come from.
        threads: How many multiply points.

    Raises:
        ValueError: The projections are over the limit.
        UsageError: A block has another shape.
    """
    return Prover(statement, context, coin, pads, randomness, threads).prove(steps).to_bytes()


class Prover:
    """One proof; what a forger does otherwise is a method each."""

    def __init__(
        self,
        statement: Statement,
        context: bytes,
        coin: bytes,
        pads: Pads,
        randomness: Randomness = os.urandom,
        threads: int = 1,
    ) -> None:
        self.statement, self.context, self.coin, self.pads = statement, context, coin, pads
        self.randomness, self.threads = randomness, threads
        self._points = generators("number", statement.numbers)
        self._square_point, self._blinding_point = generators("square", 1)[0], generators("blinding", 1)[0]

    def prove(self, steps: Iterable[NDArray[np.int64]]) -> Proof:
        """Of a vector in blocks [m, lanes]."""
        statement = self.statement
        lanes = project(self.coin, statement.projections, statement.lanes, steps)
        values = join(lanes, statement.field_bits) + self.pads.words
        return self._proof(values, self.short_numbers(self.claim(lanes), values))

    def claim(self, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The lanes of the projections [k, lanes] to commit to."""
        return lanes

    def four_squares(self, spare: int) -> tuple[int, int, int, int]:
        """What is missing from the limit; raises ValueError if it is negative."""
        return four_squares(spare, self.randomness)

    def subset_sums(self, bits: NDArray[np.uint8], numbers: Sequence[int]) -> list[int]:
        """Of subsets [ROWS, numbers], not hidden yet."""
        sums: list[int] = np.where(bits, np.array(numbers, object), 0).sum(axis=1).tolist()
        return sums

    def squares_of_response(self, response: Sequence[int], challenge: int) -> int:
        """Sum of the squares of z = challenge * v + r, as the proof tells it."""
        del challenge
        return square_product(self.statement, response, response)

    def short_numbers(self, lanes: NDArray[np.int64], values: NDArray[np.uint64]) -> list[int]:
        """What the subsets are drawn from: the lanes, the four squares, and a carry at each pad's position."""
        statement, numbers = self.statement, [0] * self.statement.numbers
        spare = statement.limit - sum(lane * lane for lane in lanes.ravel().tolist())
        for index, number in enumerate((*lanes.ravel().tolist(), *self.four_squares(spare))):
            numbers[statement.position_of_square(index)] = number
        differences = zip(values.tolist(), self.pads.words.tolist(), lanes.tolist(), strict=True)
        for index, (value, pad, row) in enumerate(differences):
            value_of_lanes = sum(lane << statement.field_bits * position for position, lane in enumerate(row))
            numbers[statement.position_of_other(index)] = value - pad - value_of_lanes >> WORD_BITS
        return numbers

    def with_hiders(self, short: list[int]) -> list[int]:
        """The numbers of the second commitment: no pads yet, and uniform numbers that hide the sums of subsets."""
        numbers = list(short)
        for index in range(self.statement.projections):
            numbers[self.statement.position_of_other(index)] = 0
        for position in self._positions_of_hiders():
            numbers[position] = below(self.statement.hiding, self.randomness)
        return numbers

    def _proof(self, values: NDArray[np.uint64], short: list[int]) -> Proof:
        statement, pads, randomness = self.statement, self.pads, self.randomness
        numbers, blinding = self.with_hiders(short), scalar(randomness)
        commitment = self._commit(numbers, blinding)
        transcript = transcript_of(statement, self.context, self.coin, pads.commitment, values, commitment)
        bits = subsets(transcript, statement)
        hidden = self._positions_of_hiders()
        sums = [
            total + numbers[position] for total, position in zip(self.subset_sums(bits, short), hidden, strict=True)
        ]
        factor, pad_factor = absorb_sums(transcript, sums)
        form = LinearForm.of(statement, bits, values, powers_of(factor), pad_factor).coefficients
        for index, pad in enumerate(pads.words.tolist()):
            position = statement.position_of_other(index)
            numbers[position] = (numbers[position] + pad_factor * pad) % ORDER
        masks, mask_blinding = [scalar(randomness) for _ in numbers], scalar(randomness)
        second, first_scalar = self._commit(masks, mask_blinding), product(form, masks)
        outer, inner, outer_blinding, inner_blinding = self._square_parts(numbers, masks)
        challenge = absorb_masks(transcript, second, inner, outer, first_scalar)
        response = [(challenge * v + r) % ORDER for v, r in zip(numbers, masks, strict=True)]
        scalars = (
            first_scalar,
            (challenge * (blinding + pad_factor * pads.blinding) + mask_blinding) % ORDER,
            (challenge * inner_blinding + outer_blinding) % ORDER,
            self.squares_of_response(response, challenge),
        )
        absorb_response(transcript, scalars[1:])
        folds, last = _fold(statement, transcript, response, form, self.threads)
        return Proof(
            values=values, points=(commitment, second, inner, outer), sums=tuple(sums), scalars=scalars,
            folds=folds, last=last,
        )  # fmt: skip

    def _positions_of_hiders(self) -> list[int]:
        return [self.statement.position_of_other(self.statement.projections + row) for row in range(ROWS)]

    def _commit(self, numbers: Sequence[int], blinding: int) -> bytes:
        return combine([*zip(numbers, self._points, strict=True), (blinding, self._blinding_point)], self.threads)

    def _square_parts(self, numbers: list[int], masks: list[int]) -> tuple[bytes, bytes, int, int]:
        """Commitments to what the squares of z have without and with the challenge, and their blindings."""
        outer_blinding, inner_blinding = scalar(self.randomness), scalar(self.randomness)
        parts = (
            (square_product(self.statement, masks, masks), outer_blinding),
            (2 * square_product(self.statement, numbers, masks), inner_blinding),
        )
        outer, inner = (
            combine(((part, self._square_point), (blinding, self._blinding_point))) for part, blinding in parts
        )
        return outer, inner, outer_blinding, inner_blinding


def _fold(
    statement: Statement, transcript: ProofTranscript, response: list[int], form: list[int], threads: int
) -> tuple[tuple[ProofFold, ...], tuple[int, ...]]:
    """Halve z as often as the statement says: the cross terms, and what is left."""
    points, folds = generators("number", statement.numbers), []
    for _ in range(statement.folds):
        half = len(response) // 2
        (low, high), (form_low, form_high) = (response[:half], response[half:]), (form[:half], form[half:])
        fold = ProofFold(
            points=(
                combine(zip(low, points[half:], strict=True), threads),
                combine(zip(high, points[:half], strict=True), threads),
            ),
            scalars=(
                product(form_high, low),
                product(form_low, high),
                square_product(statement, low, low),
                square_product(statement, low, high),
            ),
        )
        x = absorb_fold(transcript, fold)
        response = [(a + x * b) % ORDER for a, b in zip(low, high, strict=True)]
        form = [(x * a + b) % ORDER for a, b in zip(form_low, form_high, strict=True)]
        points = fold_points(x, points[:half], points[half:], threads)
        folds.append(fold)
    return tuple(folds), tuple(response)
