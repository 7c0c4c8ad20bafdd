"""The sentences on what was equal, and on who chose what: budgets, tuning, values of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from fedcore.comparison.design.budget import Budget
from fedcore.comparison.design.equal_budgets import WORTH_SAYING, Equal, amounts, apart
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.summary import (
    NONE,
    AtBudget,
    JudgedMetric,
    Runs,
    ToTarget,
    at_equal,
    count,
    duration,
    listed_names,
    mean,
    points_of,
)
from fedcore.comparison.results import Value
from fedcore.monitoring.formatting import size

_NEXT_TO: Final[Mapping[str, Equal]] = {"": "steps", "steps": "examples", "seconds": "seconds"}
_TAKES: Final = {"steps": "makes", "examples": "trains on"}


def conditions(comparison: Comparison, runs: Runs, metric: JudgedMetric, words: Mapping[str, str]) -> list[str]:
    """All sentences of this page.

    Args:
        runs: finished runs by mode; of a sweep, those of its best point.
        words: what to call a mode, where it has a name of its own in the sentences before.
    """
    return [
        *budget_sentences(comparison, runs, metric, words),
        *tuning_sentences(runs, comparison),
        *selection_sentences(comparison, runs),
    ]


# --- budgets ---------------------------------------------------------------------------------------------------------


def other_budget(comparison: Comparison, runs: Runs) -> Equal | None:
    """The budget whose models stand next to the last ones; None if they would say nothing more.

    Without `--budget` that is equal steps, since the runs have equal examples; under `--budget steps` it is equal
    examples.
    """
    kind = Budget.parse(comparison.budget).kind
    other = _NEXT_TO.get(kind)
    if other is None:
        return None
    used = {label: amount for label, amount in apart(runs, amounts(comparison.runs)[other]).items() if amount > 0}
    if len(used) < 2 or (other != "seconds" and max(used.values()) < WORTH_SAYING * min(used.values())):
        return None
    return other


def budget_sentences(
    comparison: Comparison, runs: Runs, metric: JudgedMetric, words: Mapping[str, str] | None = None
) -> list[str]:
    """Which budget is equal, how many times the other was, and what models have at the other."""
    names = {label: (words or {}).get(label, label) for label in runs}
    if comparison.target is not None and comparison.budget:
        return [_to_target(comparison, runs, metric, names)]
    other = other_budget(comparison, runs)
    if other is None:
        return []
    at = {label: known[other] for label, of in runs.items() if other in (known := at_equal(of, comparison, metric))}
    if other == "seconds":
        return [_at_seconds(comparison, at, metric, names)]
    used = {label: amount for label, amount in apart(runs, amounts(comparison.runs)[other]).items() if amount > 0}
    most, least = _pair(used, names)
    kind = "examples" if other == "steps" else "steps"
    text = (
        f"At equal {kind} {names[most]} {_TAKES[other]} {used[most] / used[least]:.1f} times the {other} of "
        f"{names[least]} ({count(used[most])} against {count(used[least])})"
    )
    if most not in at or least not in at:
        late = " and ".join(names[label] for label in (most, least) if label not in at)
        return [f"{text}; at equal {other} there is nothing of {late}, whose first round takes more."]
    first, second = (_value(at[label], metric) for label in (most, least))
    amount = " and ".join(dict.fromkeys(count(_used(at[label], other)) for label in (most, least)))
    return [f"{text}; at equal {other} ({amount}) {names[most]} has {first}, and {names[least]} {second}."]


def at_what(comparison: Comparison, runs: Runs, label: str, other: str) -> str:
    """By how much the budget that was not held equal differs between two modes, as words after a figure; or ""."""
    kind = other_budget(comparison, runs)
    used = apart(runs, amounts(comparison.runs)[kind]) if kind in ("steps", "examples") else {}
    if not {label, other} <= used.keys():
        return ""
    times = used[label] / used[other]
    if max(times, 1 / times) < WORTH_SAYING:
        return ""
    return f" at equal {'examples' if kind == 'steps' else 'steps'} with {_times(times)} the {kind}"


def _times(factor: float) -> str:
    """0.25 times is no 0.3 times."""
    return f"{factor:.1f} times" if factor >= 1 else f"{factor:.2g} times"


def _pair(used: Mapping[str, float], names: Mapping[str, str]) -> tuple[str, str]:
    """Of which two modes to speak: pooled and together if they are apart, else the most and the least."""
    called = {name: label for label, name in names.items() if label in used and name != label}
    if "pooled" in called and "together" in called:
        most, least = sorted((called["pooled"], called["together"]), key=lambda label: -used[label])
        if used[most] >= WORTH_SAYING * used[least]:
            return most, least
    return max(used, key=lambda label: used[label]), min(used, key=lambda label: used[label])


def _used(at: AtBudget, kind: Equal) -> float:
    spread = {"examples": at.samples, "steps": at.steps, "seconds": at.seconds}[kind]
    return 0.0 if spread is None else spread.mean


def _value(at: AtBudget, metric: JudgedMetric) -> str:
    return NONE if at.metric is None else metric.format_spread(at.metric)


def _at_seconds(
    comparison: Comparison, at: Mapping[str, AtBudget], metric: JudgedMetric, names: Mapping[str, str]
) -> str:
    budget, clock = Budget.parse(comparison.budget), "simulated" if comparison.simulated else "training"
    texts = [f"{names[label]} {_value(one, metric)} ({mean(one.seconds, duration)})" for label, one in at.items()]
    texts += [f"{name} has not ended a round" for label, name in names.items() if label not in at]
    head = f"After {duration(budget.seconds)}" if budget.seconds else "At equal seconds"
    return f"{head} of {clock}, by {metric.name}: {'; '.join(texts)}."


def _to_target(comparison: Comparison, runs: Runs, metric: JudgedMetric, names: Mapping[str, str]) -> str:
    target = comparison.target
    assert target is not None  # noqa: S101 - the caller looks
    texts = []
    for label, of in runs.items():
        there = ToTarget.of([target.reached(run.curve) for run in of])
        if there.reached < there.runs:
            best = [value for run in of if (value := metric.best(run)) is not None]
            much = f", the best is {metric.form(max(best, key=lambda one: metric.sign * one))}" if best else ""
            texts.append(f"{names[label]} in {there.reached} of {there.runs} runs{much}")
            continue
        clock = there.virtual_seconds or there.seconds
        texts.append(
            f"{names[label]} in round {mean(there.round, count)}, after {mean(there.samples, count)} examples, "
            f"{mean(clock, duration)} and {mean(there.bytes, size)}"
        )
    return f"{target} is reached by {'; by '.join(texts)}."


# --- who chose what --------------------------------------------------------------------------------------------------


def tuning_sentences(runs: Runs, comparison: Comparison) -> list[str]:
    """What was chosen on validation data, for each mode."""
    if not comparison.tune:
        return []
    keys = " and ".join(comparison.tune)
    trials = max((len(run.trials) for of in runs.values() for run in of), default=0)
    chosen = "; ".join(f"{label} {_shares([run.tuned for run in of])}" for label, of in runs.items())
    part = f"{100 * (comparison.validation or 0):.3g} % of each site's training examples"
    return [
        f"Each mode has a {keys} of its own, the best of {trials} trials on validation data ({part}), then trained on "
        f"all training examples: {chosen}.",
        *_at_the_end(runs, comparison.tune),
    ]


def _at_the_end(runs: Runs, tune: Mapping[str, Sequence[Value]]) -> Iterator[str]:
    """For which modes the best value is the last that was tried, so that one beyond it may be better."""
    for key, values in tune.items():
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if len(numbers) < len(values) or len(set(numbers)) == 1:
            continue
        for end, what in ((max(numbers), "largest"), (min(numbers), "smallest")):
            labels = [label for label, of in runs.items() if any(run.tuned.get(key) == end for run in of)]
            if labels:
                yield (
                    f"For {listed_names(labels)} the best {key} is the {what} that was tried, {end:g}; values beyond "
                    "it may be better."
                )


def _shares(tuned: Sequence[Mapping[str, Value]]) -> str:
    """The values that were chosen, the most frequent first."""
    counts = Counter(tuple(values.items()) for values in tuned)
    texts = {values: " and ".join(f"{value}" for _, value in values) or NONE for values in counts}
    if len(counts) == 1:
        return next(iter(texts.values()))
    return ", ".join(f"{texts[values]} ({times} of {len(tuned)})" for values, times in counts.most_common())


def selected_on_test(comparison: Comparison, runs: Runs) -> dict[str, str]:
    """By mode, the point of a sweep that the report shows because it is the best on the test examples."""

    def points() -> Iterator[tuple[str, str]]:
        for label, of in runs.items():
            tried = points_of(run for run in comparison.runs if run.mode == label)
            if len(tried) > 1 and of:
                values = ", ".join(f"{key}={value}" for key, value in of[0].point.items())
                yield label, f"{values}, the best of {len(tried)}"

    return dict(points()) if comparison.judged_by else {}


def selection_sentences(comparison: Comparison, runs: Runs) -> list[str]:
    """Which values of a sweep the sentences are about, and that test data chose them."""
    selected = selected_on_test(comparison, runs)
    if not selected:
        return []
    keys = " ".join(f"{key}=..." for key in comparison.sweeps)
    chosen = "; ".join(f"{label} {text}" for label, text in selected.items())
    return [
        f"Test data chose the values of the sweep ({chosen}), so that these figures are better than on new data; "
        f"--tune {keys} chooses on validation data."
    ]
