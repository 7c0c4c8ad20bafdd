"""Proofs of a norm: an honest client passes, others do not, and what is proven is what is in the sum."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import ConfigurationError, UsageError
from fedcore.secagg.norm import Pads, Statement, Submission, accepted, prove, sum_holds, values_of
from fedcore.secagg.norm.projection import join, project
from fedcore.secagg.norm.proof import Proof
from fedcore.secagg.norm.squares import four_squares
from fedcore.secagg.norm.statement import lower, upper

COIN, CONTEXT = bytes(range(32)), b"exchange"
SMALL = Statement(projections=4, field_bits=16, bound=4000, folds=2)
WORDS = 25


def honest(statement, seed=1, norm=1.0):
    drawn = np.random.default_rng(seed).normal(size=(WORDS, statement.lanes))
    return np.trunc(drawn * norm * statement.bound / np.linalg.norm(drawn)).astype(np.int64)


def submission(statement, steps, context=CONTEXT):
    pads = Pads.draw(statement)
    proof = prove(statement, context, COIN, [steps], pads)
    return Submission(context=context, commitment=pads.commitment, proof=proof), pads


@pytest.fixture(scope="module")
def good():
    return submission(SMALL, honest(SMALL))[0]


@pytest.mark.parametrize("field_bits", [10, 16, 21, 32])
@pytest.mark.parametrize("folds", [0, 1, 4])
def test_an_honest_proof_passes_and_has_the_length_that_was_said(field_bits, folds):
    statement = Statement(projections=4, field_bits=field_bits, bound=(1 << field_bits) // 16, folds=folds)
    statement.check()
    made, _ = submission(statement, honest(statement))
    assert len(made.proof) == statement.proof_bytes
    assert accepted(statement, COIN, [made]) == [True]


@pytest.mark.parametrize("bits", [28, 30, 34])
def test_the_largest_bound_that_is_no_error_can_be_proven(bits):
    statement = Statement(projections=4, field_bits=64, bound=1 << bits, folds=2)
    statement.check()
    assert accepted(statement, COIN, [submission(statement, honest(statement))[0]]) == [True]


@pytest.mark.parametrize(("field_bits", "bound"), [(16, 0), (16, 4097), (64, 2**50)])
def test_a_bound_that_no_proof_is_for_is_an_error_of_the_configuration(field_bits, bound):
    with pytest.raises(ConfigurationError):
        Statement(projections=4, field_bits=field_bits, bound=bound).check()


def test_a_vector_of_zeros_and_one_whose_projections_are_just_at_the_limit_pass():
    lanes = project(COIN, SMALL.projections, SMALL.lanes, [steps := honest(SMALL)])
    squares = int((lanes * lanes).sum())
    at_the_limit = dataclasses.replace(SMALL)
    vars(at_the_limit)["limit"] = squares
    for statement, vector in ((SMALL, steps * 0), (at_the_limit, steps)):
        assert accepted(statement, COIN, [submission(statement, vector)[0]]) == [True]
    vars(at_the_limit)["limit"] = squares - 1
    with pytest.raises(ValueError, match="norm"):
        submission(at_the_limit, steps)


def test_no_proof_is_made_of_an_update_that_is_too_long():
    with pytest.raises(ValueError, match="norm"):
        submission(SMALL, honest(SMALL, norm=40.0))


def test_of_many_proofs_only_the_bad_ones_are_refused():
    made = [submission(SMALL, honest(SMALL, client), b"%d" % client)[0] for client in range(5)]
    made[1] = dataclasses.replace(made[1], commitment=made[0].commitment)
    made[2] = dataclasses.replace(made[2], proof=b"")
    assert accepted(SMALL, COIN, made) == [True, False, False, True, True]
    assert accepted(SMALL, COIN, []) == []


def test_a_proof_is_of_one_coin_one_context_one_commitment_and_one_statement(good):
    other = Pads.draw(SMALL).commitment
    assert accepted(SMALL, bytes(32), [good]) == [False]
    assert accepted(SMALL, COIN, [dataclasses.replace(good, context=b"other")]) == [False]
    assert accepted(SMALL, COIN, [dataclasses.replace(good, commitment=other)]) == [False]
    assert accepted(SMALL, COIN, [dataclasses.replace(good, commitment=good.commitment[1:])]) == [False]
    assert accepted(dataclasses.replace(SMALL, bound=4001), COIN, [good]) == [False]


@given(place=st.integers(0, SMALL.proof_bytes - 1), change=st.integers(1, 255))
def test_a_proof_with_a_byte_changed_is_refused(good, place, change):
    content = bytearray(good.proof)
    content[place] ^= change
    assert accepted(SMALL, COIN, [dataclasses.replace(good, proof=bytes(content))]) == [False]


@given(st.one_of(st.binary(max_size=64), st.binary(min_size=SMALL.proof_bytes, max_size=SMALL.proof_bytes)))
def test_any_bytes_are_refused_and_raise_nothing(content):
    one = Submission(context=CONTEXT, commitment=Pads.draw(SMALL).commitment, proof=content)
    assert accepted(SMALL, COIN, [one]) == [False]


@pytest.mark.parametrize("cut", [0, 1, 31, 32, SMALL.proof_bytes - 1])
def test_a_proof_that_is_truncated_or_too_long_is_refused(good, cut):
    for content in (good.proof[:cut], good.proof + bytes(cut + 1)):
        assert accepted(SMALL, COIN, [dataclasses.replace(good, proof=content)]) == [False]
        with pytest.raises(ValueError, match="length"):
            values_of(content, SMALL)


@pytest.mark.parametrize("part", ["sums", "scalars", "last"])
def test_the_numbers_of_a_proof_count(good, part):
    proof = Proof.from_bytes(good.proof, SMALL)
    numbers = getattr(proof, part)
    for index in range(len(numbers)):
        altered = (*numbers[:index], numbers[index] + 1, *numbers[index + 1 :])
        content = dataclasses.replace(proof, **{part: altered}).to_bytes()
        assert accepted(SMALL, COIN, [dataclasses.replace(good, proof=content)]) == [False]


def test_pads_that_are_not_those_that_were_committed_to_are_refused():
    """Who could choose pads after the coin could claim any projections."""
    pads, other = Pads.draw(SMALL), Pads.draw(SMALL)
    swapped = Pads(words=other.words, blinding=pads.blinding, commitment=pads.commitment)
    proof = prove(SMALL, CONTEXT, COIN, [honest(SMALL)], swapped)
    assert accepted(SMALL, COIN, [Submission(context=CONTEXT, commitment=pads.commitment, proof=proof)]) == [False]


class Wide(Statement):
    """Hides the sums of subsets with longer numbers than a verifier allows."""

    @property
    def hiding(self):
        return super().hiding << 8


def test_a_proof_whose_subset_sums_are_long_is_refused():
    wide = Wide(**dataclasses.asdict(SMALL))
    made, _ = submission(wide, honest(SMALL))
    assert (accepted(wide, COIN, [made]), accepted(SMALL, COIN, [made])) == ([True], [False])


@pytest.mark.parametrize("change", [None, 0, 1, 63, "pad"])
def test_the_sum_shows_a_vector_that_is_not_the_proven_one(change):
    vectors = [honest(SMALL, client) for client in range(3)]
    made = [submission(SMALL, steps) for steps in vectors]
    words = sum(join(steps, SMALL.field_bits) for steps in vectors)
    pads = sum(pads.words for _, pads in made)
    if change == "pad":
        pads[0] += np.uint64(1)
    elif change is not None:
        words[WORDS // 2] ^= np.uint64(1 << change)
    values = [values_of(one.proof, SMALL) for one, _ in made]
    assert sum_holds(COIN, np.array_split(words, 4), pads, values) is (change is None)


def test_a_further_word_counts_by_its_weight():
    """A whole number in the top lane: its word times weight * 2^(b (lanes - 1)) is what is projected."""
    statement = dataclasses.replace(SMALL, projections=16)
    weight, top = 1 << 11, statement.field_bits * (statement.lanes - 1)
    steps, further = honest(statement, norm=0.5), np.zeros((1, statement.lanes), np.int64)
    further[0, -1] = weight
    pads = Pads.draw(statement)
    proof = prove(statement, CONTEXT, COIN, [steps, further], pads)
    assert accepted(statement, COIN, [Submission(context=CONTEXT, commitment=pads.commitment, proof=proof)]) == [True]
    for flag in (0, 1, 2):
        words = np.array([flag], np.uint64) * np.uint64(weight << top)
        blocks = [join(steps, statement.field_bits), words]
        assert sum_holds(COIN, blocks, pads.words, [values_of(proof, statement)]) is (flag == 1)
    further[0, -1] *= 40
    with pytest.raises(ValueError, match="norm"):
        prove(statement, CONTEXT, COIN, [steps, further], pads)


def test_threads_change_no_proof():
    steps, drawn = honest(SMALL), [random.Random(1).randbytes for _ in range(2)]
    one, many = (
        prove(SMALL, CONTEXT, COIN, [steps], Pads.draw(SMALL, drawn[i], threads), drawn[i], threads)
        for i, threads in enumerate((1, 3))
    )
    assert one == many
    made = [submission(SMALL, steps)[0], dataclasses.replace(submission(SMALL, steps)[0], context=b"other")]
    assert accepted(SMALL, COIN, made, threads=3) == [True, False]


@pytest.mark.parametrize("sizes", [(1000,), (1, 255, 256, 257, 231), (600, 0, 400)])
def test_projections_are_the_same_whatever_the_blocks_are(sizes):
    steps = np.random.default_rng(4).integers(-(2**31), 2**31, (1000, 3))
    matrix = project(COIN, 16, 1000, [np.eye(1000, dtype=np.int64)])
    assert {-1, 0, 1} == {*np.unique(matrix)}
    assert np.abs(matrix).mean() == pytest.approx(0.5, abs=0.02)
    ends = itertools.accumulate(sizes)
    blocks = [steps[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    assert np.array_equal(project(COIN, 16, 3, blocks), matrix @ steps)


def test_a_block_of_another_shape_is_refused():
    for blocks in (honest(SMALL), [honest(SMALL)[:, 1:]]):
        with pytest.raises(UsageError):
            prove(SMALL, CONTEXT, COIN, blocks, Pads.draw(SMALL))


def test_pads_are_uniform_words_that_show_nothing_and_are_erased():
    drawn = random.Random(1).randbytes
    pads = Pads.draw(SMALL, drawn)
    assert pads.words.tobytes() == random.Random(1).randbytes(8 * SMALL.projections)
    assert Pads.draw(SMALL, random.Random(1).randbytes).commitment == pads.commitment
    for secret in (*pads.words.tolist(), pads.blinding):
        assert str(secret) not in repr(pads)
    with pytest.raises(UsageError):
        pickle.dumps(pads)
    commitment = pads.commitment
    pads.erase()
    assert (pads.words.any(), pads.blinding, pads.commitment) == (False, 0, commitment)


@pytest.mark.parametrize("number", [*range(60), 10**6, 4**9 * 7, 2**45 - 1, 3 * 2**40 + 8])
def test_every_number_is_a_sum_of_four_squares(number):
    assert sum(root * root for root in four_squares(number, random.Random(number).randbytes)) == number


@pytest.mark.parametrize("projections", [16, 256, 1024])
def test_the_limits_are_those_of_chernoff(projections):
    for ratio in (upper(projections), lower(projections)):
        exponent = projections / 2 * (ratio - 1 - np.log(ratio)) / np.log(2)
        assert exponent == pytest.approx(64, abs=1e-6)


def test_what_is_proven_of_every_vector_comes_near_what_holds_of_a_normal_one():
    slacks = []
    for projections in (512, 1024, 2048):
        statement = Statement(projections=projections, field_bits=16, bound=4095)
        assert statement.slack < statement.proven_slack
        slacks.append(statement.proven_slack)
    assert slacks == sorted(slacks, reverse=True)
    assert slacks[1] == pytest.approx(1.988, abs=1e-3)
    assert Statement(projections=128, field_bits=16, bound=4095).proven_slack == np.inf
