"""Forgeries: vectors over the bound, vectors other than the proven one, and proofs that are not what a prover made."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedcore.secagg.norm import Pads, Statement, Submission, accepted, prove
from fedcore.secagg.norm.group import ORDER
from fedcore.secagg.norm.projection import project
from fedcore.secagg.norm.prover import Prover

BATCH = 512
"""Vectors under one coin."""
MOST_OVER = 32.0
WORDS = 64
"""Of a forged vector."""
CONTEXT, ELSEWHERE = (hashlib.sha256(name).digest() for name in (b"forgeries", b"elsewhere"))


def over_the_bound(statement: Statement, count: int, rng: np.random.Generator) -> int:
    """How many of `count` vectors with norms from slack * bound on pass, if a forger claims the shortest lanes.

    One in six of each shape: normal in all lanes, in one, 16 elements, one element, pairs of half the modulus, whose
    sums wrap to zero, and uniform modulo the field. The pads are off by a uniform number.
    """
    passed = 0
    for start in range(0, count, BATCH):
        vectors = np.stack([_vector(statement, start + i, rng) for i in range(min(BATCH, count - start))], axis=1)
        columns = vectors.reshape(WORDS, -1)
        lanes = project(rng.bytes(32), statement.projections, columns.shape[1], [columns])
        shaped = lanes.reshape(statement.projections, -1, statement.lanes)
        shaped[..., 0] += rng.integers(0, 1 << statement.field_bits, shaped.shape[:2])
        passed += int((shortest_claims(statement, shaped) <= statement.limit).sum())
    return passed


def shortest_claims(statement: Statement, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of squares [vectors] of the least numbers that lanes [k, vectors, lanes] can be taken for."""
    half, total = 1 << statement.field_bits - 1, np.zeros(lanes.shape[1], np.int64)
    carry = np.zeros(lanes.shape[:2], np.int64)
    for lane in range(statement.lanes):
        exact = lanes[..., lane] + carry
        claim = (exact + half) % (2 * half) - half
        carry = (exact - claim) >> statement.field_bits
        total += (claim * claim).sum(axis=0)
    return total


def _vector(statement: Statement, index: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Steps [words, lanes] of one forged update."""
    modulus, steps = 1 << statement.field_bits, np.zeros((WORDS, statement.lanes))
    shape, flat = index % 6, steps.reshape(-1)
    if shape == 0:
        steps[:] = rng.normal(size=steps.shape)
    elif shape == 1:
        steps[:, rng.integers(statement.lanes)] = rng.normal(size=WORDS)
    elif shape in (2, 3):
        flat[rng.choice(flat.size, 16 if shape == 2 else 1, replace=False)] = rng.choice([-1.0, 1.0])
    elif shape == 4:
        flat[rng.choice(flat.size, 2 * int(rng.integers(1, 9)), replace=False)] = modulus // 2
        return steps.astype(np.int64)
    else:
        uniform: NDArray[np.int64] = rng.integers(-modulus // 2, modulus // 2, steps.shape)
        return uniform
    # A single element is no longer than half the modulus, or it would be another, shorter one.
    most = min(MOST_OVER, 0.49 * modulus / statement.bound / np.abs(steps).max() * np.linalg.norm(steps))
    norm = statement.bound * rng.uniform(statement.slack, max(statement.slack, most))
    scaled: NDArray[np.int64] = (np.sign(steps) * np.ceil(np.abs(steps) * (norm / np.linalg.norm(steps)))).astype(
        np.int64
    )
    return scaled


def other_vectors(statement: Statement, count: int, rng: np.random.Generator) -> int:
    """How many of `count` masked vectors that are not the proven ones pass the check of the sum.

    They differ in one word, by a step of a lane or by 2^63, or in all.
    """
    passed = 0
    for start in range(0, count, BATCH):
        batch = [_difference(statement, start + i, rng) for i in range(min(BATCH, count - start))]
        limbs = np.stack(batch, axis=1).view(np.uint32).astype(np.int64)
        projected = project(rng.bytes(32), statement.projections, limbs.shape[1], [limbs]).astype(np.uint64)
        low, high = projected.reshape(statement.projections, -1, 2).transpose(2, 1, 0)
        passed += int((~(low + (high << np.uint64(32))).any(axis=1)).sum())
    return passed


def _difference(statement: Statement, index: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    """Words [words] that a forger adds to what it proved."""
    if index % 3 == 2:
        return np.frombuffer(rng.bytes(8 * WORDS), np.uint64)
    difference = np.zeros(WORDS, np.uint64)
    bit = 63 if index % 3 else int(rng.integers(statement.lanes)) * statement.field_bits
    difference[rng.integers(WORDS)] = np.uint64(1 << bit)
    return difference


def altered_proofs(statement: Statement, count: int, rng: np.random.Generator) -> int:
    """How many of `count` good proofs pass with one byte changed, for another coin, client or commitment."""
    steps = np.zeros((WORDS, statement.lanes), np.int64)
    coin, pads, others = rng.bytes(32), Pads.draw(statement), Pads.draw(statement)
    proof = prove(statement, CONTEXT, coin, [steps], pads)
    good = Submission(context=CONTEXT, commitment=pads.commitment, proof=proof)
    if accepted(statement, coin, [good]) != [True]:
        raise AssertionError("the honest proof does not pass")
    elsewhere = (
        (rng.bytes(32), good),
        (coin, Submission(context=ELSEWHERE, commitment=good.commitment, proof=proof)),
        (coin, Submission(context=CONTEXT, commitment=others.commitment, proof=proof)),
    )
    passed = sum(accepted(statement, other, [submission])[0] for other, submission in elsewhere[:count])
    for changed in _with_a_byte_changed(proof, count - len(elsewhere), rng):
        submission = Submission(context=CONTEXT, commitment=pads.commitment, proof=changed)
        passed += accepted(statement, coin, [submission])[0]
    return passed


def _with_a_byte_changed(content: bytes, count: int, rng: np.random.Generator) -> Iterator[bytes]:
    for _ in range(count):
        place = int(rng.integers(len(content)))
        yield content[:place] + bytes([content[place] ^ int(rng.integers(1, 256))]) + content[place + 1 :]


class ScalingForger(Prover):
    """Claims the true projections, shifted: all of them are short."""

    def claim(self, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        return lanes >> self.statement.field_bits


class ZeroForger(Prover):
    """Claims that all projections are zero."""

    def claim(self, lanes: NDArray[np.int64]) -> NDArray[np.int64]:
        return lanes * 0


class PadForger(ZeroForger):
    """Claims that all projections are zero, and has the pads that fit in its other commitment."""

    corrections: list[int]

    def short_numbers(self, lanes: NDArray[np.int64], values: NDArray[np.uint64]) -> list[int]:
        self.corrections = [value - pad for value, pad in zip(values.tolist(), self.pads.words.tolist(), strict=True)]
        numbers = super().short_numbers(lanes, values)
        for index in range(self.statement.projections):
            numbers[self.statement.position_of_other(index)] = 0
        return numbers

    def with_hiders(self, short: list[int]) -> list[int]:
        numbers = super().with_hiders(short)
        for index, correction in enumerate(self.corrections):
            numbers[self.statement.position_of_other(index)] = correction
        return numbers


class WrappingForger(Prover):
    """Claims the true projections, with squares that sum up to the limit modulo the order alone."""

    def four_squares(self, spare: int) -> tuple[int, int, int, int]:
        while True:
            one = secrets.randbelow(ORDER)
            rest = (spare - one * one) % ORDER
            root = pow(rest, (ORDER + 3) // 8, ORDER)
            for two in (root, root * pow(2, (ORDER - 1) // 4, ORDER) % ORDER):
                if two * two % ORDER == rest:
                    return one, two, 0, 0

    def subset_sums(self, bits: NDArray[np.uint8], numbers: Sequence[int]) -> list[int]:
        """Without the long numbers, or they would be seen to be long."""
        return super().subset_sums(bits, [number if abs(number) < 1 << 62 else 0 for number in numbers])


class MissingForger(Prover):
    """Claims the true projections, and says what sum their squares have."""

    def four_squares(self, spare: int) -> tuple[int, int, int, int]:
        del spare
        return 0, 0, 0, 0


class ClaimingForger(MissingForger):
    """Claims of the response the sum of squares that it would have if the numbers' own were the limit."""

    missing = 0

    def four_squares(self, spare: int) -> tuple[int, int, int, int]:
        self.missing = spare
        return super().four_squares(spare)

    def squares_of_response(self, response: Sequence[int], challenge: int) -> int:
        return (super().squares_of_response(response, challenge) + challenge * challenge * self.missing) % ORDER


FORGERS = (ScalingForger, ZeroForger, PadForger, WrappingForger, MissingForger, ClaimingForger)


def lying_provers(statement: Statement, count: int, rng: np.random.Generator) -> int:
    """How many of `count` provers of a vector that is too long pass: each of `FORGERS` in turn."""
    passed = 0
    for index in range(count):
        # Over the limit as a whole, while each number alone is short.
        norm = 1.5 * np.sqrt(2 * statement.limit / statement.projections)
        drawn = rng.normal(size=(WORDS, statement.lanes))
        steps = np.rint(drawn * (norm / np.linalg.norm(drawn))).astype(np.int64)
        coin, pads = rng.bytes(32), Pads.draw(statement)
        proof = FORGERS[index % len(FORGERS)](statement, CONTEXT, coin, pads).prove([steps]).to_bytes()
        submission = Submission(context=CONTEXT, commitment=pads.commitment, proof=proof)
        passed += accepted(statement, coin, [submission])[0]
    return passed
