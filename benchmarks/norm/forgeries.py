"""Forgeries: vectors over the bound, vectors other than the proven one, and proofs that are not what a prover made."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.norm.group import ORDER
from benchmarks.norm.proof import Pads, Proof, context_of, prove
from benchmarks.norm.squares import four_squares, modular_squares
from benchmarks.norm.statement import Statement, project
from benchmarks.norm.verifier import Submission, accepted

BATCH = 512
"""Vectors under one coin."""
MOST_OVER = 32.0
CONTEXT = context_of(b"forgeries", 1)


def over_the_bound(statement: Statement, count: int, rng: np.random.Generator) -> int:
    """How many of `count` vectors with norms from slack * bound on pass, if a forger claims the shortest lanes.

    One in six of each shape: normal in all lanes, in one, 16 elements, one element, pairs of half the modulus, whose
    sums wrap to zero, and uniform modulo the field. The pads are off by a uniform number.
    """
    passed = 0
    for start in range(0, count, BATCH):
        vectors = np.stack([_vector(statement, start + i, rng) for i in range(min(BATCH, count - start))], axis=1)
        columns = vectors.reshape(statement.words, -1)
        lanes = project(rng.bytes(32), statement.projections, columns)
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
    modulus, steps = 1 << statement.field_bits, np.zeros((statement.words, statement.lanes))
    shape, flat = index % 6, steps.reshape(-1)
    if shape == 0:
        steps[:] = rng.normal(size=steps.shape)
    elif shape == 1:
        steps[:, rng.integers(statement.lanes)] = rng.normal(size=statement.words)
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
        low, high = project(rng.bytes(32), statement.projections, limbs).astype(np.uint64).reshape(
            statement.projections, -1, 2
        ).transpose(2, 1, 0)  # fmt: skip
        passed += int((~(low + (high << np.uint64(32))).any(axis=1)).sum())
    return passed


def _difference(statement: Statement, index: int, rng: np.random.Generator) -> NDArray[np.uint64]:
    """Words [words] that a forger adds to what it proved."""
    if index % 3 == 2:
        return np.frombuffer(rng.bytes(8 * statement.words), np.uint64)
    difference = np.zeros(statement.words, np.uint64)
    bit = 63 if index % 3 else int(rng.integers(statement.lanes)) * statement.field_bits
    difference[rng.integers(statement.words)] = np.uint64(1 << bit)
    return difference


def altered_proofs(statement: Statement, count: int, rng: np.random.Generator) -> int:
    """How many of `count` good proofs pass with one byte changed, for another coin, client or commitment."""
    steps = np.zeros((statement.words, statement.lanes), np.int64)
    seed, pads, others = rng.bytes(32), Pads.draw(statement), Pads.draw(statement)
    content = prove(statement, CONTEXT, seed, steps, pads).to_bytes()
    good = Submission(context=CONTEXT, commitment=pads.commitment, proof=Proof.from_bytes(content, statement))
    if accepted(statement, seed, [good]) != [True]:
        raise AssertionError("the honest proof does not pass")
    elsewhere = (
        (rng.bytes(32), good),
        (seed, Submission(context=context_of(b"forgeries", 2), commitment=good.commitment, proof=good.proof)),
        (seed, Submission(context=CONTEXT, commitment=others.commitment, proof=good.proof)),
    )
    passed = sum(accepted(statement, coin, [submission])[0] for coin, submission in elsewhere[:count])
    for changed in _with_a_byte_changed(content, count - len(elsewhere), rng):
        try:
            proof = Proof.from_bytes(changed, statement)
        except ValueError:
            continue
        passed += accepted(statement, seed, [Submission(context=CONTEXT, commitment=pads.commitment, proof=proof)])[0]
    return passed


def _with_a_byte_changed(content: bytes, count: int, rng: np.random.Generator) -> Iterator[bytes]:
    for _ in range(count):
        place = int(rng.integers(len(content)))
        yield content[:place] + bytes([content[place] ^ int(rng.integers(1, 256))]) + content[place + 1 :]


def lying_provers(statement: Statement, count: int, rng: np.random.Generator) -> int:
    """How many of `count` provers of a vector that is too long pass.

    In turn: short numbers, all zero, and the true projections with squares that sum up to the limit modulo the order
    alone, or do not, in which case the forger says so or claims that they do.
    """
    passed = 0
    for index in range(count):
        # Over the limit as a whole, while each number alone is short.
        norm = 1.5 * np.sqrt(2 * statement.limit / statement.projections)
        drawn = rng.normal(size=(statement.words, statement.lanes))
        steps = np.rint(drawn * (norm / np.linalg.norm(drawn))).astype(np.int64)
        seed, pads = rng.bytes(32), Pads.draw(statement)
        lanes = project(seed, statement.projections, steps)
        pretended, squares, fitting = (
            (lanes >> statement.field_bits, four_squares, False),
            (lanes * 0, four_squares, False),
            (lanes, partial(modular_squares, prime=ORDER), False),
            (lanes, no_squares, False),
            (lanes, no_squares, True),
        )[index % 5]
        proof = prove(
            statement, CONTEXT, seed, steps, pads, pretended=pretended, squares=squares, fitting=fitting
        )  # fmt: skip
        submission = Submission(context=CONTEXT, commitment=pads.commitment, proof=proof)
        passed += accepted(statement, seed, [submission])[0]
    return passed


def no_squares(number: int) -> tuple[int, int, int, int]:
    """A forger's four, whatever they were to sum up to."""
    del number
    return 0, 0, 0, 0
