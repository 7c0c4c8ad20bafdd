"""Fairness checks: what was equal in all modes of a comparison, computed from the runs.

What cannot be equal by the nature of the modes is a text of the page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias

from fedcore.comparison.design.equal_budgets import Amount, amounts, total
from fedcore.comparison.report.conditions import selected_on_test
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import best_points, count, finished, point_text, samples_of
from fedcore.comparison.results import RunResult, SumCheck

Status: TypeAlias = Literal["holds", "differs", "unknown"]
# With a number of steps instead of epochs, a round of large batches meets the budget to within a batch.
SAMPLES_TOLERANCE = 0.01
_HASH_DIGITS = 12
_CHOICE = "Test data chose nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessCheck:
    """One thing that should be equal in all modes.

    values: what was found, by where.
    """

    name: str
    status: Status
    detail: str
    values: Mapping[str, str] = field(default_factory=dict)


def fairness(comparison: Comparison) -> tuple[FairnessCheck, ...]:
    """All checks, in the order of the report; of one run alone there is nothing to compare but whether it finished."""
    runs = comparison.runs
    if len(runs) == 1 and not comparison.sources:
        return (_complete(comparison), *_sums(comparison))
    checks = (
        _complete(comparison),
        *_sums(comparison),
        *_chosen(comparison),
        *_of_each_app(
            comparison, lambda own: _equal("Initial weights", own, _initial, "SHA-256 of the first model, by seed")
        ),
        *_of_each_app(comparison, _steps if comparison.budget == "steps" else _samples),
        _equal(
            *("Test examples", runs, _tested, "on which the last model of each mode was evaluated, by site"),
            why="the app's own evaluation" if comparison.own_evaluation else "",
        ),
        *_of_each_app(
            comparison,
            lambda own: _equal("Precision", finished(own), lambda run: run.precision, "data types of the last model"),
        ),
        _versions(comparison),
        *_sources(comparison),
    )
    if len(comparison.modes) == 1 and comparison.is_simulation:
        # What nobody looks at in a simulation is no reason to doubt that its seeds were alike.
        return tuple(check for check in checks if check.status != "unknown")
    return checks


def broken(checks: Sequence[FairnessCheck]) -> tuple[FairnessCheck, ...]:
    """The checks that do not hold, or may not."""
    return tuple(check for check in checks if check.status != "holds")


def _of_each_app(
    comparison: Comparison, check: Callable[[Sequence[RunResult]], FairnessCheck]
) -> Iterator[FairnessCheck]:
    """A check that means something for models of one app alone."""
    if not comparison.apps:
        yield check(comparison.runs)
    for app, labels in comparison.apps.items():
        made = check([run for run in comparison.runs if run.mode in labels])
        yield replace(made, name=f"{made.name} of {app}")


def _complete(comparison: Comparison) -> FairnessCheck:
    missing = {}
    for mode in comparison.modes:
        runs = [run for run in comparison.runs if run.mode == mode.label]
        done = {run.seed for run in runs if run.status == "finished"}
        absent = [str(seed) for seed in comparison.seeds if seed not in done]
        failed = sum(run.status == "failed" for run in runs)
        lost = sum(bool(run.losses) for run in runs)
        words = [f"no finished run of seed {', '.join(absent)}"] if absent else []
        words += [f"{failed} of {len(runs)} runs failed"] if failed else []
        words += [f"{lost} of {len(runs)} runs lost a worker"] if lost else []
        if words:
            missing[mode.label] = "; ".join(words)
    seeds = f"seeds {', '.join(map(str, comparison.seeds))}"
    values = missing or {"all modes": f"{seeds} finished, with all workers"}
    return _check("Runs", not missing, f"{seeds} in every mode", values)


def _chosen(comparison: Comparison) -> Iterator[FairnessCheck]:
    """Whether the report shows values that were chosen on the data that it judges by."""
    selected = selected_on_test(comparison, best_points(comparison))
    if selected:
        detail = "chosen on test examples, the best value of a sweep; --tune chooses on validation data"
        yield _check(_CHOICE, False, detail, selected)
    elif comparison.tune:
        detail = "each mode's own values, chosen on validation data that are a part of the training data"
        by_seed = {
            f"{run.mode}, seed {run.seed}" + (f", {point_text(run.point)}" if run.point else ""): (
                f"{point_text(run.tuned)} of {len(run.trials)}"
            )
            for run in finished(comparison.runs)
        }
        trials = {len(run.trials) for run in finished(comparison.runs)}
        yield _check(_CHOICE, len(trials) == 1, detail, by_seed)
    else:
        yield _check(_CHOICE, True, "no value was chosen among several", {"all modes": "one value each"})


def _steps(runs: Sequence[RunResult]) -> FairnessCheck:
    """Under `--budget steps`, which no whole number of rounds meets exactly."""
    steps = amounts(runs)["steps"]
    values, far = {}, False
    for where, peers in _peers([run for run in finished(runs) if total(run, steps)]):
        made = {_name(run): total(run, steps) or 0.0 for run in peers}
        most = max(made.values())
        far = far or any(most - (total(run, steps) or 0.0) > _round_steps(run, steps) for run in peers)
        values[where] = _same_or_each({name: count(number) for name, number in made.items()})
    absent = [run.mode for run in finished(runs) if not total(run, steps)]
    detail = "of one worker, mean over the workers, to within one round"
    return _check("Steps", not far, detail, values, absent, why="nobody counts them")


def _round_steps(run: RunResult, steps: Amount) -> float:
    """The most that a round of this run makes."""
    made = [steps(point) or 0.0 for point in run.curve]
    return max((after - before for before, after in pairwise(made)), default=0.0)


def _samples(runs: Sequence[RunResult]) -> FairnessCheck:
    values, worst = {}, 0.0
    for where, peers in _peers([run for run in finished(runs) if samples_of(run)]):
        counts = {_name(run): samples_of(run) or 0 for run in peers}
        low, high = min(counts.values()), max(counts.values())
        worst = max(worst, (high - low) / high)
        values[where] = _same_or_each({name: count(number) for name, number in counts.items()})
    detail = "counted where they were trained on, repetitions with them, all workers together"
    if worst:
        detail += f"; {100 * worst:.2g} % between the fewest and the most"
    private = sorted({run.mode for run in runs if run.privacy is not None})
    if private:
        detail += f"; private, and not compared, in {', '.join(private)}"
    absent = [run.mode for run in finished(runs) if run.privacy is None and not run.samples]
    why = "the app's own loop takes them" + _reported([run for run in finished(runs) if run.mode in absent])
    return _check("Examples trained on", worst <= SAMPLES_TOLERANCE, detail, values, absent, why=why)


def _reported(runs: Sequence[RunResult]) -> str:
    """What the clients of an app with its own loop report, each training once."""
    counts = {run.mode: run.reported_examples for run in runs if run.reported_examples is not None}
    if not counts:
        return ", and its clients report no num-examples"
    each = _same_or_each({label: count(number) for label, number in counts.items()})
    return f"; its clients report num-examples, each training once whatever it repeats: {each}"


def secrecy_sentences(comparison: Comparison) -> tuple[str, ...]:
    """For the headline: each secure mode whose sums are not the plain means, with the worst tensor; () if none is."""
    worst: dict[str, SumCheck] = {}
    for check in comparison.sum_checks:
        if check.status == "differs":
            last = worst.get(check.mode)
            worst[check.mode] = check if last is None else max(check, last, key=_excess)
    return tuple(
        f"{check.mode} is not what plain averaging of the same updates gives: {_gap(check)} (seed {check.seed}, round "
        f"{check.round}); do not build on its figures."
        for check in worst.values()
    )


def _sums(comparison: Comparison) -> Iterator[FairnessCheck]:
    """Whether secure sums are the plain means of the same updates, as far as it was checked."""
    if not comparison.apps and comparison.sum_checks:
        yield _sums_equal(comparison.sum_checks)
    for app, labels in comparison.apps.items():
        if own := [check for check in comparison.sum_checks if check.mode in labels]:
            made = _sums_equal(own)
            yield replace(made, name=f"{made.name} of {app}")


def _sums_equal(checks: Sequence[SumCheck]) -> FairnessCheck:
    statuses = {check.status for check in checks}
    extra = sum(check.extra_rounds for check in checks)
    detail = "the mean of the first secure sum, and of the last, against a plain mean from the same model and seed"
    detail += f"; it took {extra} more round{'s' if extra > 1 else ''} of plain" if extra else ""
    return FairnessCheck(
        name="Secure equals plain",
        status="differs" if "differs" in statuses else "unknown" if "unknown" in statuses else "holds",
        detail=detail,
        values={_run_and_round(check): _sum_text(check) for check in checks},
    )


def _run_and_round(check: SumCheck) -> str:
    point = f" ({point_text(check.point)})" if check.point else ""
    return f"{check.mode}{point}, seed {check.seed}, round {check.round}"


def _sum_text(check: SumCheck) -> str:
    """What was compared, and how that ended."""
    other = f"against {check.plain}" if check.plain else "against an extra round"
    words = [check.reason] if check.status == "unknown" else [other]
    if check.difference is not None:
        words.append(_gap(check))
    if check.last_difference is not None and check.last_change is not None:
        words.append(
            f"after training, which makes rounding larger without a bound, the last models are apart by "
            f"{check.last_difference:.2g} in {check.last_tensor}, which changed by {check.last_change:.2g} (L2 norms)"
        )
    return "; ".join(words)


def _gap(check: SumCheck) -> str:
    """The tensor that is the farthest off, by how much, and how much it may be."""
    norm = " as an L2 norm" if check.by == "norm" else ""
    text = f"tensor {check.tensor} is off by {check.difference or 0.0:.2g}{norm}"
    if check.bound is not None:
        text += f", where {check.bound:.2g} may be rounding"
    return text + (f" and the update is {check.change:.2g}" if check.change is not None else "")


def _excess(check: SumCheck) -> float:
    """How many times the bound the difference is."""
    return (check.difference or 0.0) / check.bound if check.bound else math.inf


def _versions(comparison: Comparison) -> FairnessCheck:
    machines = {source.name: source.machine for source in comparison.sources} or {"all runs": comparison.machine}
    texts = {name: machine_text(machine) for name, machine in machines.items()}
    return _check("Machine and versions", len(set(texts.values())) == 1, "where the runs were made", texts)


def _sources(comparison: Comparison) -> Iterator[FairnessCheck]:
    """Whether merged reports were made under the same conditions."""
    fields = ["app", "sites", "partition", "seeds", "run_config", "settings", "network", "metric"]
    axes = {*comparison.sweeps, "seed"}
    dropped = {"sites"} if "clients" in axes else set()
    if len({source.labels for source in comparison.sources}) == 1:
        dropped.add("seeds")  # of the same modes: the check of the runs says which of them has which
    if comparison.apps:
        dropped |= {"app", "run_config", "settings"}  # which differ with the app, and are what is compared
    for name in [one for one in fields if one not in dropped | axes] if comparison.sources else ():
        values = {source.name: getattr(source, name) for source in comparison.sources}
        texts = {source: _plain_text(_without(value, axes)) for source, value in values.items()}
        equal = len(set(texts.values())) == 1
        yield _check(name.replace("_", " ").capitalize(), equal, "of the reports laid over one another", texts)


def _without(value: Any, keys: Container[str]) -> Any:
    """A mapping without these keys, which are axes of the report and may differ; anything else as it is."""
    return {key: one for key, one in value.items() if key not in keys} if isinstance(value, Mapping) else value


def _peers(runs: Sequence[RunResult]) -> Iterator[tuple[str, list[RunResult]]]:
    """Groups of runs that should be equal: of one seed, at points of the sweep that do not contradict one another."""
    for seed in dict.fromkeys(run.seed for run in runs):
        same = [run for run in runs if run.seed == seed]
        points = list({tuple(run.point.items()): run.point for run in same}.values())
        for point in [p for p in points if p] or [{}]:
            peers = [run for run in same if all(point.get(key, value) == value for key, value in run.point.items())]
            yield f"seed {seed}" + (f", {point_text(point)}" if point else ""), peers


def _initial(run: RunResult) -> str:
    return run.initial_sha256[:_HASH_DIGITS]


def _tested(run: RunResult) -> str:
    return ", ".join(f"{site.site}: {site.examples}" for site in run.sites)


def _equal(
    name: str, runs: Sequence[RunResult], value: Callable[[RunResult], str], detail: str, *, why: str = ""
) -> FairnessCheck:
    """Whether all runs that should be equal have the same value; a run without one has ""."""
    known = [run for run in runs if value(run)]
    absent = [run.mode for run in finished(runs) if not value(run)]
    by_peers = {where: {_name(run): value(run) for run in peers} for where, peers in _peers(known)}
    equal = all(len(set(values.values())) == 1 for values in by_peers.values())
    return _check(
        name, equal, detail, {where: _same_or_each(values) for where, values in by_peers.items()}, absent, why=why
    )


def _same_or_each(values: Mapping[str, str]) -> str:
    if len(set(values.values())) == 1:
        words = "1 mode" if len(values) == 1 else f"all {len(values)} modes"
        return f"{next(iter(values.values()))} ({words})"
    return "; ".join(f"{value} ({', '.join(modes)})" for value, modes in _by_value(values).items())


def _by_value(values: Mapping[str, str]) -> dict[str, list[str]]:
    """The keys that have each value."""
    keys: dict[str, list[str]] = {}
    for key, value in values.items():
        keys.setdefault(value, []).append(key)
    return keys


def _check(
    name: str, equal: bool, detail: str, values: Mapping[str, str], absent: Sequence[str] = (), *, why: str = ""
) -> FairnessCheck:
    """absent: modes for which it is unknown. why: the reason."""
    if absent:
        detail += f"; not known of {', '.join(dict.fromkeys(absent))}" + (f": {why}" if why else "")
    status: Status = "differs" if not equal else "holds" if values and not absent else "unknown"
    places = _by_value(values)
    everywhere = len(places) == 1 < len(values)
    joined = {"everywhere" if everywhere else "; ".join(where): text for text, where in places.items()}
    return FairnessCheck(name=name, status=status, detail=detail, values=joined)


def _name(run: RunResult) -> str:
    return f"{run.mode} ({point_text(run.point)})" if run.point else run.mode


def machine_text(machine: Mapping[str, Any]) -> str:
    """Machine and versions in one line."""
    packages = ", ".join(f"{name} {number}" for name, number in machine.get("packages", {}).items())
    return f"{machine.get('system')}, {machine.get('cores')} cores, Python {machine.get('python')}, {packages}"


def _plain_text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
