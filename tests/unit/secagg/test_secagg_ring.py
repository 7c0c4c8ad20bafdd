"""Whole rounds on a sparse ring: exact sums with as many dropouts as there may be, and a named failure with one more.

Thirteen clients with six neighbours each: seven hold shares of a secret, five rebuild it, so two of any seven in a row
may be lost. The quorum is nine.
"""

from __future__ import annotations

import dataclasses

import pytest

from fedcore.errors import CohortTooSmall, UnmaskFailed
from fedcore.secagg import Agreement, Fault, ServerStage, UnmaskShares
from tests.support.raising import raises


def _ring_order(rig):
    """The clients in the order of the ring: each step goes to the one neighbour with five neighbours in common."""
    graph = rig.graph()
    order = [rig.ids[0]]
    for _ in rig.ids[1:]:
        here = {order[-1], *graph.neighbours(order[-1])}
        ahead = [i for i in graph.neighbours(order[-1]) if graph.chooses(order[-1], i)]
        order.append(max(ahead, key=lambda i: len(here & {i, *graph.neighbours(i)})))
    assert sorted(order) == list(rig.ids)
    return order


def _at(rig, *places):
    order = _ring_order(rig)
    return [order[place] for place in places]


@pytest.mark.parametrize("agreement", Agreement)
@pytest.mark.parametrize("size", [13, 14, 21])
def test_the_sum_is_exact_with_everyone(make_rig, agreement, size):
    quorum = size // 2 + 3
    rig = make_rig.ring(size, quorum=quorum, agreement=agreement).until("end")
    rig.assert_sum(rig.ids)
    assert rig.server.stage is ServerStage.DONE
    assert len(rig.server.mask_terms()) == size
    assert rig.server.blamed == {}


@pytest.mark.parametrize("places", [(0,), (0, 1), (0, 6), (0, 1, 7), (0, 4, 9)], ids=str)
@pytest.mark.parametrize("step", ["advertise", "share", "upload", "sign", "unmask"])
def test_dropouts_up_to_the_limit(make_rig, step, places):
    """No seven in a row miss more than two."""
    rig = make_rig.ring().until("share")
    lost = _at(rig, *places)
    rig = make_rig.ring().until(step)
    rig.lose(step, lost)
    stays = step in {"sign", "unmask"}
    assert set(rig.server.survivors().survivors) == set(rig.ids) - (set() if stays else set(lost))


@pytest.mark.parametrize("step", ["upload", "sign", "unmask"])
def test_one_dropout_beyond_the_limit_is_named(make_rig, step):
    """Three in a row: whoever is next to all three has four holders left where five are needed."""
    rig = make_rig.ring().until("share")
    lost = _ring_order(rig)[3:6]
    near = "|".join(str(i) for i in rig.ids if set(lost) <= {i, *rig.graph().neighbours(i)})
    rig = make_rig.ring().until(step)
    with raises(UnmaskFailed, check="self-secret-lost", match=rf"\b({near})\b", numbers=(4, 5)):
        rig.lose(step, lost)
    assert rig.server.stage is ServerStage.FAILED


def test_a_client_with_too_few_holders_among_the_sharers_goes_no_further(make_rig):
    """Three in a row never shared: whoever is next to all three sees that its secrets cannot be rebuilt."""
    rig = make_rig.ring().until("share")
    lost = _ring_order(rig)[3:6]
    near = [i for i in rig.ids if i not in lost and set(lost) <= set(rig.graph().neighbours(i))]
    rig.share(set(rig.ids) - set(lost))
    assert near
    for i in near:
        session = rig.clients[i]
        rig.refused(
            "holders-below-threshold",
            session,
            lambda session=session, i=i: session.receive_shares(rig.server.delivery(i)),
        )
    rig.deliver(set(rig.server.expected) - set(near))


def test_a_mask_root_that_is_lost_is_named(make_rig):
    """The survivors' own secrets can be rebuilt, that of the client that dropped out cannot."""
    rig = make_rig.ring().until("upload")
    order = _ring_order(rig)
    gone, others = order[0], {order[3], order[-3]}
    rig.upload(set(rig.ids) - {gone})
    rig.sign()
    with raises(UnmaskFailed, check="mask-root-lost", numbers=(gone, 4, 5)):
        rig.unmask(set(rig.server.expected) - others)


def test_clients_are_lost_at_every_step(make_rig):
    rig = make_rig.ring(21, quorum=14).until("share")
    first, second, third, fourth = _at(rig, 0, 5, 10, 15)
    rig = make_rig.ring(21, quorum=14)
    rig.advertise()
    rig.share(set(rig.ids) - {first})
    rig.deliver()
    rig.upload(set(rig.ids) - {first, second})
    rig.sign(set(rig.ids) - {first, second, third})
    rig.unmask(set(rig.ids) - {first, second, third, fourth})
    rig.assert_sum(set(rig.ids) - {first, second})


@pytest.mark.parametrize("agreement", Agreement)
@pytest.mark.parametrize("role", ["chooser", "receiver", "both", "a pair"])
def test_a_lost_client_that_chose_or_received_a_secret(make_rig, agreement, role):
    """Of survivors' masks with it: those that it chose follow from its root, the others open with it."""
    rig = make_rig.ring(agreement=agreement).until("upload")
    graph, order = rig.graph(), _ring_order(rig)
    lost = {"chooser": [order[0], order[3]], "receiver": [order[0], order[10]], "both": [order[0]]}.get(role, order[:2])
    rig.lose("upload", lost)
    left = set(rig.ids) - set(lost)
    chose = [(i, v) for i in lost for v in graph.neighbours(i) if v in left and graph.chooses(i, v)]
    received = [(i, v) for i in lost for v in graph.neighbours(i) if v in left and graph.chooses(v, i)]
    assert chose
    assert received
    assert len(rig.server.mask_terms()) == len(left) + len(chose) + len(received)


def test_on_a_ring_that_closed_smaller_than_the_cohort(make_rig):
    """Four never advertise: the ring is that of the nine, and every one of them is needed to the end."""
    rig = make_rig.ring()
    rig.advertise(rig.ids[:9])
    rig.go_on("share")
    assert rig.server.survivors().survivors == rig.ids[:9]


# The quorum is of the cohort, the threshold of the holders of one secret


@pytest.mark.parametrize("step", ["advertise", "share", "upload", "sign"])
def test_one_below_the_quorum_fails_the_round_at_every_stage(make_rig, step):
    rig = make_rig.ring().until(step)
    assert (rig.parameters.quorum, rig.parameters.threshold) == (9, 5)
    with pytest.raises(CohortTooSmall) as caught:
        getattr(rig, step)(rig.ids[:8])
    assert (caught.value.present, caught.value.needed) == (8, 9)
    assert rig.server.stage is ServerStage.FAILED


def test_the_last_stage_needs_holders_and_no_quorum(make_rig):
    """Five answers are the least that can rebuild anything; whether they do depends on whose they are."""
    rig = make_rig.ring().until("unmask")
    with pytest.raises(CohortTooSmall) as caught:
        rig.unmask(rig.ids[:4])
    assert (caught.value.present, caught.value.needed) == (4, 5)
    rig = make_rig.ring().until("unmask")
    with raises(UnmaskFailed, check="self-secret-lost"):
        rig.unmask(rig.ids[:8])
    rig = make_rig.ring(quorum=13).until("unmask")
    rig.unmask(set(rig.ids) - set(_at(rig, 0, 1, 7)))
    rig.assert_sum(rig.ids)


# Wrong shares


def _with_wrong_shares(message: UnmaskShares) -> UnmaskShares:
    """Every share of the message altered, each by another number."""
    altered = {
        field: {i: bytes(32) + bytes([i]) for i in getattr(message, field)} for field in ("self_shares", "key_shares")
    }
    return dataclasses.replace(message, **altered)


@pytest.mark.parametrize("place", [0, 3, 12])
def test_a_holder_of_wrong_shares_is_named_and_the_sum_is_exact(make_rig, place):
    rig = make_rig.ring().until("unmask")
    (liar,) = _at(rig, place)
    for i in rig.ids:
        message = rig.clients[i].unmask(rig.server.signatures())
        rig.server.receive_unmask(_with_wrong_shares(message) if i == liar else message)
    rig.server.close_stage()
    rig.assert_sum(rig.ids)
    assert rig.server.blamed == {liar: Fault.WRONG_SHARE}


def test_a_wrong_share_of_a_mask_root_is_named(make_rig):
    rig = make_rig.ring().until("upload")
    gone, liar = _at(rig, 0, 2)
    rig.upload(set(rig.ids) - {gone})
    rig.sign()
    for i in sorted(rig.server.expected):
        message = rig.clients[i].unmask(rig.server.signatures())
        if i == liar:
            message = dataclasses.replace(message, key_shares={gone: bytes(33)})
        rig.server.receive_unmask(message)
    rig.server.close_stage()
    assert rig.server.blamed == {liar: Fault.WRONG_SHARE}
    rig.assert_sum(set(rig.ids) - {gone})


def test_wrong_shares_are_named_where_dropouts_cost_the_sum(make_rig):
    """Two holders gone and one wrong share: five are left of which four are good, so the secret is lost."""
    rig = make_rig.ring().until("unmask")
    gone_1, gone_2, liar = _at(rig, 0, 1, 3)
    for i in sorted(set(rig.ids) - {gone_1, gone_2}):
        message = rig.clients[i].unmask(rig.server.signatures())
        rig.server.receive_unmask(_with_wrong_shares(message) if i == liar else message)
    with raises(UnmaskFailed, check="self-secret-lost", numbers=(4, 5)):
        rig.server.close_stage()
    assert rig.server.blamed == {liar: Fault.WRONG_SHARE}


@pytest.mark.parametrize("agreement", Agreement)
def test_a_survivor_that_sealed_no_secret_for_a_lost_client_is_named(make_rig, agreement):
    """The only one who could have told was the client that is gone; the server finds out when it opens it."""
    rig = make_rig.ring(agreement=agreement).until("share")
    gone = rig.ids[0]
    cheat = next(i for i in rig.graph().neighbours(gone) if rig.graph().chooses(i, gone))
    message = rig.clients[cheat].share_keys(rig.server.advertised(cheat))
    garbage = {**message.pair_secrets, gone: bytes(len(message.pair_secrets[gone]))}
    rig.server.receive_shares(dataclasses.replace(message, pair_secrets=garbage))
    rig.share(set(rig.ids) - {cheat})
    rig.deliver(set(rig.ids) - {gone})
    rig.upload(set(rig.ids) - {gone})
    rig.sign()
    with raises(UnmaskFailed, check="sealed-garbage", numbers=(cheat, gone)):
        rig.unmask()
    assert rig.server.stage is ServerStage.FAILED
    assert rig.server.blamed == {cheat: Fault.SEALED_GARBAGE}


def test_a_hundred_clients_with_dropouts(make_rig):
    """As the sizing has it: 35 hold shares of a secret, 24 rebuild it, five clients may collude."""
    rig = make_rig(100, quorum=67, degree=34, threshold=24, corrupt=5)
    rig.advertise(set(rig.ids) - {100})
    rig.share(set(rig.ids) - {100, 99, 5})
    rig.deliver()
    rig.upload(set(rig.ids) - {100, 99, 5, 1, 20, 43, 76})
    rig.sign(set(rig.ids) - {100, 99, 5, 1, 20, 43, 76, 8})
    rig.unmask(set(rig.ids) - {100, 99, 5, 1, 20, 43, 76, 8, 77})
    rig.assert_sum(set(rig.ids) - {100, 99, 5, 1, 20, 43, 76})
