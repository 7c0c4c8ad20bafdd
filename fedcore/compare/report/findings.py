"""What a comparison found, in sentences made from its figures, and whether the comparison was fair.

Fairness: what was equal in all modes, computed from the runs, and what cannot be equal by the nature of the modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, TypeAlias

from fedcore.compare.judging import known_by_name, listed
from fedcore.compare.modes import in_report
from fedcore.compare.own_figures import CLIENTS
from fedcore.compare.report.document import Comparison
from fedcore.compare.report.summary import (
    Metric,
    Spread,
    best_points,
    count,
    duration,
    finished,
    mean_sd,
    per_worker,
    point_text,
    samples_of,
    size,
)
from fedcore.compare.results import RunResult, number_of
from fedcore.progress import epsilon_line

Runs: TypeAlias = Mapping[str, Sequence[RunResult]]
Status: TypeAlias = Literal["holds", "differs", "unknown"]
# With a number of steps instead of epochs, a round of large batches meets the budget to within a batch.
SAMPLES_TOLERANCE = 0.01
_HASH_DIGITS = 12
_ROUNDS_NAMED = 8
OWN_EVALUATION = "The metrics are those that the app's own evaluation reports, weighted as the app says."


def headline(comparison: Comparison) -> tuple[str, ...]:
    """Sentences, the most important first; at least one."""
    runs = best_points(comparison)
    if not runs:
        return ("No mode finished.",)
    metric = Metric.of(comparison)
    if metric is None:
        return (_nothing_to_judge_by(comparison), *_privacy(runs), *_readable(runs))
    alone = {label: of for label, of in runs.items() if in_report(of[0].kind).alone}
    shared = {label: of for label, of in runs.items() if label not in alone}
    return (
        _best(shared or runs, metric),
        *_against_pooled(runs, metric),
        *(_alone(alone, metric) if shared else ()),
        *_secrecy(runs, metric),
        *_privacy(runs),
        *_readable(runs),
        *_gaps(runs, metric, own=comparison.own_evaluation),
        *([_own_evaluation(comparison, metric)] if comparison.own_evaluation else []),
    )


def _own_evaluation(comparison: Comparison, metric: Metric) -> str:
    """Whose evaluation the metric is from, where it is not ours."""
    if metric.name not in {name for run in comparison.runs for name in run.by_server}:
        return OWN_EVALUATION
    text = f"{metric.name} is what the evaluate_fn of the ServerApp gives, on the same examples in every mode"
    apart = dict.fromkeys(name for run in comparison.runs for name in run.metrics if name.startswith(CLIENTS))
    own = f"; {_listed(list(apart))} {'are' if len(apart) > 1 else 'is'} what its clients report" if apart else ""
    return f"{text}{own}."


def _gaps(runs: Runs, metric: Metric, *, own: bool) -> list[str]:
    """Rounds whose models nobody evaluated, or too few."""
    labels: dict[tuple[int, ...], list[str]] = {}
    for label, of in runs.items():
        points = [point for run in of for point in run.curve if point.round]
        absent = {point.round for point in points if metric.at(point) is None}
        if absent and absent < {point.round for point in points}:
            labels.setdefault(tuple(sorted(absent)), []).append(label)
    why = f"the app reports no {metric.name} of" if own else "not every site evaluated the models of"
    return [
        f"In {_listed(names)} {why} {_rounds(absent)}: the curves have no point there."
        for absent, names in labels.items()
    ]


def _rounds(numbers: Sequence[int]) -> str:
    if len(numbers) > _ROUNDS_NAMED:
        return f"{len(numbers)} rounds between {numbers[0]} and {numbers[-1]}"
    return f"round{'s' if len(numbers) > 1 else ''} {_listed([str(number) for number in numbers])}"


def _nothing_to_judge_by(comparison: Comparison) -> str:
    names = known_by_name(name for run in comparison.runs for name in run.metrics)
    if not names:
        return "Nothing was evaluated, so that the modes cannot be compared."
    return f"No metric says whether more of it is better; {listed(names)}. Name one: --metric {next(iter(names))}:max"


def _best(runs: Runs, metric: Metric) -> str:
    spreads = _finals(runs, metric)
    if not spreads:
        return f"No mode has a finite {metric.name}."
    top = max(spreads.values(), key=metric.rank)
    best = [label for label, spread in spreads.items() if metric.form(spread.mean) == metric.form(top.mean)]
    over = f"over {top.n} seeds" if top.n > 1 else "one seed"
    text = f"{_listed([_title(label, runs) for label in best])} {'ends' if len(best) == 1 else 'end'} best: "
    text += f"{metric.name} {metric.shown(top)}{' ' if top.n > 1 else ', '}{over}."
    near = [
        label
        for label, spread in spreads.items()
        if label not in best and top.sd is not None and abs(spread.mean - top.mean) <= top.sd
    ]
    return text + (f" Within one standard deviation: {_listed(near)}." if near else "")


def _finals(runs: Runs, metric: Metric) -> dict[str, Spread]:
    """Spreads over the last models, if known and finite."""
    found = {label: metric.final(of) for label, of in runs.items()}
    return {label: spread for label, spread in found.items() if spread is not None and math.isfinite(spread.mean)}


def _alone(runs: Runs, metric: Metric) -> list[str]:
    """Models of single sites are reported apart: each is tested where it was trained."""
    return [
        f"{_title(label, runs)}: each site's own model has {metric.name} {metric.shown(spread)} on the site's own test "
        f"examples, an easier test the more the sites differ{_on_all_sites(runs[label], metric)}."
        for label, spread in _finals(runs, metric).items()
    ]


def _on_all_sites(runs: Sequence[RunResult], metric: Metric) -> str:
    """The mean over the sites of each one's own model on the test examples of all sites, where it is known."""
    found = [[number_of(site.everywhere, metric.name) for site in run.sites] for run in runs]
    spread = Spread.of(fmean(known) for values in found if (known := [v for v in values if v is not None]))
    return f"; on those of all sites it has {metric.shown(spread)} on average" if spread else ""


def _against_pooled(runs: Runs, metric: Metric) -> list[str]:
    """Secure modes against pooled data; plain ones only if there is no secure one."""
    pooled = [label for label, of in runs.items() if in_report(of[0].kind).pooled]
    federated = _protected(runs, "secure") or _protected(runs, "plain")
    return [_difference(runs, label, pooled[0], metric) for label in federated if pooled]


def _protected(runs: Runs, protection: str) -> dict[str, str]:
    """Labels of the federated modes with this protection, each with the options after the mode's name."""
    return {
        label: label.removeprefix(of[0].kind)
        for label, of in runs.items()
        if in_report(of[0].kind).protection == protection
    }


def _secrecy(runs: Runs, metric: Metric) -> list[str]:
    """Each secure mode against the plain one with the same options."""
    plain = {options: label for label, options in _protected(runs, "plain").items()}
    return [
        _cost_of_secrecy(runs, label, plain[options], metric)
        for label, options in _protected(runs, "secure").items()
        if options in plain
    ]


def _cost_of_secrecy(runs: Runs, secure: str, plain: str, metric: Metric) -> str:
    sentence = f"Secure aggregation: {_difference(runs, secure, plain, metric).removesuffix('.')}"
    mine, theirs = (Spread.of(per_worker(run.bytes_up) for run in runs[label]) for label in (secure, plain))
    if mine and theirs:
        sentence += f"; a worker sends {size(mine.mean)} instead of {size(theirs.mean)}"
    mine, theirs = (Spread.of(run.seconds for run in runs[label]) for label in (secure, plain))
    if mine and theirs:
        sentence += f"; training takes {duration(mine.mean)} instead of {duration(theirs.mean)}"
    return f"{sentence}."


def _privacy(runs: Runs) -> list[str]:
    return [
        f"{label}: {epsilon_line(of[0].privacy, max(run.epsilon_spent or 0.0 for run in of))}."
        for label, of in runs.items()
        if of[0].privacy is not None
    ]


def _readable(runs: Runs) -> list[str]:
    plain = [label for label, of in runs.items() if of[0].aggregation == "plain"]
    return [f"In {_listed(plain)} the server can read every update."] if plain else []


def _difference(runs: Runs, label: str, other: str, metric: Metric) -> str:
    """Taken seed by seed, so that what both have in common does not count as spread."""
    theirs = {run.seed: metric.at(run) for run in runs[other]}
    pairs = [(metric.at(run), theirs[run.seed]) for run in runs[label] if run.seed in theirs]
    spread = Spread.of(mine - other for mine, other in pairs if mine is not None and other is not None)
    if spread is None or not math.isfinite(spread.mean):
        return f"{label} and {other} cannot be compared."
    by = Spread(mean=abs(spread.mean), sd=spread.sd, n=spread.n)
    text = f"{label} ends {mean_sd(by, metric.form)} {metric.unit} {'above' if spread.mean > 0 else 'below'} {other}"
    verdict = f", which is {'better' if metric.sign * spread.mean > 0 else 'worse'}"
    if metric.form(by.mean) == metric.form(0.0):
        text, verdict = f"{label} ends level with {other}", ""
    if spread.sd is None:
        return f"{text} (one seed: how much chance plays is not known){verdict}."
    within = "within" if by.mean <= spread.sd else "more than"
    return f"{text} ({within} one standard deviation over {spread.n} seeds){'' if within == 'within' else verdict}."


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _title(label: str, runs: Runs) -> str:
    point = runs[label][0].point
    return f"{label} (with {point_text(point)})" if point else label


# --- fairness ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FairnessCheck:
    """One thing that should be equal in all modes. values: what was found, by where."""

    name: str
    status: Status
    detail: str
    values: Mapping[str, str] = field(default_factory=dict)


def fairness(comparison: Comparison) -> tuple[FairnessCheck, ...]:
    """All checks, in the order of the report."""
    runs = comparison.runs
    return (
        _complete(comparison),
        _equal("Initial weights", runs, _initial, "SHA-256 of the first model, by seed"),
        _samples(runs),
        _equal(
            *("Test examples", runs, _tested, "on which the last model of each mode was evaluated, by site"),
            why="the app's own evaluation" if comparison.own_evaluation else "",
        ),
        _equal("Precision", finished(runs), lambda run: run.precision, "data types of the last model"),
        _versions(comparison),
        *_sources(comparison),
    )


def broken(checks: Sequence[FairnessCheck]) -> tuple[FairnessCheck, ...]:
    """The checks that do not hold, or may not."""
    return tuple(check for check in checks if check.status != "holds")


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
    asked = f"seeds {', '.join(map(str, comparison.seeds))}"
    values = missing or {"all modes": f"{asked} finished, with all workers"}
    return _check("Runs", not missing, f"{asked} in every mode", values)


def _samples(runs: Sequence[RunResult]) -> FairnessCheck:
    values, worst = {}, 0.0
    for place, peers in _peers([run for run in finished(runs) if samples_of(run)]):
        found = {_name(run): samples_of(run) or 0 for run in peers}
        low, high = min(found.values()), max(found.values())
        worst = max(worst, (high - low) / high)
        values[place] = _same_or_each({name: count(number) for name, number in found.items()})
    detail = "counted where they were trained on, repetitions with them, all workers together"
    if worst:
        detail += f"; {100 * worst:.2g} % between the fewest and the most"
    private = sorted({run.mode for run in runs if run.privacy is not None})
    if private:
        detail += f"; private, and not compared, in {', '.join(private)}"
    absent = [run.mode for run in finished(runs) if run.privacy is None and not run.samples]
    why = "the app's own loop takes them"
    return _check("Examples trained on", worst <= SAMPLES_TOLERANCE, detail, values, absent, why=why)


def _versions(comparison: Comparison) -> FairnessCheck:
    machines = {source.name: source.machine for source in comparison.sources} or {"all runs": comparison.machine}
    found = {name: machine_text(machine) for name, machine in machines.items()}
    return _check("Machine and versions", len(set(found.values())) == 1, "where the runs were made", found)


def _sources(comparison: Comparison) -> Iterator[FairnessCheck]:
    """Whether merged reports were made under the same conditions."""
    fields = ("app", "sites", "partition", "seeds", "run_config", "settings", "network", "metric")
    for name in fields if comparison.sources else ():
        found = {source.name: _plain_text(getattr(source, name)) for source in comparison.sources}
        equal = len(set(found.values())) == 1
        yield _check(name.replace("_", " ").capitalize(), equal, "of the reports laid over one another", found)


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
    found = {place: {_name(run): value(run) for run in peers} for place, peers in _peers(known)}
    equal = all(len(set(values.values())) == 1 for values in found.values())
    return _check(
        name, equal, detail, {place: _same_or_each(values) for place, values in found.items()}, absent, why=why
    )


def _same_or_each(found: Mapping[str, str]) -> str:
    if len(set(found.values())) == 1:
        words = "1 mode" if len(found) == 1 else f"all {len(found)} modes"
        return f"{next(iter(found.values()))} ({words})"
    return "; ".join(f"{value} ({', '.join(modes)})" for value, modes in _by_value(found).items())


def _by_value(found: Mapping[str, str]) -> dict[str, list[str]]:
    """The keys that have each value."""
    keys: dict[str, list[str]] = {}
    for key, value in found.items():
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
