"""Forged proofs of a norm do not pass, and a sum goes on without their clients."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.norm import forgeries
from fedcore.secagg import Agreement, ClientSession, RoundParameters, ServerRound, apply_masks
from fedcore.secagg.norm import Pads, Statement, Submission, accepted, prove, sum_holds, values_of
from fedcore.secagg.norm.projection import join, project

COIN = bytes(range(32))
SMALL = Statement(projections=16, field_bits=16, bound=4000, folds=2)
WORDS = 25


def honest(statement, seed=1, norm=1.0):
    drawn = np.random.default_rng(seed).normal(size=(WORDS, statement.lanes))
    return np.trunc(drawn * norm * statement.bound / np.linalg.norm(drawn)).astype(np.int64)


@pytest.mark.parametrize(
    "forge", [forgeries.altered_proofs, forgeries.lying_provers, forgeries.other_vectors], ids=lambda one: one.__name__
)
def test_forgeries_do_not_pass(forge):
    assert forge(SMALL, 20, np.random.default_rng(2)) == 0


@pytest.mark.parametrize("forger", forgeries.FORGERS)
def test_what_a_forger_does_otherwise_is_nothing_without_a_reason(forger):
    """Of the zero vector each makes a proof that passes or fails by its lie alone."""
    pads = Pads.draw(SMALL)
    proof = forger(SMALL, b"", COIN, pads).prove([np.zeros((WORDS, SMALL.lanes), np.int64)]).to_bytes()
    one = Submission(context=b"", commitment=pads.commitment, proof=proof)
    honest_claim = forger in {forgeries.ScalingForger, forgeries.ZeroForger, forgeries.PadForger}
    assert accepted(SMALL, COIN, [one]) == [honest_claim]


def test_vectors_over_the_bound_do_not_pass_and_honest_ones_do():
    statement = Statement(projections=256, field_bits=16, bound=4000)
    rng = np.random.default_rng(3)
    assert forgeries.over_the_bound(statement, 300, rng) == 0
    lanes = project(COIN, statement.projections, statement.lanes, [honest(statement)])[:, None]
    assert forgeries.shortest_claims(statement, lanes)[0] <= statement.limit


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
            corrupt=1, agreement=Agreement.X25519, words=WORDS + statement.projections, encoding=b"",
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
        return np.split(total, [WORDS])


@pytest.mark.parametrize("liar", [False, True])
def test_the_sum_goes_on_without_who_is_refused_and_shows_a_vector_that_was_not_proven(liar):
    """Client 1 masks a vector that is too long, and claims short projections. The liar proves one and masks another."""
    ids = range(1, 9)
    steps = {i: honest(SMALL, i, norm=40.0 if i == 1 else 0.9) for i in ids}
    pads = {i: Pads.draw(SMALL) for i in ids}
    masked = {i: np.concatenate([join(steps[i], 16), pads[i].words]) for i in ids}
    if liar:
        masked[2][0] ^= np.uint64(1 << 63)
    exchange = Exchange(SMALL, masked)
    forged = forgeries.ScalingForger(SMALL, b"1", COIN, pads[1]).prove([steps[1]]).to_bytes()
    proofs = {1: forged, **{i: prove(SMALL, b"%d" % i, COIN, [steps[i]], pads[i]) for i in ids if i != 1}}
    results = accepted(
        SMALL,
        COIN,
        [Submission(context=b"%d" % i, commitment=pads[i].commitment, proof=proofs[i]) for i in ids],
    )
    assert results == [i != 1 for i in ids]
    survivors = [i for i, result in zip(ids, results, strict=True) if result]
    words, total = exchange.total(survivors)
    values = [values_of(proofs[i], SMALL) for i in survivors]
    assert sum_holds(COIN, [words], total, values) is not liar
    if not liar:
        assert np.array_equal(words, join(sum(steps[i] for i in survivors), 16))
