"""The server's part: all proofs of an exchange at once, one by one only if that fails."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nacl.exceptions import CryptoError

from benchmarks.norm.group import ORDER, SCALAR_BYTES, Transcript, combine, generators
from benchmarks.norm.proof import (
    Proof,
    absorb_fold,
    absorb_sums,
    first_messages,
    linear_form,
    pad_terms,
    product,
    square_product,
    subsets,
)
from benchmarks.norm.statement import Statement
from fedcore.secagg.crypto import edwards


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A client's commitment to its pads, which the server had before the coin, and its proof."""

    context: bytes
    commitment: bytes
    proof: Proof


def accepted(statement: Statement, seed: bytes, submissions: Sequence[Submission]) -> list[bool]:
    """Whether each proof holds, for the coin `seed`."""
    equations = [_equation(statement, seed, submission) for submission in submissions]
    sound = [equation for equation in equations if equation is not None]
    if sound and _is_identity(statement, sound):
        return [equation is not None for equation in equations]
    return [equation is not None and _is_identity(statement, [equation]) for equation in equations]


@dataclass(frozen=True, kw_only=True)
class _Equation:
    """Multiples of points that must sum up to the identity: of the shared generators, and of points of the proof."""

    numbers: list[int]
    pads: list[int]
    square: int
    blinding: int
    others: list[tuple[int, bytes]]


def _is_identity(statement: Statement, equations: Sequence[_Equation]) -> bool:
    """One sum for all, each with a random weight: a wrong one passes with a probability of 2^-252."""
    weights = [1 + secrets.randbelow(ORDER - 1) for _ in equations]
    try:
        total = combine(_weighted(statement, equations, weights))
    except CryptoError:
        return False
    return total == edwards.IDENTITY


def _weighted(
    statement: Statement, equations: Sequence[_Equation], weights: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    for name, usage, count in (("numbers", "number", statement.numbers), ("pads", "pad", statement.projections)):
        rows = [getattr(equation, name) for equation in equations]
        for index, point in enumerate(generators(usage, count)):
            yield sum(weight * row[index] for weight, row in zip(weights, rows, strict=True)) % ORDER, point
    for weight, equation in zip(weights, equations, strict=True):
        yield weight * equation.square, generators("square", 1)[0]
        yield weight * equation.blinding, generators("blinding", 1)[0]
        for number, point in equation.others:
            yield weight * number, point


def _equation(statement: Statement, seed: bytes, submission: Submission) -> _Equation | None:
    """What is left to check in the group; None if the scalars do not fit."""
    proof, transcript = submission.proof, Transcript(submission.context + seed)
    commitment, second, inner, outer = proof.points
    first_scalar, blinding, square_blinding, squares = proof.scalars
    if not all(-statement.shortest <= one < statement.hiding + statement.shortest for one in proof.sums):
        return None
    first_messages(transcript, submission.commitment, proof.values, commitment)
    bits = subsets(transcript, statement)
    factor, pad_factor = absorb_sums(transcript, proof.sums)
    form = linear_form(statement, bits, factor)
    transcript.absorb("masks", second + inner + outer + first_scalar.to_bytes(SCALAR_BYTES, "little"))
    challenge = transcript.challenge("response")
    transcript.absorb("response", b"".join(number.to_bytes(SCALAR_BYTES, "little") for number in proof.scalars[1:]))
    powers = [pow(factor, row, ORDER) for row in range(len(proof.sums))]
    linear = (challenge * product(powers, [one % ORDER for one in proof.sums]) + first_scalar) % ORDER
    unfolded = _unfold(statement, transcript, proof, form, linear, squares)
    if unfolded is None:
        return None
    numbers, points, scale = unfolded
    pads = [
        (pad_factor * (pad - scale * challenge * value)) % ORDER
        for pad, value in zip(pad_terms(statement, numbers), proof.values.tolist(), strict=True)
    ]
    weight = 1 + secrets.randbelow(ORDER - 1)
    others = [
        (-scale * challenge, commitment),
        (scale * challenge * pad_factor, submission.commitment),
        (-scale, second),
        *((-number, point) for number, point in points),
        (weight, outer),
        (weight * challenge, inner),
    ]
    return _Equation(
        numbers=numbers,
        pads=pads,
        square=weight * (challenge * challenge * statement.limit - squares) % ORDER,
        blinding=(scale * blinding - weight * square_blinding) % ORDER,
        others=others,
    )


def _unfold(
    statement: Statement, transcript: Transcript, proof: Proof, form: list[int], linear: int, squares: int
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
