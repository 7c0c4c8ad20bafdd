"""Whole rounds: the sum is exact whoever drops out, and wherever, as long as t clients are left."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedcore.errors import CohortTooSmall, UnmaskFailed, UsageError
from fedcore.secagg import Agreement, Fault, Secret, ServerStage, UnmaskShares
from fedcore.secagg.crypto import shamir
from tests.support.raising import raises


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13])
def test_sum_is_exact_with_everyone(make_rig, n):
    rig = make_rig(n).until("end")
    rig.assert_sum(rig.ids)
    assert rig.server.stage is ServerStage.DONE
    assert rig.server.blamed == {}


def test_upload_differs_from_input_and_hides_it(make_rig):
    rig = make_rig(4, words=4000).until("sign")
    for i in rig.ids:
        masked, plain = rig.uploads[i], rig.inputs[i]
        bits = np.unpackbits((masked ^ plain).view(np.uint8))
        assert abs(bits.mean() - 0.5) < 0.01


@pytest.mark.parametrize("step", ["advertise", "share", "upload", "sign", "unmask"])
@pytest.mark.parametrize("lost", [(1,), (5,), (2, 4)])
def test_sum_is_that_of_the_survivors(make_rig, step, lost):
    rig = make_rig(7).until(step)
    rig.lose(step, lost)
    stays = step in {"sign", "unmask"}
    assert set(rig.server.survivors().survivors) == set(rig.ids) - (set() if stays else set(lost))


def test_a_different_client_is_lost_at_every_step(make_rig):
    rig = make_rig(9, threshold=5)
    rig.advertise(set(rig.ids) - {9})
    rig.share(set(rig.ids) - {9, 2})
    rig.deliver()
    rig.upload(set(rig.ids) - {9, 2, 4})
    rig.sign(set(rig.ids) - {9, 2, 4, 1})
    rig.unmask()
    rig.assert_sum([1, 3, 5, 6, 7, 8])


def test_declared_drops_count_like_silence_except_for_a_vector_in_the_sum(make_rig):
    rig = make_rig(7)
    rig.advertise()
    for i in rig.ids:
        rig.server.receive_shares(rig.clients[i].share_keys(rig.server.advertised(i)))
    rig.server.drop(3)
    assert 3 not in rig.server.answered
    rig.server.close_stage()
    rig.deliver()
    for i in (1, 2, 4, 5, 6, 7):
        rig.server.receive_input(i, rig.mask(i))
    rig.server.drop(6)
    assert 6 in rig.server.answered
    rig.server.close_stage()
    assert rig.server.expected == {1, 2, 4, 5, 7}
    rig.sign()
    rig.unmask()
    rig.assert_sum([1, 2, 4, 5, 6, 7])


@pytest.mark.parametrize("step", ["advertise", "share", "upload", "sign", "unmask"])
def test_below_the_threshold_the_round_fails_by_name(make_rig, step):
    rig = make_rig(5).until(step)
    assert rig.parameters.threshold == 4
    with pytest.raises(CohortTooSmall) as caught:
        getattr(rig, step)([1, 2, 3])
    assert (caught.value.present, caught.value.needed) == (3, 4)
    assert rig.server.stage is ServerStage.FAILED
    assert rig.server.expected == frozenset()


def test_expected_answered_and_missing_follow_the_stage(make_rig):
    rig = make_rig(4)
    rig.server.receive_advertisement(rig.clients[2].advertise())
    assert rig.server.expected == {1, 2, 3, 4}
    assert rig.server.answered == {2}
    assert rig.server.missing == {1, 3, 4}
    rig.server.drop(4)
    assert rig.server.missing == {1, 3}


def test_threads_do_not_change_the_upload(make_rig):
    one, four = make_rig(3, words=200_000).until("upload"), make_rig(3, words=200_000).until("upload")
    assert one.mask(1) == four.mask(1, threads=4)


def test_sessions_draw_all_randomness_from_their_argument(make_rig):
    first, second = make_rig(3).until("sign"), make_rig(3).until("sign")
    for i in first.ids:
        np.testing.assert_array_equal(first.uploads[i], second.uploads[i])


def _with_wrong_self_share(message: UnmaskShares, owner: int, *, place: int = -1) -> UnmaskShares:
    shares = dict(message.self_shares)
    raw = bytearray(shares[owner])
    raw[place] ^= 1
    return UnmaskShares(message.client_id, shares | {owner: bytes(raw)}, message.key_shares)


def _unmask(rig, said):
    """Everybody's answer in the last stage, after `said` has had its way with it."""
    for i in sorted(rig.server.expected):
        rig.server.receive_unmask(said(i, rig.clients[i].unmask(rig.server.signatures())))
    rig.server.close_stage()


@pytest.mark.parametrize("liars", [{1}, {4}, {2, 7}, {1, 2, 3}, {1, 4, 9, 10}])
def test_as_many_good_shares_as_the_threshold_always_suffice(make_rig, liars):
    """Ten holders and a threshold of six: four wrong shares are more than any decoder corrects without commitments.

    All errors are 1 or -1, so some subsets of shares hit the right secret on a wrong polynomial.
    """
    rig = make_rig(10, threshold=6).until("unmask")
    _unmask(rig, lambda i, message: _with_wrong_self_share(message, 4) if i in liars else message)
    rig.assert_sum(rig.ids)
    assert rig.server.blamed == dict.fromkeys(liars, Fault.WRONG_SHARE)


def test_shares_made_up_together_on_one_polynomial_are_traced(make_rig):
    """Two of four put their shares on another line through the right secret: without commitments, two against two."""
    rig = make_rig(4, threshold=3).until("unmask")
    other = dict(enumerate(shamir.split(Secret(bytes(32)), threshold=3, holders=4, randomness=bytes), start=1))
    point = rig.graph().point(2, 4)

    def said(i, message):
        if i != 4:
            return message
        return UnmaskShares(i, message.self_shares | {2: other[point]}, message.key_shares)

    _unmask(rig, said)
    rig.assert_sum(rig.ids)
    assert rig.server.blamed == {4: Fault.WRONG_SHARE}


def _dealt_wrongly(rig, cheat, change):
    """`cheat` deals what `change` makes of its message, and everybody else what is right."""
    honest = rig.clients[cheat].share_keys(rig.server.advertised(cheat))
    rig.server.receive_shares(change(honest))
    rig.share(set(rig.ids) - {cheat})


def test_a_dealer_whose_committed_shares_give_another_secret_is_to_blame(make_rig):
    """Whoever hears of it releases what it was dealt, and is not named."""
    rig = make_rig(5).until("share")
    _dealt_wrongly(rig, 2, lambda message: dataclasses.replace(message, commitment=bytes(32)))
    rig.deliver()
    rig.upload()
    rig.sign()
    with raises(UnmaskFailed, check="other-self-secret", numbers=(2,)):
        _unmask(rig, lambda _, message: message)
    assert rig.server.blamed == {2: Fault.INCONSISTENT_DEALING}


def test_every_cheat_is_found_where_the_sum_is_lost(make_rig):
    """Not the first secret alone: an attempt more for each cheat would be one too many."""
    rig = make_rig(7, threshold=5).until("share")
    _dealt_wrongly(rig, 2, lambda message: dataclasses.replace(message, commitment=bytes(32)))
    rig.deliver()
    rig.upload()
    rig.sign()
    with raises(UnmaskFailed, check="other-self-secret", numbers=(2,)):
        _unmask(rig, lambda i, message: _with_wrong_self_share(message, 6) if i == 7 else message)
    assert rig.server.blamed == {2: Fault.INCONSISTENT_DEALING, 7: Fault.WRONG_SHARE}


def test_wrong_shares_of_a_mask_root_are_named(make_rig):
    rig = make_rig(7).until("upload")
    rig.upload([1, 2, 3, 4, 5, 6])
    rig.sign()
    _unmask(rig, lambda i, message: UnmaskShares(i, message.self_shares, {7: bytes(33)}) if i == 3 else message)
    assert rig.server.blamed == {3: Fault.WRONG_SHARE}
    rig.assert_sum([1, 2, 3, 4, 5, 6])


def test_too_few_good_shares_fail_the_round_and_name_the_secret(make_rig):
    rig = make_rig(5).until("unmask")
    with raises(UnmaskFailed, check="self-secret-lost", numbers=(2, 3, 4)):
        _unmask(rig, lambda i, message: _with_wrong_self_share(message, 2, place=-i) if i in {1, 5} else message)
    assert rig.server.stage is ServerStage.FAILED
    assert rig.server.blamed == dict.fromkeys({1, 5}, Fault.WRONG_SHARE)


def test_masking_refuses_the_wrong_vector_and_still_works_after(make_rig):
    rig = make_rig(3, words=10).until("upload")
    session = rig.clients[1]
    readonly = np.zeros(10, dtype=np.uint64)
    readonly.flags.writeable = False
    for bad in (
        [0] * 10,
        np.zeros(0, dtype=np.uint64),
        np.zeros(9, dtype=np.uint64),
        np.zeros(11, dtype=np.uint64),
        np.zeros(10, dtype=np.int64),
        np.zeros((5, 2), dtype=np.uint64),
        np.zeros(20, dtype=np.uint64)[::2],
        readonly,
    ):
        with pytest.raises(UsageError):
            session.mask(bad)
    rig.go_on("upload")


def test_forty_clients_with_dropouts(make_rig):
    rig = make_rig(40, threshold=27)
    rig.advertise()
    rig.share(set(rig.ids) - {40})
    rig.deliver()
    rig.upload(set(rig.ids) - {40, 1, 20})
    rig.sign(set(rig.ids) - {40, 1, 20, 5})
    rig.unmask()
    rig.assert_sum(set(rig.ids) - {40, 1, 20})


@pytest.mark.parametrize("agreement", Agreement)
@pytest.mark.parametrize("lost", [(1,), (3,), (2, 6), (1, 7)])
def test_a_client_lost_after_sharing_chose_for_some_and_received_from_others(make_rig, agreement, lost):
    """Both ways to a pair secret of a client that is gone: from its rebuilt root, and opened with it."""
    rig = make_rig(7, agreement=agreement).until("upload")
    graph, left = rig.graph(), set(rig.ids) - set(lost)
    rig.lose("upload", lost)
    chose = {(i, v) for i in lost for v in left if graph.chooses(i, v)}
    received = {(i, v) for i in lost for v in left if graph.chooses(v, i)}
    assert chose
    assert received
    assert len(rig.server.mask_terms()) == len(left) + len(chose) + len(received)


def test_masks_between_two_lost_clients_are_in_nobodys_vector(make_rig):
    """Neither chose nor received for a survivor: the secret of the two is never needed, nor rebuilt."""
    rig = make_rig(6, threshold=4).until("upload")
    rig.lose("upload", [2, 5])
    assert len(rig.server.mask_terms()) == 4 + 2 * 4
