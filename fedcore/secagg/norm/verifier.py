"""The server's part: all proofs of an exchange at once, and in halves if that fails."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nacl.exceptions import CryptoError

from fedcore.secagg.crypto import edwards
from fedcore.secagg.crypto.keys import Randomness
from fedcore.secagg.norm.group import ORDER, POINT_BYTES, ProofTranscript, below, combine, generators
from fedcore.secagg.norm.proof import (
    LinearForm,
    Proof,
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
from fedcore.secagg.norm.statement import Statement


@dataclass(frozen=True, kw_only=True)
class Submission:
    """Of one client: its context, the commitment to its pads, which the server had before the coin, and its proof."""

    context: bytes
    commitment: bytes
    proof: bytes


def accepted(
    statement: Statement,
    coin: bytes,
    submissions: Sequence[Submission],
    randomness: Randomness = os.urandom,
    threads: int = 1,
) -> list[bool]:
    """Whether each proof holds for the coin; one that is malformed does not."""
    equations = [_equation(statement, coin, submission, randomness) for submission in submissions]
    sound = _sound(statement, [equation for equation in equations if equation is not None], randomness, threads)
    return [equation is not None and next(sound) for equation in equations]


@dataclass(frozen=True, kw_only=True)
class _Equation:
    """Multiples of points that must sum up to the identity: of the shared generators, and of points of the proof."""

    numbers: list[int]
    square: int
    blinding: int
    others: list[tuple[int, bytes]]


def _sound(
    statement: Statement, equations: Sequence[_Equation], randomness: Randomness, threads: int
) -> Iterator[bool]:
    """Whether each holds: a few that do not cost a sum for each halving."""
    if not equations:
        return
    if _is_identity(statement, equations, randomness, threads):
        yield from (True for _ in equations)
    elif len(equations) == 1:
        yield False
    else:
        half = len(equations) // 2
        yield from _sound(statement, equations[:half], randomness, threads)
        yield from _sound(statement, equations[half:], randomness, threads)


def _is_identity(statement: Statement, equations: Sequence[_Equation], randomness: Randomness, threads: int) -> bool:
    """One sum for all, each with a random weight: a wrong one passes with a probability of 2^-252."""
    weights = [_weight(randomness) for _ in equations]
    try:
        total = combine(_weighted(statement, equations, weights), threads)
    except CryptoError:
        return False
    return total == edwards.IDENTITY


def _weight(randomness: Randomness) -> int:
    return 1 + below(ORDER - 1, randomness)


def _weighted(
    statement: Statement, equations: Sequence[_Equation], weights: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    rows = [equation.numbers for equation in equations]
    for index, point in enumerate(generators("number", statement.numbers)):
        yield sum(weight * row[index] for weight, row in zip(weights, rows, strict=True)), point
    for weight, equation in zip(weights, equations, strict=True):
        yield weight * equation.square, generators("square", 1)[0]
        yield weight * equation.blinding, generators("blinding", 1)[0]
        for number, point in equation.others:
            yield weight * number, point


def _equation(statement: Statement, coin: bytes, submission: Submission, randomness: Randomness) -> _Equation | None:
    """What is left to check in the group; None if the bytes are no proof, or the scalars do not fit."""
    try:
        proof = Proof.from_bytes(submission.proof, statement)
    except ValueError:
        return None
    commitment, second, inner, outer = proof.points
    first_scalar, blinding, square_blinding, squares = proof.scalars
    short = all(-statement.shortest <= one < statement.hiding + statement.shortest for one in proof.sums)
    if not short or len(submission.commitment) != POINT_BYTES:
        return None
    transcript = transcript_of(
        statement, submission.context, coin, submission.commitment, proof.values, commitment
    )  # fmt: skip
    bits = subsets(transcript, statement)
    factor, pad_factor = absorb_sums(transcript, proof.sums)
    powers = powers_of(factor)
    form = LinearForm.of(statement, bits, proof.values, powers, pad_factor)
    challenge = absorb_masks(transcript, second, inner, outer, first_scalar)
    absorb_response(transcript, proof.scalars[1:])
    linear = (challenge * (product(powers, proof.sums) - form.constant) + first_scalar) % ORDER
    unfolded = _unfold(statement, transcript, proof, form.coefficients, linear, squares)
    if unfolded is None:
        return None
    numbers, points, scale = unfolded
    weight = _weight(randomness)
    return _Equation(
        numbers=numbers,
        square=weight * (challenge * challenge * statement.limit - squares) % ORDER,
        blinding=(scale * blinding - weight * square_blinding) % ORDER,
        others=[
            (-scale * challenge, commitment),
            (-scale * challenge * pad_factor, submission.commitment),
            (-scale, second),
            *((-number, point) for number, point in points),
            (weight, outer),
            (weight * challenge, inner),
        ],
    )


def _unfold(
    statement: Statement, transcript: ProofTranscript, proof: Proof, form: list[int], linear: int, squares: int
) -> tuple[list[int], list[tuple[int, bytes]], int] | None:
    """The last message as multiples of all generators, the cross terms' multiples, and that of what was folded.

    None if the linear form, or the squares, are not those of the last message.
    """
    challenges = []
    for fold in proof.folds:
        x = absorb_fold(transcript, fold)
        half = len(form) // 2
        form = [(x * a + b) % ORDER for a, b in zip(form[:half], form[half:], strict=True)]
        form_low, form_high, square_low, square_mixed = fold.scalars
        linear = (form_low + x * linear + x * x * form_high) % ORDER
        squares = (square_low + 2 * x * square_mixed + x * x * (squares - square_low)) % ORDER
        challenges.append(x)
    last = list(proof.last)
    if product(form, last) != linear or square_product(statement, last, last) != squares:
        return None
    numbers, points, scale = last, [], 1
    for x, fold in zip(reversed(challenges), reversed(proof.folds), strict=True):
        numbers = [x * number % ORDER for number in numbers] + numbers
        points += [(scale, fold.points[0]), (scale * x * x, fold.points[1])]
        scale = scale * x % ORDER
    return numbers, points, scale
