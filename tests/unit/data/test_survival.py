"""Survival curves by counts: what several clients answer together is what statsmodels says of all their rows."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from support.later import Later
from support.raising import raises

from fedcore.data.questions import answer_from_plain, answer_to_plain, question_from_plain, question_to_plain
from fedcore.data.reports.survival_report import SurvivalReport
from fedcore.data.statistics import StatisticsQuery
from fedcore.data.survival.curves import Curve, Survival, fit_survival, log_rank
from fedcore.data.survival.question import CountStep
from fedcore.data.survival.resolve import survival_query
from fedcore.data.survival.times import SurvivalTimes, TimeGroups, fine_cells
from fedcore.data.tables import TableColumn, TableSchema
from fedcore.errors import AppError, ConfigurationError, PeerError, RoundFailed

functions = Later("statsmodels.duration.survfunc")

Table = dict[str, np.ndarray]
BOUNDS = {"days": (0.0, 60.0)}
BY = "C(ward, [0, 1, 2])"
SCHEMA = TableSchema(
    target="died",
    task="binary",
    classes=("no", "yes"),
    columns=(
        TableColumn(name="days", kind="number", high=90.0),
        TableColumn(name="sex", kind="category", categories=("F", "M")),
        TableColumn(name="smoker", kind="boolean"),
    ),
)


def sites(rows: int = 900, seed: int = 0) -> list[Table]:
    """Three sites of unequal size whose patients differ: whole days with ties, some censored, some missing."""
    chance = np.random.default_rng(seed)
    return [_site(chance, size, 20 + 10 * at) for at, size in enumerate((rows // 6, rows // 3, rows // 2))]


def _site(chance: np.random.Generator, rows: int, mean: float) -> Table:
    ward = chance.integers(0, 3, rows).astype(float)
    time, censoring = np.ceil(chance.exponential(mean + 5 * ward)), np.ceil(chance.uniform(10, 80, rows))
    days = np.minimum(time, censoring)
    days[::23] = np.nan
    days[1::97] = -1.0
    return {"days": days, "died": (time <= censoring).astype(float), "ward": ward}


def pool(parts: Sequence[Table]) -> Table:
    rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    used = rows["days"] >= 0
    return {name: values[used] for name, values in rows.items()}


def asking(parts: Sequence[Mapping[str, np.ndarray]]) -> Callable[[CountStep], tuple[list[float], int]]:
    return lambda step: (np.sum([step.answer(part) for part in parts], axis=0).tolist(), len(parts))


def estimate(parts: Sequence[Table], by: str = "", **options: Any) -> Survival:
    options = {"bounds": BOUNDS, **options}
    return fit_survival(survival_query("days died", by=by, **options), asking(parts), nodes=len(parts))


def on_grid(rows: Table) -> tuple[np.ndarray, np.ndarray]:
    """Times and events up to the last point of the grid."""
    return np.minimum(rows["days"], 61), rows["died"] * (rows["days"] <= 60)


def exact(parts: Sequence[Table], group: int | None = None) -> Curve:
    """The curve of all points, before any are joined."""
    query = survival_query("days died", by="" if group is None else BY, bounds=BOUNDS, bins=60)
    (step,) = CountStep.all_of(query.times)
    numbers, _ = asking(parts)(step)
    counts = np.asarray(numbers[5:]).reshape(-1, 2, 62)[group or 0]
    return Curve.of("", query.times, counts[0], counts[1], least=1)


@pytest.mark.parametrize("group", [None, 0, 1, 2])
def test_the_curve_of_all_points_is_that_of_all_rows(group: int | None) -> None:
    found, rows = exact(sites(), group), pool(sites())
    days, died = on_grid(rows)
    used = rows["ward"] == group if group is not None else np.ones(len(days), np.bool_)
    model = functions.SurvfuncRight(days[used], died[used])
    at = np.searchsorted(model.surv_times, found.times)
    assert found.survival == pytest.approx(model.surv_prob[at], rel=1e-9)
    assert found.errors == pytest.approx(model.surv_prob_se[at], rel=1e-9)
    assert found.at_risk == pytest.approx(model.n_risk[at])
    middle, low, high = found.median()
    assert middle == model.quantile(0.5)
    assert (low, high) == pytest.approx(model.quantile_ci(0.5, method="cloglog"))


def test_a_published_curve() -> None:
    """6-MP against placebo (Freireich et al., 1963), as textbooks and Stata have it."""
    days = [6, 6, 6, 6, 7, 9, 10, 10, 11, 13, 16, 17, 19, 20, 22, 23, 25, 32, 32, 34, 35]
    died = [1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    other = [1, 1, 2, 2, 3, 4, 4, 5, 5, 8, 8, 8, 8, 11, 11, 12, 12, 15, 17, 22, 23]
    treated, placebo = (
        {"days": np.array(days, float), "died": np.array(died, float)},
        {"days": np.array(other, float), "died": np.ones(21)},
    )
    found = exact([treated])
    assert found.survival == pytest.approx([0.8571, 0.8067, 0.7529, 0.6902, 0.6275, 0.5378, 0.4482], abs=5e-5)
    ends = [(0.6197, 0.9516), (0.5631, 0.9228), (0.5032, 0.8894), (0.4316, 0.8491), (0.3675, 0.8049)]
    ends += [(0.2678, 0.7468), (0.1881, 0.6801)]
    assert found.intervals() == pytest.approx(np.array(ends), abs=5e-5)
    assert found.median()[0] == 23
    both = [{**treated, "ward": np.zeros(21)}, {**placebo, "ward": np.ones(21)}]
    answer = estimate(both, "C(ward, [0, 1])")
    assert answer.chi_squared == pytest.approx(16.793, abs=5e-4)


def test_the_log_rank_test_is_that_of_all_rows() -> None:
    found, rows = estimate(sites(), BY), pool(sites())
    statistic, p = functions.survdiff(*on_grid(rows), rows["ward"])
    assert found.chi_squared == pytest.approx(statistic, rel=1e-9)
    assert found.p_value == pytest.approx(p, rel=1e-9)


def test_no_group_of_times_has_fewer_than_five_events() -> None:
    found = estimate(sites(), BY)
    rows = pool(sites())
    assert [curve.rows for curve in found.curves] == np.bincount(rows["ward"].astype(int)).tolist()
    for curve in found.curves:
        assert_hides_small_numbers(curve)
        assert sum(curve.died) == curve.events <= rows["died"][rows["ward"] == int(curve.label[-1])].sum()


def assert_hides_small_numbers(curve: Curve) -> None:
    assert min(curve.died) >= 5
    left = [*curve.at_risk, 0.0]
    censored = [curve.rows - left[0]]
    censored += [before - died - after for before, died, after in zip(left, curve.died, left[1:], strict=False)]
    assert all(number == 0 or number >= 5 for number in censored)


@given(
    events=st.lists(st.integers(0, 9), min_size=1, max_size=30),
    censored=st.lists(st.integers(0, 9), min_size=1, max_size=30),
)
def test_groups_of_times_hide_small_numbers_and_lose_no_row(events: list[int], censored: list[int]) -> None:
    size = max(len(events), len(censored))
    counts = np.zeros((2, size + 1))
    counts[0, : len(events)], counts[1, : len(censored)] = events, censored
    times = SurvivalTimes(time="t", event="e", time_name="t", event_name="e", high=size - 1 or 1, cells=size - 1 or 1)
    if counts.shape[1] != times.cells + 2:
        return
    curve = Curve.of("", times, counts[0], counts[1])
    total = counts.sum()
    if curve.few:
        assert total < 5 or sum(events)
        assert curve.rows == (total if total >= 5 else 0)
    elif curve.times:
        assert (curve.rows, sum(curve.died)) == (total, curve.events)
        assert_hides_small_numbers(curve)


def test_days_with_enough_events_stay_apart() -> None:
    days = np.repeat([3.0, 5.0, 9.0, 12.0], [10, 6, 8, 9])
    died = np.ones(33)
    died[10:16] = 0.0  # six are censored at 5
    found = estimate([{"days": days[at::2], "died": died[at::2]} for at in range(2)]).curves[0]
    model = functions.SurvfuncRight(days, died)
    assert found.times == (3.0, 9.0, 12.0)
    assert found.survival == pytest.approx(model.surv_prob, rel=1e-9)


def test_joined_times_are_those_of_rows_that_are_rounded_up() -> None:
    rows = pool(sites())
    days, died = on_grid(rows)
    cell = days.astype(int)
    events, censored = (np.bincount(cell[died == one], minlength=62).astype(float) for one in (1, 0))
    groups = TimeGroups.of(events, censored)
    until, happened = groups.at_risk(cell, died == 0)
    model = functions.SurvfuncRight(until + ~happened * 0.5, happened)
    curve = estimate(sites(), bins=60).curves[0]
    at = np.searchsorted(model.surv_times, np.arange(1, 1 + len(curve.times)))
    assert curve.survival == pytest.approx(model.surv_prob[at], rel=1e-9)


def test_rows_that_are_left_out_are_counted() -> None:
    parts = sites()
    found = estimate(parts)
    days = np.concatenate([part["days"] for part in parts])
    assert (found.missing, found.negative) == (np.isnan(days).sum(), (days < 0).sum())
    assert (found.clients, found.nodes, found.queries) == (3, 3, 1)


def test_few_rows_that_are_left_out_are_given_as_five() -> None:
    part = {"days": np.full(30, 7.0), "died": np.ones(30)}
    part["days"][:2], part["days"][2] = np.nan, -3.0
    found = estimate([part])
    assert (found.missing, found.negative, found.between) == (5, 5, 0)


def test_times_between_points_count_as_the_next_and_are_counted() -> None:
    found = estimate([{"days": np.array([0.2, 1.0, 1.5, 2.0, 2.0, 70.0] * 5), "died": np.ones(30)}], bins=60)
    assert found.between == 10
    assert found.curves[0].times == (1.0, 2.0)
    assert (found.curves[0].at_risk, found.curves[0].died) == ((30, 20), (10, 15))
    assert found.curves[0].events == 25  # what happens after the grid is not seen


def test_a_group_without_an_event_and_one_that_is_censored_alone() -> None:
    parts = sites()
    for part in parts:
        part["died"][part["ward"] == 1] = 0.0
    found, rows = estimate(parts, BY), pool(parts)
    assert [curve.few for curve in found.curves] == [False] * 3
    assert (found.curves[1].events, found.curves[1].times) == (0, ())
    assert found.curves[1].median() == (math.inf,) * 3
    assert found.chi_squared == pytest.approx(functions.survdiff(*on_grid(rows), rows["ward"])[0], rel=1e-9)
    for part in parts:
        part["died"][:] = 0.0
    assert estimate(parts, BY).chi_squared is None


def test_a_group_without_a_row_ends_no_test() -> None:
    parts = sites()
    found, more = estimate(parts, BY), estimate(parts, BY.replace("]", ", 9]"))
    assert (more.curves[3].rows, more.curves[3].few) == (0, True)
    assert (more.chi_squared, more.p_value) == pytest.approx((found.chi_squared, found.p_value))
    assert more.degrees == found.degrees == 2


@pytest.mark.parametrize(("rows", "events", "visible"), [(3, 3, 0), (40, 3, 40), (40, 37, 40)])
def test_a_group_of_few_rows_or_events_is_not_shown_and_ends_the_test(rows: int, events: int, visible: int) -> None:
    part = pool(sites())
    part = {name: values[part["ward"] < 2] for name, values in part.items()}
    few = {"days": np.full(rows, 9.0), "died": (np.arange(rows) < events).astype(float), "ward": np.full(rows, 2.0)}
    found = estimate([part, few], BY)
    curve = found.curves[2]
    assert (curve.few, curve.rows, curve.events, curve.times) == (True, visible, 0, ())
    assert found.chi_squared is None
    assert found.curves[0].times


def test_all_rows_die_at_last() -> None:
    found = exact([{"days": np.repeat([1.0, 2.0], 5), "died": np.ones(10)}])
    assert found.survival.tolist() == [0.5, 0.0]
    assert found.intervals()[1].tolist() == [0.0, 0.0]
    assert found.median()[0] == 1.0


def test_many_groups_and_a_fine_grid_take_more_queries() -> None:
    found = estimate(sites(), BY, bins=3000)
    assert found.queries == 5
    assert found.curves == estimate(sites(), BY).curves


def test_other_clients_in_a_later_query_end_it() -> None:
    parts = sites()
    sets = iter([parts, parts[:2], parts, parts, parts])
    query = survival_query("days died", by=BY, bounds=BOUNDS, bins=3000)

    def ask(step: CountStep) -> tuple[list[float], int]:
        clients = next(sets)
        return asking(clients)(step)

    with raises(RoundFailed, check="other-clients"):
        fit_survival(query, ask, nodes=3)


@pytest.mark.parametrize(("high", "cells"), [(60, 240), (12, 252), (365, 365), (3650, 3650), (5.5, 256), (9000, 256)])
def test_whole_numbers_lie_on_the_grid(high: float, cells: int) -> None:
    assert fine_cells(float(high)) == cells


def test_columns_of_float32_lie_on_the_points() -> None:
    times = SurvivalTimes(time="t", event="e", time_name="t", event_name="e", high=1.0, cells=10)
    values = (np.arange(11) / 10).astype(np.float32).astype(np.float64)
    assert times.cells_of(values).tolist() == list(range(11))
    assert times.off_grid(values) == 0


# --- what cannot be asked -------------------------------------------------------------------------------------------


def test_an_event_that_is_neither_0_nor_1() -> None:
    parts = sites()
    parts[1]["died"][5] = 2.0
    with raises(ConfigurationError, check="wrong-event"):
        estimate(parts)


def test_too_few_rows() -> None:
    with raises(ConfigurationError, check="too-few-rows"):
        estimate([{"days": np.ones(4), "died": np.ones(4)}])


@pytest.mark.parametrize(
    ("options", "check"),
    [
        ({"text": "days"}, "survival-columns"),
        ({"text": "days died sex"}, "survival-columns"),
        ({"bounds": {}}, "no-bounds"),
        ({"bounds": {"days": (-5.0, 0.0)}}, "time-bounds"),
        ({"bins": 0}, "time-cells"),
        ({"bins": 5000}, "time-cells"),
        ({"by": "ward"}, "no-groups"),
        ({"by": "C(ward, [0, 1]):sex"}, "no-groups"),
        ({"by": "C(ward, [low, high])"}, "level"),
        ({"schema": SCHEMA, "by": "days"}, "no-groups"),
        ({"schema": SCHEMA, "by": "ward"}, "no-such-column"),
        ({"schema": SCHEMA, "text": "stay died"}, "no-such-column"),
        ({"schema": SCHEMA, "text": "sex died"}, "no-time"),
        ({"schema": SCHEMA, "text": "died smoker"}, "no-time"),
        ({"schema": SCHEMA, "text": "days sex"}, "no-event"),
        ({"schema": SCHEMA, "by": "C(sex, [X, M])"}, "level"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], check: str) -> None:
    with raises(ConfigurationError, check=check):
        survival_query(options.pop("text", "days died"), **{"bounds": BOUNDS, **options})


def test_columns_of_a_schema() -> None:
    query = survival_query("days died", by="sex", schema=SCHEMA)
    assert (query.times.time, query.times.event, query.times.high) == ("days", "y", 90.0)
    assert query.times.groups == (("sex = F", "sex=F"), ("sex = M", "sex=M"))
    assert survival_query("days smoker", by="died", schema=SCHEMA).times.groups[1] == ("died = yes", "y=1")


def test_columns_that_nobody_has_or_of_other_rows() -> None:
    with raises(AppError, check="no-such-column"):
        estimate([{"days": np.ones(9)}])
    with raises(AppError, check="other-rows"):
        estimate([{"days": np.ones(9), "died": np.ones(8)}])


# --- what travels, and what is printed ------------------------------------------------------------------------------


def test_question_and_answer_are_the_same_after_their_way_over_the_wire() -> None:
    query = survival_query("days died", by=BY, bounds=BOUNDS)
    assert question_from_plain(question_to_plain(query)) == query
    found = estimate(sites(), BY)
    assert answer_from_plain(query, answer_to_plain(query, found), error=PeerError) == found


def test_a_server_of_0_2_0_refuses_curves_by_name() -> None:
    from pydantic import TypeAdapter

    from fedcore.system.plain_json import from_plain

    plain = question_to_plain(survival_query("days died", bounds=BOUNDS))
    with raises(ConfigurationError, match="'survival'"):
        from_plain(TypeAdapter(StatisticsQuery), plain, what="the question")


def test_the_report_shows_every_curve() -> None:
    parts = sites()
    for part in parts:
        part["died"][part["ward"] == 2] = 0.0
    found = estimate(parts, BY)
    report = SurvivalReport(found)
    lines = report.lines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0] == ["", "ward = 0", "ward = 1", "ward = 2"]
    document = report.document()
    assert document["curves"]["ward = 0"]["survival"] == found.curves[0].survival.tolist()
    assert document["curves"]["ward = 2"]["median"] == {"estimate": None, "low": None, "high": None}
    assert document["log_rank"]["degrees"] == 2
    assert len(report.csv().splitlines()) == 1 + sum(len(curve.times) for curve in found.curves)
    figure = Figure()
    report.draw(figure)
    figure.savefig(io.BytesIO(), format="svg")
    assert len(figure.axes[0].lines) == 3


def test_a_log_rank_test_without_events_has_no_statistic() -> None:
    assert log_rank(np.zeros((2, 5)), np.ones((2, 5))) is None
