"""Whole rounds: the sum is exact whoever drops out, and wherever, as long as t clients are left."""

from __future__ import annotations

import numpy as np
import pytest

from fedcore.errors import CohortTooSmall, UnmaskFailed, UsageError
from fedcore.secagg import Agreement, ServerStage, UnmaskShares


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13])
def test_sum_is_exact_with_everyone(make_rig, n):
    rig = make_rig(n).until("end")
    rig.assert_sum(rig.ids)
    assert rig.server.stage is ServerStage.DONE
    assert rig.server.bad_share_senders == {}


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


def _round_with_liars(rig, liars, owner):
    for i in rig.ids:
        message = rig.clients[i].unmask(rig.server.signatures())
        rig.server.receive_unmask(_with_wrong_self_share(message, owner) if i in liars else message)
    rig.server.close_stage()
    rig.assert_sum(rig.ids)
    assert all(f"client {owner}" in reason for reason in rig.server.bad_share_senders.values())
    return set(rig.server.bad_share_senders)


@pytest.mark.parametrize("liars", [{1}, {4}, {10}, {2, 7}, {9, 10}])
def test_wrong_shares_are_named_and_the_round_goes_on(make_rig, liars):
    assert _round_with_liars(make_rig(10, threshold=6).until("unmask"), liars, owner=4) == liars


@pytest.mark.parametrize("liars", [{2, 7}, {1, 2, 3}, {8, 9, 10}])
def test_beyond_the_decoding_radius_no_honest_client_is_named(make_rig, liars):
    # The errors are all 1 or -1, so some subsets of shares hit the right secret on a wrong polynomial.
    assert _round_with_liars(make_rig(10, threshold=7).until("unmask"), liars, owner=4) <= liars


def test_wrong_shares_of_a_mask_root_are_named(make_rig):
    rig = make_rig(7).until("upload")
    rig.upload([1, 2, 3, 4, 5, 6])
    rig.sign()
    for i in sorted(rig.server.expected):
        message = rig.clients[i].unmask(rig.server.signatures())
        if i == 3:
            message = UnmaskShares(i, message.self_shares, {7: bytes(33)})
        rig.server.receive_unmask(message)
    rig.server.close_stage()
    assert set(rig.server.bad_share_senders) == {3}
    assert "mask root of client 7" in rig.server.bad_share_senders[3]
    rig.assert_sum([1, 2, 3, 4, 5, 6])


def test_too_few_good_shares_fail_the_round_and_name_the_secret(make_rig):
    rig = make_rig(5).until("unmask")
    for i in rig.ids:
        message = rig.clients[i].unmask(rig.server.signatures())
        # Errors of other sizes: equal ones at points this small could cancel and leave the right secret.
        rig.server.receive_unmask(_with_wrong_self_share(message, 2, place=-i) if i in {1, 5} else message)
    with pytest.raises(UnmaskFailed, match="self secret of client 2"):
        rig.server.close_stage()
    assert rig.server.stage is ServerStage.FAILED


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


def _unmask_with_lies(rig, lies):
    """`lies` maps an owner to those who alter their share of its self secret, each in another place."""
    for i in rig.ids:
        message = rig.clients[i].unmask(rig.server.signatures())
        for owner, liars in lies.items():
            message = _with_wrong_self_share(message, owner, place=-(i % 32) - 1) if i in liars else message
        rig.server.receive_unmask(message)
    rig.server.close_stage()
    rig.assert_sum(rig.ids)
    return set(rig.server.bad_share_senders)


def test_whoever_was_found_out_once_is_left_aside(make_rig):
    """With a threshold of 32, six wrong shares of forty are too many; two of the 36 that are left are not."""
    rig = make_rig(40, threshold=32).until("unmask")
    assert _unmask_with_lies(rig, {1: {5, 6, 7, 8}, 2: {5, 6, 7, 8, 9, 10}}) == {5, 6, 7, 8, 9, 10}


def test_shares_of_a_suspect_still_count_where_they_are_needed(make_rig):
    """It may be the dealer who dealt client 3 a wrong share; of client 2's secret, only 1, 2 and 3 hold right ones."""
    rig = make_rig(5, threshold=3).until("unmask")
    assert 3 in _unmask_with_lies(rig, {1: {3}, 2: {4, 5}})
