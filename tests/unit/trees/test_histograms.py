"""Sums of histograms: over any sites they are those of the pooled rows, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.boosting import made_table
from support.raising import raises

from fedcore.errors import ConfigurationError
from fedcore.trees import Cuts, Scale, histogram_sums
from fedcore.trees.cuts import LAST_CUT, NO_BIN
from fedcore.trees.histograms import as_integers, gradients
from fedcore.trees.settings import LOGISTIC, SQUARED_ERROR


@given(
    seed=st.integers(0, 10_000),
    owners=st.lists(st.integers(0, 5), min_size=120, max_size=120),
    objective=st.sampled_from((LOGISTIC, SQUARED_ERROR)),
)
def test_any_split_of_the_rows_sums_to_the_pooled_rows(seed: int, owners: list[int], objective: str) -> None:
    x, y = made_table(seed, objective=objective, rows=120)
    cuts = Cuts.of([[-1.0, 0.0, 2.0, LAST_CUT]] * x.shape[1])
    draw = np.random.default_rng(seed)
    position, nodes = draw.integers(3, 7, 120), np.array([3, 5, 6])
    g, h = gradients(objective, draw.normal(size=120).astype(np.float32), y)
    scale = Scale.of(1000.0, 120.0)
    values = as_integers(g, scale.gradient_bits), as_integers(h, scale.hessian_bits)
    bins = cuts.bins_of(x)
    pooled = histogram_sums(bins, position, nodes, values, cuts.bins)
    parts = [np.array(owners) == site for site in range(6)]
    sites = [
        histogram_sums(bins[part], position[part], nodes, (values[0][part], values[1][part]), cuts.bins)
        for part in parts
    ]
    assert np.array_equal(sum(sites[1:], sites[0]), pooled)
    for slot, node in enumerate(nodes):
        for feature in range(x.shape[1]):
            rows = (position == node) & (bins[:, feature] != NO_BIN)
            own = slice(cuts.starts[feature], cuts.starts[feature + 1])
            assert pooled[slot, :, own].sum(axis=1).tolist() == [int(one[rows].sum()) for one in values]


def test_a_sum_of_all_rows_has_room() -> None:
    for bound in (1.0, 1.5, 569.0, 1e6, 3e9):
        scale = Scale.of(bound, bound)
        assert scale.gradient_bits == scale.hessian_bits
        assert bound * 2.0**scale.gradient_bits <= 2.0**39
    with raises(ConfigurationError, check="gradient-bound"):
        Scale.of(float("inf"), 1.0)


def test_bins_hold_what_xgboosts_hold() -> None:
    cuts = Cuts.of([[1.0, 2.0, 3.0], [5.0]])
    x = np.array([[0.0, 9.0], [1.0, np.nan], [1.5, 5.0], [2.0, -1.0], [7.0, 4.0]], np.float32)
    assert cuts.bins_of(x).tolist() == [[0, 3], [1, NO_BIN], [1, 3], [2, 3], [2, 3]]


@given(st.lists(st.integers(0, 9), min_size=8, max_size=8), st.integers(2, 8))
def test_cuts_lie_at_quantiles(cells: list[int], bins: int) -> None:
    cuts = Cuts.at_quantiles([cells], [list(range(9))], bins).values.tolist()
    assert len(cuts) <= bins
    assert cuts[-1] == LAST_CUT
    upto, total = np.cumsum(cells), sum(cells)
    for number in range(1, bins):
        first = next((edge + 1 for edge in range(8) if upto[edge] >= total * number / bins), None)
        if total and first is not None and upto[first - 1] < total:
            assert float(first) in cuts
    assert all(0 < upto[int(cut) - 1] < total for cut in cuts[:-1])


@pytest.mark.parametrize("features", [[[2.0, 1.0]], [[]], [[1.0, 1.0]], [[float("inf")]]])
def test_cuts_that_do_not_rise_are_refused(features: list[list[float]]) -> None:
    with raises(ConfigurationError, check="cuts"):
        Cuts.of(features)
