"""The sizes of graphs: the published figures, the tails behind them, and the lemma that makes a ring safe.

The lemma is for a server that sees the ring before it names who dropped out. Let h be half of the degree, and let no
two windows of h places, without one in common, hold more than c corrupt clients each. Where every member of a group of
honest survivors has t = h + c + 2 or more holders of its shares left (survivors, corrupt clients, itself), the group is
all of the honest survivors. For otherwise it ends somewhere, ahead and behind: h places follow in which no survivor is
honest. At each end stands a member whose t - 1 other holders are h at most on the one side, so c + 1 are corrupt on the
other; and the places before the two ends are not the same ones, since the other group stands between. No smaller
group's masks cancel, and so no smaller group's sum comes out.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.later import Later

from fedcore.errors import ConfigurationError
from fedcore.secagg import Adversary, GraphSize, cohort_graph, corrupt_clients, default_quorum, graph_size, sizing
from fedcore.secagg.sizing import FULL_GRAPH_BELOW, SECURITY_BITS, withstands
from tests.support.raising import raises

stats = Later("scipy.stats")

# The published figures


@pytest.mark.parametrize(
    ("adversary", "n", "degree", "threshold"),
    [
        (Adversary.SEMI_HONEST, 100, 12, 6),
        (Adversary.SEMI_HONEST, 1_000, 30, 17),
        (Adversary.SEMI_HONEST, 10_000, 34, 20),
        (Adversary.SEMI_HONEST, 100_000, 36, 21),
        (Adversary.MALICIOUS, 100, 16, 11),
        (Adversary.MALICIOUS, 1_000, 52, 37),
        (Adversary.MALICIOUS, 10_000, 62, 44),
        (Adversary.MALICIOUS, 100_000, 68, 48),
    ],
)
def test_every_cell_of_the_published_table(adversary, n, degree, threshold):
    """5 % corrupt, 5 % dropouts, 40 bits of security (federated-compute, graph_parameter_finder)."""
    found = graph_size(n, corrupt=0.05, dropout=0.05, adversary=adversary)
    assert found == GraphSize(degree=degree, threshold=threshold)


def test_each_of_the_two_failures_gets_half_of_the_probability():
    """Few corrupt clients and many dropouts: here it is the gaps that decide."""
    found = graph_size(500, corrupt=0.01, dropout=0.2, adversary=Adversary.SEMI_HONEST)
    assert found == GraphSize(degree=26, threshold=6)
    assert sizing._splits(500, 5 + 100, 26) < 2**-41 <= sizing._splits(500, 5 + 100, 24) < 2**-40
    assert 500 * stats.hypergeom.sf(found.threshold - 1, 500, 5, 26) <= 2**-41


def _degrees(name, values, **fixed):
    found = [graph_size(**(fixed | {name: value})).degree for value in values]
    assert all(degree % 2 == 0 for degree in found)
    return found


@pytest.mark.parametrize("adversary", Adversary)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n", [100, 300, 1_000, 3_000, 10_000, 100_000]),
        ("corrupt", [0.0, 0.01, 0.03, 0.05, 0.1]),
        ("dropout", [0.0, 0.01, 0.03, 0.05, 0.1]),
        ("security_bits", [20, 40, 60, 80]),
        ("correctness_bits", [10, 20, 40]),
    ],
)
def test_harder_conditions_never_need_fewer_neighbours(adversary, name, values):
    base = {"n": 1_000, "corrupt": 0.05, "dropout": 0.05, "adversary": adversary}
    found = _degrees(name, values, **base)
    assert found == sorted(found)
    assert found[-1] > found[0]


@pytest.mark.parametrize("n", [100, 1_000, 10_000])
def test_a_stronger_adversary_needs_more_neighbours(n):
    sizes = [graph_size(n, corrupt=0.05, dropout=0.05, adversary=adversary) for adversary in Adversary]
    assert [size.degree for size in sizes] == sorted(size.degree for size in sizes)
    assert len(set(sizes)) == len(sizes)


@pytest.mark.parametrize("adversary", Adversary)
def test_no_threshold_is_one(adversary):
    """Where nobody is corrupt a single share would do against the published adversaries, and would be the secret."""
    assert graph_size(100, corrupt=0.0, dropout=0.05, adversary=adversary).threshold >= 2


@pytest.mark.parametrize(
    ("n", "corrupt", "dropout"), [(2, 0.0, 0.0), (100, 1.0, 0.0), (100, -0.1, 0.0), (100, 0.0, 1.0), (100, 0.0, -0.1)]
)
def test_what_is_no_question(n, corrupt, dropout):
    with raises(ConfigurationError, check="graph-size"):
        graph_size(n, corrupt=corrupt, dropout=dropout, adversary=Adversary.MALICIOUS)


@pytest.mark.parametrize("adversary", Adversary)
def test_where_only_a_full_graph_will_do(adversary):
    with raises(ConfigurationError, check="full-graph"):
        graph_size(10, corrupt=0.4, dropout=0.5, adversary=adversary)
    with raises(ConfigurationError, check="full-graph"):
        graph_size(3, corrupt=0.0, dropout=0.0, adversary=adversary)


@pytest.mark.parametrize(("n", "quorum"), [(2, 2), (3, 3), (4, 3), (5, 4), (8, 6), (10, 7), (100, 67)])
def test_default_quorum(n, quorum):
    assert default_quorum(n) == quorum
    assert 2 * quorum > n


@pytest.mark.parametrize(
    ("n", "fraction", "count"), [(100, 0.05, 5), (1000, 0.3, 300), (10, 0.29, 2), (7, 0.0, 0), (100, 0.29, 29)]
)
def test_corrupt_clients_are_rounded_down_but_not_by_floating_point(n, fraction, count):
    """0.29 * 100 is 28.999999999999996."""
    assert corrupt_clients(n, fraction) == count


# The graph of a round


@pytest.mark.parametrize("n", [2, 3, 10, FULL_GRAPH_BELOW - 1])
def test_small_cohorts_are_fully_connected(n):
    found = cohort_graph(n, quorum=default_quorum(n), corrupt=0, dropout=0.05)
    assert found == GraphSize(degree=n - 1, threshold=default_quorum(n))


@pytest.mark.parametrize("n", [65, 100, 250, 1_000, 10_000])
def test_large_cohorts_get_a_ring_that_parameters_accept(make_rig, n):
    quorum, corrupt = default_quorum(n), n // 20
    found = cohort_graph(n, quorum=quorum, corrupt=corrupt, dropout=0.05)
    assert found.degree < n - 1
    parameters = dataclasses.replace(
        make_rig(2).parameters,
        cohort=tuple(range(1, n + 1)),
        quorum=quorum,
        corrupt=corrupt,
        degree=found.degree,
        threshold=found.threshold,
    )
    assert not parameters.full_graph
    with raises(ConfigurationError, check="split"):
        dataclasses.replace(parameters, threshold=found.threshold - 1)


def test_a_ring_that_cannot_be_is_a_full_graph():
    assert cohort_graph(70, quorum=47, corrupt=23, dropout=0.3) == GraphSize(degree=69, threshold=47)


@pytest.mark.parametrize(("n", "dropout"), [(100, 0.05), (1_000, 0.05), (1_000, 0.1)])
def test_an_honest_round_with_the_expected_dropouts_goes_through(n, dropout):
    """P[some client keeps fewer than `threshold` holders], by a union bound, is below 2^-20."""
    found = cohort_graph(n, quorum=default_quorum(n), corrupt=n // 20, dropout=dropout)
    survivors = math.ceil(n * (1 - dropout) - 1e-9)
    too_few = stats.hypergeom.cdf(found.threshold - 1, n, survivors, found.degree)
    assert n * too_few <= 2**-20


# Hypergeometric tails


def _exact(n, marked, drawn):
    """P[x marked] for x = 0 .. drawn, as fractions."""
    return [
        Fraction(math.comb(marked, x) * math.comb(n - marked, drawn - x), math.comb(n, drawn)) for x in range(drawn + 1)
    ]


@pytest.mark.parametrize(
    ("n", "marked", "drawn"), [(10, 3, 4), (67, 5, 17), (100, 95, 12), (1000, 50, 34), (5000, 250, 60)]
)
def test_masses_are_those_of_scipy_and_of_fractions(n, marked, drawn):
    masses = sizing._masses(n, marked, drawn)
    assert masses == pytest.approx(stats.hypergeom.pmf(range(drawn + 1), n, marked, drawn), rel=1e-8, abs=1e-300)
    assert masses == pytest.approx([float(mass) for mass in _exact(n, marked, drawn)], rel=1e-9)


@given(st.data())
def test_quantiles_are_exact(data):
    n = data.draw(st.integers(3, 200))
    marked, drawn = data.draw(st.integers(0, n)), data.draw(st.integers(1, min(n, 60)))
    bound = 2.0 ** -data.draw(st.integers(1, 140))
    masses = _exact(n, marked, drawn)
    found = sizing._upper_quantile(n, marked, drawn, bound)
    above = [sum(masses[x + 1 :]) for x in range(-1, drawn + 1)]  # P[X > x] from x = -1 up
    edge = Fraction(bound)
    # On the edge itself floating point may fall to either side.
    assume(all(abs(tail - edge) > edge / 2**20 for tail in above))
    assert found == next(x for x, tail in enumerate(above, start=-1) if tail <= edge)


@pytest.mark.parametrize(
    ("n", "dropout", "degree"), [(100, 0.05, 12), (100, 0.3, 34), (1000, 0.05, 60), (200, 0.0, 10)]
)
@pytest.mark.parametrize("bits", [10, 20, 40])
def test_least_survivors_are_exact(n, dropout, degree, bits):
    survivors = math.ceil(n * (1 - dropout) - 1e-9)
    masses = _exact(n, survivors, degree)
    below = [sum(masses[: x + 1]) for x in range(degree + 1)]
    expected = next(x for x, tail in enumerate(below) if tail >= Fraction(1, 2**bits * n))
    assert sizing._least_survivors(n, dropout, degree, bits) == expected


@pytest.mark.parametrize(("n", "removed", "degree"), [(100, 10, 4), (1000, 100, 12), (50, 20, 10)])
def test_the_chance_of_two_gaps_is_a_union_bound(n, removed, degree):
    """All pairs of two gaps that do not touch, times the chance that `degree` given places are all removed."""
    pairs = Fraction(n * (n - degree - 1), 2)
    all_removed = Fraction(math.comb(n - degree, removed - degree), math.comb(n, removed))
    assert sizing._splits(n, removed, degree) == pytest.approx(float(pairs * all_removed), rel=1e-9)
    assert sizing._splits(n, degree - 1, degree) == 0


@pytest.mark.parametrize(("n", "corrupt", "window"), [(9, 3, 2), (20, 8, 3), (67, 5, 17), (200, 30, 8), (50, 3, 9)])
def test_the_chance_of_two_windows_is_exact(n, corrupt, window):
    """P[the one with fewer corrupt clients holds just so many], whichever of the two it is."""
    masses = [Fraction(0)] * (window + 1)
    for one, two in itertools.product(range(window + 1), repeat=2):
        if one + two <= corrupt:
            ways = math.comb(window, one) * math.comb(window, two) * math.comb(n - 2 * window, corrupt - one - two)
            masses[min(one, two)] += Fraction(ways, math.comb(n, corrupt))
    assert sum(masses) == 1
    for fewer, mass in enumerate(masses):
        assert sizing._mass_of_both(n, corrupt, window, fewer) == pytest.approx(float(mass), rel=1e-9)


@pytest.mark.parametrize(("n", "corrupt", "dropout"), [(65, 3, 0.05), (100, 5, 0.05), (100, 0, 0.1), (180, 9, 0.05)])
def test_the_degree_of_a_round_is_the_least(n, corrupt, dropout):
    """No smaller even one has a threshold that withstands the server and that an honest round reaches."""
    quorum = default_quorum(n)
    fitting = [
        GraphSize(degree=degree, threshold=threshold)
        for degree in range(2, quorum - 1, 2)
        for threshold in range(1, sizing._least_survivors(n, dropout, degree, sizing.CORRECTNESS_BITS) + 1)
        if withstands(population=quorum, corrupt=corrupt, degree=degree, threshold=threshold)
    ]
    assert cohort_graph(n, quorum=quorum, corrupt=corrupt, dropout=dropout) == fitting[0]


# The boundary of `withstands`


@pytest.mark.parametrize(
    ("population", "corrupt", "degree"),
    [(67, 5, 34), (14, 1, 8), (9, 0, 6), (667, 50, 60), (667, 0, 40), (6667, 500, 80)],
)
def test_withstands_up_to_its_boundary(population, corrupt, degree):
    """The boundary is h + c + 2, with the least c so that two windows hold more each with at most 2^-128."""
    half = degree // 2
    most = sizing._most_in_both(population, corrupt, half, SECURITY_BITS)
    assert _two_hold_more(population, corrupt, half, most) <= Fraction(1, 2**SECURITY_BITS)
    assert not most or _two_hold_more(population, corrupt, half, most - 1) > Fraction(1, 2**SECURITY_BITS)
    sized = {"population": population, "corrupt": corrupt, "degree": degree}
    assert withstands(**sized, threshold=half + most + 2)
    assert not withstands(**sized, threshold=half + most + 1)


def _two_hold_more(n, corrupt, half, least):
    """P[two separate windows of `half` hold more than `least` each], by a union bound over the pairs of windows."""
    ways = sum(
        math.comb(half, one) * math.comb(half, two) * math.comb(n - 2 * half, corrupt - one - two)
        for one in range(least + 1, min(half, corrupt) + 1)
        for two in range(least + 1, min(half, corrupt - one) + 1)
    )
    return Fraction(n * n, 2) * Fraction(ways, math.comb(n, corrupt))


# The lemma


def _exposed(n, half, corrupt, dropped, threshold):
    """Groups of honest survivors, no path between them, of which each member has `threshold` holders left.

    Everything is a set of places 0 .. n - 1 on the ring.
    """
    honest = set(range(n)) - corrupt - dropped
    window = {i: {(i + step) % n for step in range(-half, half + 1)} for i in honest}
    groups, seen = [], set()
    for start in sorted(honest):
        if start in seen:
            continue
        group, edge = {start}, {start}
        while edge:
            edge = set().union(*(window[i] & honest for i in edge)) - group
            group |= edge
        seen |= group
        if all(len(window[i] - dropped) >= threshold for i in group):
            groups.append(group)
    return groups, honest


def _lesser_of_two(n, places, half):
    """The most that each of two windows holds which have no place in common."""
    counts = [sum((i + step) % n in places for step in range(half)) for i in range(n)]
    apart = [(i, k) for i in range(n) for k in range(i + half, n) if k + half <= i + n]
    return max((min(counts[i], counts[k]) for i, k in apart), default=0)


SMALL_RINGS = [
    (9, 1, ()),
    (9, 2, ()),
    (10, 2, (0,)),
    (10, 2, (0, 5)),
    (12, 3, (0, 6)),
    (11, 3, (0, 4)),
    (9, 2, (0, 3, 6)),
]


@pytest.mark.parametrize(("n", "half", "corrupt"), SMALL_RINGS)
def test_no_group_is_split_off_whoever_drops_out(n, half, corrupt):
    """Every set of dropouts of a small ring."""
    corrupt = set(corrupt)
    threshold = half + 2 + _lesser_of_two(n, corrupt, half)
    rest = sorted(set(range(n)) - corrupt)
    whole = 0
    for size in range(len(rest)):
        for dropped in map(set, itertools.combinations(rest, size)):
            groups, honest = _exposed(n, half, corrupt, dropped, threshold)
            assert groups in ([], [honest])
            whole += bool(groups)
    assert whole > 0


@given(st.data())
def test_no_group_is_split_off_on_larger_rings(data):
    """Dropouts in a few runs, as one would choose them, rather than here and there."""
    half = data.draw(st.integers(1, 6))
    n = data.draw(st.integers(2 * half + 3, 40))
    corrupt = data.draw(st.sets(st.integers(0, n - 1), max_size=3))
    runs = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, 2 * half)), max_size=4))
    dropped = {(start + step) % n for start, length in runs for step in range(length)} - corrupt
    dropped -= data.draw(st.sets(st.integers(0, n - 1), max_size=4))
    threshold = half + 2 + _lesser_of_two(n, corrupt, half)
    groups, honest = _exposed(n, half, corrupt, dropped, threshold)
    assert groups in ([], [honest])


def _two_gaps(half, most):
    """A ring with two arcs of half + 1 honest clients, and between them gaps of `half` with `most` corrupt in each."""
    arc, gap = ["honest"] * (half + 1), ["corrupt"] * most + ["dropped"] * (half - most)
    ring = 2 * (arc + gap)
    places = {kind: {i for i, found in enumerate(ring) if found == kind} for kind in ("corrupt", "dropped")}
    return len(ring), places["corrupt"], places["dropped"]


@pytest.mark.parametrize(("half", "most"), [(half, most) for half in range(1, 9) for most in range(half + 1)])
def test_one_share_less_and_two_groups_come_apart(half, most):
    """The bound is tight: two arcs, and in the gaps between them as many corrupt clients as may be."""
    n, corrupt, dropped = _two_gaps(half, most)
    assert _lesser_of_two(n, corrupt, half) == most
    groups, honest = _exposed(n, half, corrupt, dropped, threshold=half + most + 1)
    assert [len(group) for group in groups] == [half + 1, half + 1]
    assert _exposed(n, half, corrupt, dropped, threshold=half + most + 2)[0] in ([], [honest])


@pytest.mark.parametrize("population", [20, 67, 667, 6667])
@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.05, 0.2, 0.3])
def test_any_two_sets_of_holders_that_rebuild_have_an_honest_one_in_common(population, fraction):
    """2t > k + 1 + the corrupt among the neighbours, of whom there are at most so many, except with 2^-128."""
    corrupt = int(population * fraction)
    for degree in range(2, min(population - 2, 200), 6):
        threshold = next(t for t in range(degree + corrupt + 3) if _holds(population, corrupt, degree, t))
        least = 2 * threshold - degree - 1
        tail = float(stats.hypergeom(population, corrupt, degree).sf(least - 1))
        assert tail * population <= 2.0**-SECURITY_BITS * (1 + 1e-6)


def _holds(population, corrupt, degree, threshold):
    return withstands(population=population, corrupt=corrupt, degree=degree, threshold=threshold)
