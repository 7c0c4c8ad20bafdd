"""Means over the seeds, the sentences, and the checks of fairness."""

import math
from dataclasses import replace
from typing import Any

import pytest
from support.comparisons import everything, made_up, made_up_run

from fedcore.comparison.judging import JudgedBy
from fedcore.comparison.report import Comparison, ModeTitle, merge
from fedcore.comparison.report.fairness import FairnessCheck, broken, fairness
from fedcore.comparison.report.files import Report, page
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.summary import NONE, Spread, best_points, duration, mean_sd, percent, summarize
from fedcore.comparison.report.tables import (
    exposure_table,
    main_table,
    meanings,
    part_tables,
    pooled_bytes,
    pooling,
    sums_table,
)
from fedcore.comparison.results import CurvePoint, LostWorker, RunResult, SiteResult, SumCheck

SUMS = "Secure equals plain"


def ending(mode: str, accuracy: float | None, *, seed: int = 1, loss: float | None = 0.5, **changes: Any) -> RunResult:
    found = {name: value for name, value in (("loss", loss), ("accuracy", accuracy)) if value is not None}
    last = CurvePoint(round=1, samples=9, seconds=1.0, simulated_seconds=None, bytes_up=0, bytes_down=0, metrics=found)
    return made_up_run(mode, seed=seed, curve=(last,), **changes)


def checks(comparison: Comparison) -> dict[str, FairnessCheck]:
    return {check.name: check for check in fairness(comparison)}


def test_the_spread_is_the_sample_standard_deviation() -> None:
    assert Spread.of([1.0, 2.0, 6.0]) == Spread(mean=3.0, sd=math.sqrt(7), n=3)
    assert Spread.of([4, None]) == Spread(mean=4.0, sd=None, n=1)
    assert Spread.of([None]) is None
    assert math.isnan(Spread.of([1.0, math.nan]).mean), "a diverged run is not left out"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (duration(1e-5), "10.0 µs"),
        (duration(0.0123), "12.3 ms"),
        (duration(99.9), "99.9 s"),
        (duration(300), "5.0 min"),
        (duration(9000), "2.5 h"),
        (mean_sd(Spread(mean=0.5, sd=0.01, n=2), percent), "50.00 ± 1.00"),
        (mean_sd(Spread(mean=math.nan, sd=math.nan, n=2), percent), "not finite"),
        (mean_sd(None, percent), "–"),
    ],
)
def test_numbers_are_shown_in_their_units(text: str, shown: str) -> None:
    assert text == shown


def test_failed_runs_are_counted_and_in_no_mean() -> None:
    runs = (
        ending("local", 0.5),
        ending("local", 0.7, seed=2, losses=(LostWorker(worker="client-1", round=1, consequence="gone", seconds=1.0),)),
        RunResult(mode="local", kind="local", seed=3, status="failed", reason="no"),
    )
    (summary,) = summarize(made_up("local", seeds=3, runs=runs))
    assert (summary.finished, summary.failed, summary.lost) == (2, 1, 1)
    assert summary.metrics["accuracy"] == Spread(mean=pytest.approx(0.6), sd=pytest.approx(0.1 * math.sqrt(2)), n=2)


def test_bytes_and_steps_are_means_over_the_workers() -> None:
    run = ending("local", 0.5, steps={"a": 2, "b": 4}, bytes_up={"a": 10, "b": 30}, bytes_down={})
    (summary,) = summarize(made_up("local", runs=(run,)))
    assert (summary.steps.mean, summary.bytes_up.mean, summary.bytes_down) == (3.0, 20.0, None)


def test_a_private_number_of_examples_is_not_shown() -> None:
    (summary,) = summarize(made_up("federated-dp"))
    assert summary.samples is None


def test_of_a_sweep_the_best_finite_point_is_shown() -> None:
    runs = [
        ending("local", 0.5, point={"lr": 0.1}),
        ending("local", 0.9, point={"lr": 1.0}),
        ending("local", math.nan, point={"lr": 9.0}),
    ]
    assert best_points(made_up("local", runs=tuple(runs)))["local"] == (runs[1],)
    by_loss = [replace(run, curve=(replace(run.curve[0], metrics={"loss": n + 1.0}),)) for n, run in enumerate(runs)]
    judged_by = JudgedBy(name="loss", better="min")
    assert best_points(made_up("local", runs=tuple(by_loss), judged_by=judged_by))["local"] == (by_loss[0],)
    assert [one.point for one in summarize(made_up("local", runs=tuple(runs)))] == [
        {"lr": lr} for lr in (0.1, 1.0, 9.0)
    ]


def alone(everywhere: float, own: float, *, seed: int = 1) -> RunResult:
    """Two sites whose own models have these accuracies on everyone's test data, and at their own sites."""
    sites = (
        SiteResult(site=f"client-{n}", examples=5, metrics={"accuracy": own}, everywhere={"accuracy": everywhere})
        for n in (1, 2)
    )
    return replace(ending("local", everywhere, seed=seed), sites=tuple(sites))


def told(*runs: RunResult) -> tuple[str, ...]:
    modes = ",".join(dict.fromkeys(run.mode for run in runs))
    return headline(made_up(modes, seeds=len({run.seed for run in runs}), runs=runs))


def test_the_story_is_what_the_sites_reach_together_alone_and_pooled() -> None:
    runs = [
        run for seed in (1, 2) for run in (ending("federated", 0.96, seed=seed, sites=0), alone(0.76, 0.97, seed=seed))
    ]
    reached, worth, pooled, own = told(*runs, *(ending("centralized", 0.98, seed=seed) for seed in (1, 2)))
    assert reached.startswith(
        "Together 96.00 ± 0.00 % accuracy, each site alone 76.00 ± 0.00 % on everyone's test data,"
    )
    assert reached.endswith(" pooled 98.00 ± 0.00 %; the server saw only sums.")
    assert worth.startswith("Federating and sites alone are not distinguishable at 2 seeds: federating is ahead of")
    assert pooled.startswith("federated and centralized are not distinguishable at 2 seeds: federated is behind")
    assert own.startswith(
        "local: on its own site's test examples, an easier test the more the sites differ, a site's own"
    )


def test_the_common_model_is_shown_beside_the_sites_own_on_their_test() -> None:
    *_, own, _ = told(made_up_run("federated", sites=2), alone(0.76, 0.97))
    assert "97.00 against 92.35 %" in own, own


def test_the_story_has_what_the_comparison_has() -> None:
    assert told(ending("federated", 0.96)) == ("Together 96.00 % accuracy; the server saw only sums.",)
    first, second, *_ = told(ending("federated", 0.96), ending("centralized", 0.98))
    assert first == "Together 96.00 % accuracy, pooled 98.00 %; the server saw only sums."
    assert second.startswith("federated is behind centralized by 2.00 points of accuracy (95 %: ")
    (first, *_) = told(ending("federated-plain", 0.96))
    assert first == "Together 96.00 % accuracy; the server could read every update."
    assert told(alone(0.7, 0.9))[0] == "local has the best accuracy, 70.00 % with one seed."


def test_the_most_protected_federation_is_the_story_and_the_others_compete() -> None:
    runs = [ending(mode, 0.8) for mode in ("federated[lr=0.1]", "federated[lr=0.2]", "federated-plain", "allreduce")]
    runs[1] = ending("federated[lr=0.2]", 0.85)
    first, second, *_ = told(*runs)
    assert first == "Together (federated[lr=0.2]) 85.00 % accuracy; the server saw only sums."
    assert second == "federated[lr=0.2] has the best accuracy, 85.00 % with one seed."


def test_a_tie_is_said_to_be_one() -> None:
    runs = tuple(ending(mode, 0.8) for mode in ("centralized", "allreduce", "federated"))
    _, level, best = headline(made_up("centralized,allreduce,federated", runs=runs))
    assert best == "centralized, allreduce and federated have the best accuracy, 80.00 % with one seed."
    assert level.startswith("federated is level with centralized (95 %: ")


def test_everyone_sees_who_can_read_a_single_update() -> None:
    modes = "federated,federated-dp,federated-plain,ps-sync,allreduce,local,centralized"
    head, rows = main_table(made_up(modes))
    seen = dict(zip((row[0] for row in rows), (row[head.index("seen by")] for row in rows), strict=True))
    assert seen == {
        "federated": "nobody",
        "federated-dp": "nobody, ε 6.4",
        "federated-plain": "the server",
        "ps-sync": "the server",
        "allreduce": "other sites",
        "local": "nobody",
        "centralized": "all data pooled",
    }


def test_sites_alone_have_a_second_column_for_their_own_test() -> None:
    head, rows = main_table(made_up("local,federated", runs=(alone(0.76, 0.97), made_up_run("federated"))))
    assert [row[1:3] for row in rows] == [("76.00", "97.00"), ("93.85", "93.35")]
    assert head[1:3] == ("accuracy %", "at its own site %")
    assert "at its own site %" not in main_table(made_up())[0]


def test_the_headline_says_what_privacy_costs() -> None:
    runs = (
        ending("federated", 0.8, seconds=3.0, bytes_up={"client-1": 2000}),
        ending("federated-plain", 0.8, seconds=2.0, bytes_up={"client-1": 4000}),
        made_up_run("federated-dp"),
    )
    text = " ".join(headline(made_up("federated,federated-plain,federated-dp", runs=runs)))
    assert "federated and federated-plain end equal; a worker" in text
    assert (
        "sends 2.0 kB instead of 4.0 kB and gets 180.0 kB instead of 360.0 kB; training takes 3.0 s instead of 2.0 s"
        in text
    )
    assert "In federated-plain the server can read every update." in text
    assert "federated-dp: each client has (6.400, 1e-05)-differential privacy (budget 8)" in text


def test_a_site_that_was_in_no_sum_is_named_and_the_others_are_counted() -> None:
    sums = [{"client-1": 5, "client-2": 6, "client-3": 4, "client-4": count} for count in (0, 3, 0)]
    runs = [made_up_run("federated-async", seed=seed, sums=of) for seed, of in enumerate(sums, start=1)]
    made = made_up("federated-async", seeds=3, runs=tuple(runs))
    said = "In federated-async with seeds 1 and 3 client-4 was in no sum: the model has learnt nothing from there."
    assert said in headline(made)
    found = sums_table(made)
    assert found is not None
    assert found[1] == [("federated-async", "5 ± 0", "6 ± 0", "4 ± 0", "1 ± 1.73")]
    for text in (page(made, []), Report.of(made).to_json()):
        assert "client-4 was in no sum" in text
    assert "1 ± 1.73" in page(made, []).replace("\u00a0", " ")


def test_sums_with_every_site_need_no_table() -> None:
    even = made_up_run("federated", sums=dict.fromkeys(("client-1", "client-2"), 6))
    made = made_up("federated", runs=(even,))
    assert sums_table(made) is None
    assert not [sentence for sentence in headline(made) if "in no sum" in sentence]


def test_a_strategy_is_not_taken_for_the_cost_of_privacy() -> None:
    runs = (ending("federated[strategy=fedyogi]", 0.8), ending("federated-plain", 0.7))
    text = " ".join(headline(made_up("federated[strategy=fedyogi],federated-plain", runs=runs)))
    assert "Secure aggregation" not in text


def test_without_a_finished_run_the_headline_says_so() -> None:
    failed = RunResult(mode="local", kind="local", seed=1, status="failed", reason="no")
    assert headline(made_up("local", runs=(failed,))) == ("No mode finished.",)


def test_equal_runs_pass_every_check() -> None:
    assert broken(fairness(made_up("centralized,allreduce,federated", seeds=2))) == ()


@pytest.mark.parametrize(
    ("name", "change", "status"),
    [
        ("Initial weights", {"initial_sha256": "ff" * 32}, "differs"),
        ("Initial weights", {"initial_sha256": ""}, "unknown"),
        ("Examples trained on", {"samples": 8000}, "differs"),
        ("Examples trained on", {"samples": None}, "unknown"),
        ("Test examples", {"sites": (SiteResult(site="client-1", examples=1, metrics={"loss": 1.0}),)}, "differs"),
        ("Test examples", {"sites": ()}, "unknown"),
        ("Precision", {"precision": "bfloat16"}, "differs"),
        ("Precision", {"precision": ""}, "unknown"),
        ("Runs", {"status": "failed", "reason": "no"}, "differs"),
        ("Runs", {"losses": (LostWorker(worker="client-1", round=1, consequence="gone", seconds=1.0),)}, "differs"),
        ("Runs", {"seed": 7}, "differs"),
    ],
)
def test_what_is_not_equal_is_found(name: str, change: dict[str, Any], status: str) -> None:
    equal = made_up("centralized,allreduce,federated", seeds=2)
    runs = (replace(equal.runs[0], **change), *equal.runs[1:])
    found = checks(replace(equal, runs=runs))
    assert found[name].status == status
    assert "centralized" in found[name].detail + " ".join(found[name].values) + " ".join(found[name].values.values())


def test_a_batch_more_or_less_is_said_and_holds() -> None:
    equal = made_up("centralized,federated")
    found = checks(replace(equal, runs=(replace(equal.runs[0], samples=equal.runs[1].samples - 32), equal.runs[1])))
    assert found["Examples trained on"].status == "holds"
    assert "0.37 % between the fewest and the most" in found["Examples trained on"].detail


def test_points_of_a_sweep_are_compared_with_those_that_share_their_values() -> None:
    runs = [
        made_up_run("centralized", point={"local-epochs": 1}, samples=100),
        made_up_run("centralized", point={"local-epochs": 2}, samples=200),
        made_up_run("federated", point={"local-epochs": 1}, samples=100),
        made_up_run("federated", point={"local-epochs": 2}, samples=200),
    ]
    swept = made_up(runs=tuple(runs))
    assert checks(swept)["Examples trained on"].status == "holds"
    runs[3] = replace(runs[3], samples=100)
    assert checks(replace(swept, runs=tuple(runs)))["Examples trained on"].status == "differs"


def test_a_report_with_everything_says_what_is_wrong() -> None:
    assert [check.name for check in broken(fairness(everything()))] == [
        "Runs",
        "Test data chose nothing",
        "Examples trained on",
    ]


def test_merged_reports_keep_both_and_say_what_differs() -> None:
    first = made_up("centralized,federated")
    other = made_up("federated,local", seeds=2, machine={**first.machine, "cores": 64}, partition="iid")
    both = merge({"a": first, "b": other})
    assert [mode.label for mode in both.modes] == ["centralized", "federated (a)", "federated (b)", "local"]
    assert {run.mode for run in both.runs} == {mode.label for mode in both.modes}
    assert both.seeds == (1, 2)
    differing = {check.name for check in broken(fairness(both))}
    assert differing == {"Runs", "Machine and versions", "Partition", "Seeds"}
    assert merge({"a": first}) == first


def test_start_and_all_bytes_stand_next_to_seconds_and_bytes_of_training() -> None:
    up, down = {"client-1": 3000, "client-2": 5000}, {"client-1": 1000, "client-2": 1000}
    run = made_up_run("federated", start_seconds=12.0, all_bytes_up=up, all_bytes_down=down)
    (head, (row,)), (_, (older,)) = main_table(made_up("federated", runs=(run,))), main_table(made_up("federated"))
    cells, before = dict(zip(head, row, strict=True)), dict(zip(head, older, strict=True))
    assert (cells["start"], cells["all bytes"]) == ("12.0 s", "5.0 kB")
    assert (before["start"], before["all bytes"]) == (NONE, NONE)


def test_a_secure_sum_that_is_no_plain_mean_is_red_and_comes_first() -> None:
    good = SumCheck(mode="federated", plain="federated-plain", seed=1, round=1, status="holds", tensor="fc.bias")
    bad = replace(good, round=6, status="differs", tensor="bn.running_var", difference=3.0, bound=1e-6)
    lost = replace(bad, seed=2, tensor="bn.weight", difference=9.0)
    comparison = made_up("federated,federated-plain", seeds=2)
    assert SUMS not in checks(comparison)
    assert checks(replace(comparison, sum_checks=(good,)))[SUMS].status == "holds"
    other = [text for text in headline(comparison) if not text.startswith("Secure aggregation: ")]
    assert headline(replace(comparison, sum_checks=(good,)))[0] == other[0]
    broken_one = replace(comparison, sum_checks=(good, bad, lost))
    assert checks(broken_one)[SUMS].status == "differs"
    assert len(checks(broken_one)[SUMS].values) == 3
    first, *rest = headline(broken_one)
    assert "bn.weight" in first  # the worst
    assert "bn.running_var" not in first
    assert [text for text in rest if not text.startswith("Secure aggregation: ")] == other
    merged = merge({"a": broken_one, "b": comparison})
    assert {check.mode for check in merged.sum_checks} == {"federated (a)"}
    assert {check.plain for check in merged.sum_checks} == {"federated-plain (a)"}


def test_a_difference_below_the_digits_shown_is_no_figure() -> None:
    runs = (ending("federated", 0.8), ending("federated-plain", 0.8 + 1e-6))
    (text,) = [one for one in headline(made_up("federated,federated-plain", runs=runs)) if one.startswith("Secure agg")]
    assert "0.00" not in text
    assert " end equal" not in text


def test_one_run_alone_has_the_check_of_its_sums() -> None:
    one = made_up("federated", sum_checks=(SumCheck(mode="federated", seed=1, round=1, status="unknown", reason="no"),))
    assert checks(one)[SUMS].status == "unknown"


def test_processor_seconds_energy_and_the_bytes_of_pooling_are_costs() -> None:
    plain = made_up("centralized,federated", seeds=2)
    assert {"processor", "energy"}.isdisjoint(dict(part_tables(plain))["costs"][0])
    assert pooled_bytes(plain) is None
    runs = tuple(replace(run, processor_seconds=10.0 * run.seed) for run in plain.runs)
    split = tuple(replace(site, training_bytes=1000) for site in plain.split)
    counted = replace(plain, runs=runs, split=split)
    assert pooled_bytes(counted) == 4000
    assert pooled_bytes(replace(counted, split=(*split, plain.split[0]))) is None
    head, rows = part_tables(counted)["costs"]
    assert dict(zip(head, rows[1], strict=True))["processor"] == "15.0 s"
    assert "energy" not in head
    estimated = replace(counted, watts=20.0)
    head, rows = part_tables(estimated)["costs"]
    assert dict(zip(head, rows[1], strict=True))["energy"] == "300 J"
    assert summarize(estimated)[0].joules == Spread(mean=300.0, sd=pytest.approx(100 * math.sqrt(2)), n=2)
    assert pooling(plain) == ""
    assert "4.0 kB" in pooling(counted)
    assert dict(meanings(estimated, "costs")).keys() - dict(meanings(counted, "costs")).keys() == {"energy"}
    assert dict(meanings(counted)).keys() - dict(meanings(plain)).keys() == {"processor"}
    assert Report.read(Report.of(estimated).to_json()) == estimated


def test_every_mode_says_what_it_shows_to_whom() -> None:
    table = exposure_table(everything())
    assert table is not None
    head, rows = table
    views = {row[0]: row[1:] for row in rows}
    assert set(views) == set(everything().labels)
    assert all(len(row) == len(head) for row in rows)
    assert views["federated"][0] != views["federated-plain"][0] != views["federated-dp"][0]
    assert views["federated"][2] == views["federated-plain"][2] != views["ps-sync"][2]
    simulated = exposure_table(
        replace(everything(), modes=tuple(replace(m, simulation=True) for m in everything().modes))
    )
    assert simulated is not None
    assert {row[0]: row[1:3] for row in simulated[1]} == {label: view[:2] for label, view in views.items()}
    assert {row[3] for row in simulated[1]}.isdisjoint({view[2] for view in views.values()})
    unknown = ModeTitle(label="mine", kind="no-such-mode", title="")
    assert exposure_table(replace(everything(), modes=(unknown,))) is None


def test_examples_of_an_own_loop_are_those_that_its_clients_report() -> None:
    own = {"samples": None, "steps": {}}
    runs = (made_up_run("federated", reported_examples=8622, **own), made_up_run("centralized", **own))
    comparison = made_up("federated,centralized", runs=runs)
    head, rows = main_table(comparison)
    assert [row[head.index("samples")] for row in rows] == ["8,622 reported", NONE]
    assert checks(comparison)["Examples trained on"].status == "unknown"
    assert "8,622" in checks(comparison)["Examples trained on"].detail
