"""Masking part by part: the bits of masking at once, in order, once, and nothing left of the seeds."""

import tracemalloc

import numpy as np
import pytest

from fedcore.errors import IllegalTransition, UsageError
from fedcore.secagg import Survivors

WORDS = 100_003


@pytest.fixture
def ready(make_rig):
    """Makes a rig whose clients have everything that they need to mask; always the same one."""
    return lambda: make_rig(3, words=WORDS).until("upload")


def words_of(parts):
    return np.frombuffer(b"".join(parts), "<u8")


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("part_words", [1 << 15, 40_001, WORDS, WORDS + 1])
def test_the_parts_are_the_masked_vector(ready, part_words, threads):
    whole, parted = ready(), ready()
    whole.mask(1)
    vector = parted.inputs[1].copy()
    sent = list(parted.clients[1].mask_parts(vector, part_words=part_words, threads=threads))
    assert [len(part) for part in sent[:-1]] == [part_words * 8] * (len(sent) - 1)
    np.testing.assert_array_equal(words_of(sent), whole.uploads[1])
    np.testing.assert_array_equal(vector, whole.uploads[1])
    assert parted.clients[1].state == "masked"


def test_each_piece_is_masked_when_it_is_asked_for(ready):
    rig = ready()
    vector, plain = rig.inputs[1].copy(), rig.inputs[1]
    parts = rig.clients[1].mask_parts(vector, part_words=50_000)
    np.testing.assert_array_equal(vector, plain)
    first = next(parts)
    np.testing.assert_array_equal(vector[50_000:], plain[50_000:])
    assert not np.array_equal(vector[:50_000], plain[:50_000])
    np.testing.assert_array_equal(words_of([first]), vector[:50_000])
    assert np.shares_memory(np.frombuffer(first, np.uint64), vector)


def test_no_copy_of_the_vector_is_made(ready):
    rig = ready()
    vector = rig.inputs[1].copy()
    tracemalloc.start()
    try:
        for _ in rig.clients[1].mask_parts(vector, part_words=1 << 13):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The key stream has a buffer of 256 KiB.
    assert peak < 256 * 1024 + vector.nbytes / 4


def test_no_second_vector_from_the_moment_of_the_call(ready):
    session = ready().clients[1]
    first = session.mask_parts(np.zeros(WORDS, np.uint64), part_words=50_000)
    for again in (session.mask, lambda words: session.mask_parts(words, part_words=50_000)):
        with pytest.raises(IllegalTransition):
            again(np.zeros(WORDS, np.uint64))
    assert len(list(first)) == 3


def test_the_survivors_are_not_signed_before_the_last_piece(ready):
    session = ready().clients[1]
    parts = session.mask_parts(np.zeros(WORDS, np.uint64), part_words=50_000)
    for _ in range(3):
        with pytest.raises(IllegalTransition):
            session.sign_survivors(Survivors((1, 2, 3)))
        next(parts)
    with pytest.raises(IllegalTransition):
        session.sign_survivors(Survivors((1, 2, 3)))
    assert next(parts, None) is None
    session.sign_survivors(Survivors((1, 2, 3)))


def test_seeds_and_keys_go_with_the_last_piece(ready):
    session = ready().clients[1]
    secrets = session._secrets
    parts = session.mask_parts(np.zeros(WORDS, np.uint64), part_words=50_000)
    assert secrets.mask_pair is None
    assert secrets.self_secret is None
    assert len(secrets.mask_terms) == 3
    assert "mask_terms" not in repr(secrets)
    assert len(list(parts)) == 3
    assert secrets.mask_terms == ()
    assert set(secrets.shares) == {1, 2, 3}


@pytest.mark.parametrize("end", ["close", "failure", "abandon"])
def test_a_session_left_half_way_is_abandoned(ready, monkeypatch, end):
    session = ready().clients[1]
    parts = session.mask_parts(np.zeros(WORDS, np.uint64), part_words=50_000)
    next(parts)
    if end == "close":
        parts.close()
    elif end == "failure":

        def out_of_memory(*_args, **_keywords):
            raise MemoryError

        monkeypatch.setattr("fedcore.secagg.client.apply_masks", out_of_memory)
        with pytest.raises(MemoryError):
            next(parts)
    else:
        session.abandon()
        with pytest.raises(IllegalTransition):
            next(parts)
    assert session.state == "abandoned"
    assert session._secrets.mask_terms == ()
    assert next(parts, None) is None


def test_seeds_that_cannot_be_made_abandon_the_session(ready, monkeypatch):
    session = ready().clients[1]

    def broken(*_args, **_keywords):
        raise MemoryError

    monkeypatch.setattr("fedcore.secagg.crypto.schedule.pair_mask", broken)
    with pytest.raises(MemoryError):
        session.mask_parts(np.zeros(WORDS, np.uint64), part_words=50_000)
    assert session.state == "abandoned"
    assert session._secrets.mask_pair is None


def test_a_piece_may_be_a_single_word(make_rig):
    rig = make_rig(3, words=5).until("upload")
    vector = rig.inputs[1].copy()
    assert [len(part) for part in rig.clients[1].mask_parts(vector, part_words=1)] == [8] * 5


@pytest.mark.parametrize("part_words", [0, -1])
def test_a_part_has_words(ready, part_words):
    rig = ready()
    with pytest.raises(UsageError, match="a part"):
        rig.clients[1].mask_parts(np.zeros(WORDS, np.uint64), part_words=part_words)
    rig.go_on("upload")
