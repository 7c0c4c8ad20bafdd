"""Proofs of a norm: an honest client passes, a forger does not, and what is proven is what the sessions masked."""

import dataclasses
import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.norm import forgeries
from benchmarks.norm.proof import Pads, Proof, context_of, prove
from benchmarks.norm.squares import four_squares
from benchmarks.norm.statement import Statement, join, lower, project, sum_holds, upper
from benchmarks.norm.verifier import Submission, accepted
from fedcore.secagg import Agreement, ClientSession, RoundParameters, ServerRound, apply_masks

SEED = bytes(range(32))
SMALL = Statement(projections=16, field_bits=16, elements=100, bound=4000, folds=2)


def honest(statement, seed=1, norm=1.0):
    drawn = np.random.default_rng(seed).normal(size=(statement.words, statement.lanes))
    return np.trunc(drawn * norm * statement.bound / np.linalg.norm(drawn)).astype(np.int64)


def submission(statement, steps, client=1, **changes):
    pads = Pads.draw(statement)
    context = context_of(b"exchange", client)
    proof = prove(statement, context, SEED, steps, pads, **changes)
    return Submission(context=context, commitment=pads.commitment, proof=proof), pads


@pytest.mark.parametrize("field_bits", [10, 16, 21, 32])
@pytest.mark.parametrize("folds", [0, 1, 4])
def test_an_honest_proof_passes_after_its_way_over_the_wire(field_bits, folds):
    statement = Statement(
        projections=8, field_bits=field_bits, elements=50, bound=(1 << field_bits) // 16, folds=folds
    )  # fmt: skip
    made, _ = submission(statement, honest(statement))
    sent = Proof.from_bytes(made.proof.to_bytes(), statement)
    assert accepted(statement, SEED, [dataclasses.replace(made, proof=sent)]) == [True]


def test_of_many_proofs_only_the_bad_ones_are_refused():
    made = [submission(SMALL, honest(SMALL, client), client)[0] for client in (1, 2, 3, 4)]
    made[1] = dataclasses.replace(made[1], commitment=made[0].commitment)
    first = dataclasses.replace(made[2].proof, last=made[2].proof.last[::-1])
    made[2] = dataclasses.replace(made[2], proof=first)
    assert accepted(SMALL, SEED, made) == [True, False, False, True]


def test_no_proof_is_made_of_an_update_that_is_too_long():
    with pytest.raises(ValueError, match="norm"):
        submission(SMALL, honest(SMALL, norm=16.0))


@pytest.mark.parametrize(
    "forge", [forgeries.altered_proofs, forgeries.lying_provers, forgeries.other_vectors], ids=lambda one: one.__name__
)
def test_forgeries_do_not_pass(forge):
    assert forge(SMALL, 20, np.random.default_rng(2)) == 0


def test_vectors_over_the_bound_do_not_pass_and_honest_ones_do():
    statement = Statement(projections=256, field_bits=16, elements=400, bound=4000)
    rng = np.random.default_rng(3)
    assert forgeries.over_the_bound(statement, 300, rng) == 0
    lanes = project(SEED, statement.projections, honest(statement))[:, None]
    assert forgeries.shortest_claims(statement, lanes)[0] <= statement.limit


@pytest.mark.parametrize("part", ["sums", "scalars", "last"])
def test_the_numbers_of_a_proof_count(part):
    made, _ = submission(SMALL, honest(SMALL))
    numbers = getattr(made.proof, part)
    for index in range(0, len(numbers), 5):
        altered = (*numbers[:index], numbers[index] + 1, *numbers[index + 1 :])
        proof = dataclasses.replace(made.proof, **{part: altered})
        assert accepted(SMALL, SEED, [dataclasses.replace(made, proof=proof)]) == [False]


@pytest.mark.parametrize("number", [*range(60), 10**6, 4**9 * 7, 2**45 - 1, 3 * 2**40 + 8])
def test_every_number_is_a_sum_of_four_squares(number):
    assert sum(root * root for root in four_squares(number)) == number


@pytest.mark.parametrize("projections", [16, 256, 1024])
def test_the_limits_are_those_of_chernoff(projections):
    for ratio in (upper(projections), lower(projections)):
        exponent = projections / 2 * (ratio - 1 - np.log(ratio)) / np.log(2)
        assert exponent == pytest.approx(64, abs=1e-6)


def test_what_is_proven_of_every_vector_comes_near_what_holds_of_a_normal_one():
    slacks = []
    for projections in (512, 1024, 2048):
        statement = Statement(projections=projections, field_bits=16, elements=100, bound=4095)
        assert statement.slack < statement.proven_slack
        slacks.append(statement.proven_slack)
    assert slacks == sorted(slacks, reverse=True)
    assert slacks[1] == pytest.approx(1.988, abs=1e-3)
    assert Statement(projections=128, field_bits=16, elements=100, bound=4095).proven_slack == np.inf


def test_projections_are_exact_and_their_matrix_has_as_many_zeros_as_signs():
    identity = np.eye(2000, dtype=np.int64)
    matrix = project(SEED, 16, identity)
    assert {-1, 0, 1} == {*np.unique(matrix)}
    assert np.abs(matrix).mean() == pytest.approx(0.5, abs=0.02)
    steps = np.random.default_rng(4).integers(-(2**31), 2**31, (2000, 3))
    assert np.array_equal(project(SEED, 16, steps), matrix @ steps)


class Exchange:
    """Eight clients and a server, whose vectors are words and pads."""

    def __init__(self, statement, vectors):
        self.statement, self.ids = statement, tuple(vectors)
        keys = {i: Ed25519PrivateKey.generate() for i in self.ids}
        roster = {i: key.public_key().public_bytes_raw() for i, key in keys.items()}
        n = len(self.ids)
        digest = hashlib.sha256(b"test").digest()
        parameters = RoundParameters(
            federation="test", run="run", round=1, cohort=self.ids, quorum=n - 2, degree=n - 1, threshold=n - 2,
            corrupt=1, agreement=Agreement.X25519, words=statement.words + statement.projections, encoding=b"",
            roster_hash=digest, model_hash=digest, task_hash=digest,
        )  # fmt: skip
        self.server = ServerRound(parameters=parameters, roster=roster)
        self.sessions = {
            i: ClientSession(
                parameters=parameters, client_id=i, identity=keys[i], roster=roster, min_cohort=2, min_threshold=2
            )
            for i in self.ids
        }
        self.vectors = {i: vector.copy() for i, vector in vectors.items()}
        self._mask()

    def _mask(self):
        for session in self.sessions.values():
            self.server.receive_advertisement(session.advertise())
        self.server.close_stage()
        for i, session in self.sessions.items():
            self.server.receive_shares(session.share_keys(self.server.advertised(i)))
        self.server.close_stage()
        for i, session in self.sessions.items():
            session.receive_shares(self.server.delivery(i))
            session.mask(self.vectors[i])

    def total(self, survivors):
        """The words and the pads of the sum over these clients."""
        for i in survivors:
            self.server.receive_input(i, hashlib.sha256(self.vectors[i].tobytes()).digest())
        self.server.close_stage()
        for i in survivors:
            self.server.receive_consistency(self.sessions[i].sign_survivors(self.server.survivors()))
        self.server.close_stage()
        for i in survivors:
            self.server.receive_unmask(self.sessions[i].unmask(self.server.signatures()))
        self.server.close_stage()
        total = np.sum([self.vectors[i] for i in survivors], axis=0, dtype=np.uint64)
        apply_masks(total, self.server.mask_terms())
        return np.split(total, [self.statement.words])


@pytest.mark.parametrize("liar", [False, True])
def test_the_sum_goes_on_without_who_is_refused_and_shows_a_vector_that_was_not_proven(liar):
    """Client 1 masks a vector that is too long, and claims short projections. The liar proves one and masks another."""
    ids = range(1, 9)
    steps = {i: honest(SMALL, i, norm=40.0 if i == 1 else 0.9) for i in ids}
    pretended = {1: project(SEED, SMALL.projections, steps[1]) // 2**12}
    made = {i: submission(SMALL, steps[i], i, pretended=pretended.get(i)) for i in ids}
    masked = {i: np.concatenate([join(steps[i], 16), pads.words]) for i, (_, pads) in made.items()}
    if liar:
        masked[2][0] ^= np.uint64(1 << 63)
    exchange = Exchange(SMALL, masked)
    results = accepted(SMALL, SEED, [one for one, _ in made.values()])
    assert results == [i != 1 for i in ids]
    survivors = [i for i, result in zip(ids, results, strict=True) if result]
    words, pads = exchange.total(survivors)
    values = np.stack([made[i][0].proof.values for i in survivors])
    assert sum_holds(SEED, words, pads, values) is not liar
    if not liar:
        assert np.array_equal(words, join(sum(steps[i] for i in survivors), 16))
