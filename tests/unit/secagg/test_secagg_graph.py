"""The graph of neighbours: a ring whose order nobody chooses, in which every pair agrees on who does what."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcore.errors import UsageError
from fedcore.secagg.graph import Graph

SEED = hashlib.sha256(b"seed").digest()


@st.composite
def graphs(draw):
    """(members, graph): full ones and rings, ids up to the largest."""
    members = tuple(sorted(draw(st.sets(st.integers(1, 2**63 - 1), min_size=1, max_size=24))))
    degree = draw(st.one_of(st.just(len(members) - 1), st.integers(1, 12).map(lambda half: 2 * half)))
    return members, Graph(members, degree=degree, seed=draw(st.binary(min_size=32, max_size=32)))


@given(graphs())
def test_neighbours_are_mutual_and_chosen_by_exactly_one_side(made):
    members, graph = made
    for member in members:
        neighbours = graph.neighbours(member)
        assert list(neighbours) == sorted(set(neighbours))
        assert member not in neighbours
        for peer in neighbours:
            assert member in graph.neighbours(peer)
            assert graph.chooses(member, peer) is not graph.chooses(peer, member)


@given(graphs())
def test_points_number_the_holders_of_each_owner(made):
    """One to `holders`, each once: what Shamir's scheme at the points 1 to m needs."""
    members, graph = made
    for owner in members:
        points = [graph.point(owner, holder) for holder in (owner, *graph.neighbours(owner))]
        assert sorted(points) == list(range(1, graph.holders + 1))


@pytest.mark.parametrize(("size", "degree"), [(5, 2), (6, 4), (13, 6), (14, 6), (100, 34)])
def test_a_ring_is_regular_and_everybody_chooses_for_half(size, degree):
    members = tuple(range(10, 10 + size))
    graph = Graph(members, degree=degree, seed=SEED)
    assert not graph.full
    assert graph.holders == degree + 1
    for member in members:
        neighbours = graph.neighbours(member)
        assert len(neighbours) == degree
        assert sum(graph.chooses(member, peer) for peer in neighbours) == degree // 2


def test_the_ring_is_that_of_the_order():
    """A Harary graph: there is an order in which the neighbours are the three before and the three after."""
    members = tuple(range(1, 14))
    graph = Graph(members, degree=6, seed=SEED)
    here, order = members[0], [members[0]]
    while len(order) < len(members):
        # The next is whom this one chooses for at distance one: of the three ahead it shares the most neighbours.
        ahead = [peer for peer in graph.neighbours(here) if graph.chooses(here, peer)]
        here = max(ahead, key=lambda peer, here=here: len({*graph.neighbours(peer)} & {*graph.neighbours(here)}))
        order.append(here)
    assert sorted(order) == list(members)
    for place, member in enumerate(order):
        expected = {order[(place + step) % 13] for step in (-3, -2, -1, 1, 2, 3)}
        assert set(graph.neighbours(member)) == expected
        assert [graph.point(member, order[(place + step) % 13]) for step in range(-3, 4)] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("size", "degree"), [(5, 4), (5, 5), (5, 6), (2, 1), (1, 0), (4, 100)])
def test_enough_neighbours_make_the_full_graph(size, degree):
    """Also where fewer advertised than were asked, whatever the degree."""
    members = tuple(range(1, size + 1))
    graph = Graph(members, degree=degree, seed=SEED)
    assert graph.full
    assert graph.holders == size
    for member in members:
        assert set(graph.neighbours(member)) == set(members) - {member}
        # One point for each holder, whoever the owner is.
        assert len({graph.point(owner, member) for owner in members}) == 1


@pytest.mark.parametrize("degree", [0, 1, 3, 5])
def test_an_odd_degree_or_none_is_refused(degree):
    with pytest.raises(UsageError, match="even"):
        Graph(tuple(range(1, 9)), degree=degree, seed=SEED)


def test_the_order_depends_on_the_seed_and_is_spread_evenly():
    """Each of the six orders of a ring of four, up to where it begins, comes up about as often; 600 draws."""
    seen: Counter[frozenset[frozenset[int]]] = Counter()
    for number in range(600):
        graph = Graph((1, 2, 3, 4), degree=2, seed=hashlib.sha256(b"%d" % number).digest())
        edges = frozenset(frozenset((i, v)) for i in (1, 2, 3, 4) for v in graph.neighbours(i))
        seen[edges] += 1
    assert len(seen) == 3  # a ring and its mirror image are one graph
    assert all(140 < count < 260 for count in seen.values())


def test_two_large_orders_have_little_in_common():
    members = tuple(range(1, 1001))
    one, two = (Graph(members, degree=20, seed=hashlib.sha256(seed).digest()) for seed in (b"a", b"b"))
    common = sum(len(set(one.neighbours(i)) & set(two.neighbours(i))) for i in members)
    assert common < 2 * 1000 * 20 * 20 / 999  # twice what chance gives


def test_the_order_depends_on_every_advertised_key(make_rig):
    """Whoever sends the last key does not know the order before, and no key can be changed after."""
    rig = make_rig.ring().until("share")
    honest = rig.advertisements()
    seen = {rig.graph().neighbours(1)}
    for client_id, part in itertools.product(rig.ids, ("c", "s")):
        keys = {"c": honest[client_id].c_public, "s": honest[client_id].s_public} | {part: rig.keys("other")}
        changed = rig.view(honest | {client_id: rig.signed(client_id, keys["c"], keys["s"])})
        assert changed.transcript.cohort != rig.view(honest).transcript.cohort
        seen.add(changed.graph.neighbours(1))
    assert len(seen) > 20  # of 27 rings


def test_the_order_depends_on_the_round(make_rig):
    """The same keys in another context stand in another order."""
    one, two = make_rig.ring().until("share"), make_rig.ring(round=2)
    assert one.graph().neighbours(1) != two.view(one.advertisements()).graph.neighbours(1)
