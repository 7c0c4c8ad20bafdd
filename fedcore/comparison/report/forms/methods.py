"""A paragraph on methods for a paper, made from the runs themselves: data, modes, seeds, budgets, machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fedcore.comparison.modes import in_report
from fedcore.comparison.report.document import Comparison
from fedcore.comparison.report.fairness import broken, fairness, machine_text
from fedcore.comparison.report.story import trials_text
from fedcore.comparison.report.summary import count, finished, point_text
from fedcore.comparison.report.tables import settings_rows
from fedcore.data.reports.latex import escaped
from fedcore.run.settings import ROUNDS_KEY

_SECURE: Final = "Secure aggregation followed Bell et al. (2020): the server learned sums of updates alone."
_BUDGETS: Final = {
    "": "examples in each mode, repetitions counted",
    "examples": "examples in each mode, repetitions counted",
    "steps": "optimizer steps in each mode",
}


def methods_md(comparison: Comparison) -> str:
    """As Markdown."""
    return " ".join(re.sub(r"([\\`*_\[\]<>|#~$])", r"\\\1", sentence) for sentence in sentences(comparison)) + "\n"


def methods_tex(comparison: Comparison) -> str:
    """As LaTeX."""
    return " ".join(map(escaped, sentences(comparison))) + "\n"


def sentences(comparison: Comparison) -> list[str]:
    """What was done, as plain text: a sentence for each thing that a reader needs to repeat it."""
    return [
        *_what(comparison),
        *_data(comparison),
        *_training(comparison),
        *_judging(comparison),
        *_equal(comparison),
        *_where(comparison),
    ]


def _what(comparison: Comparison) -> Iterator[str]:
    modes = ", ".join(f"{mode.label} ({mode.title})" for mode in comparison.modes)
    version = comparison.machine.get("packages", {}).get("fedcore", "of an unknown version")
    yield f"We trained the app {comparison.app} with fedcore {version}: {modes}."
    if comparison.is_simulation:
        yield "All runs were simulated in memory on one machine."
    elif comparison.simulations:
        yield f"The runs of {', '.join(comparison.simulations)} were simulated in memory; the others were processes."
    else:
        yield "Each site was a process of its own, and all bytes were exchanged over sockets of one machine."
    kinds = {in_report(mode.kind).protection for mode in comparison.modes}
    if kinds & {"secure", "private"}:
        yield _SECURE
    for label in comparison.labels:
        runs = [run for run in finished(comparison.runs) if run.mode == label]
        private = [run for run in runs if run.privacy is not None and run.epsilon_spent is not None]
        if not private:
            continue
        run = max(private, key=lambda one: one.epsilon_spent or 0.0)
        assert run.privacy is not None  # noqa: S101 - looked at above
        yield (
            f"In {label} each client had ({run.epsilon_spent:.3g}, {run.privacy.delta:g})-differential privacy "
            f"(noise multiplier {run.privacy.noise_multiplier:g}, clipping norm {run.privacy.clip_norm:g})"
            f"{trials_text(private)}."
        )


def _data(comparison: Comparison) -> Iterator[str]:
    yield f"The data were divided into {comparison.divided}."
    if comparison.split:
        training = ", ".join(count(site.training) for site in comparison.split)
        test = ", ".join(count(site.test) for site in comparison.split)
        yield f"With the first seed the sites had {training} training and {test} test examples."


def _training(comparison: Comparison) -> Iterator[str]:
    seeds = ", ".join(map(str, comparison.seeds))
    several = len(comparison.seeds) > 1
    yield f"Every mode was run with the seed{'s' if several else ''} {seeds}" + (
        ", and values are means and sample standard deviations over them." if several else "."
    )
    rounds = comparison.run_config.get(ROUNDS_KEY)
    kind, _, rest = comparison.budget.partition(":")
    if rounds:
        yield f"A run had {rounds} rounds."
    if len(comparison.modes) > 1 and kind in _BUDGETS:
        yield f"There were as many {_BUDGETS[kind]}."
    elif kind not in _BUDGETS:
        yield f"The budget of a run was {kind}{f' of {rest}' if rest else ''}."
    config = {key: value for key, value in comparison.run_config.items() if key not in (ROUNDS_KEY, "seed")}
    fixed = {key: value for key, value in config.items() if key not in comparison.sweeps and value != ""}
    if fixed:
        yield f"The run config was {point_text(fixed)}."
    changed = {key: value for key, value in comparison.settings.items() if key in comparison.changed}
    if changed:
        yield f"Settings other than fedcore's defaults were {point_text(changed)}."
    for key in comparison.sweeps:
        values = dict.fromkeys(str(run.point[key]) for run in comparison.runs if key in run.point)
        yield f"{key} was swept over {', '.join(values)}."
    if comparison.tune:
        tried = "; ".join(f"{key}: {', '.join(map(str, values))}" for key, values in comparison.tune.items())
        share = f" ({100 * comparison.validation:g} % of the training data)" if comparison.validation else ""
        yield f"Each mode's own values were chosen on validation data of the sites{share} among {tried}."


def _judging(comparison: Comparison) -> Iterator[str]:
    judged_by = comparison.judged_by
    if judged_by is None:
        return
    better = "more" if judged_by.better == "max" else "less"
    where = "by the app's own evaluation" if comparison.own_evaluation else "on the test examples of all sites"
    yield f"Models were judged by {judged_by.name} ({better} is better) of the last model, measured {where}."
    if comparison.network is not None:
        rows = dict(settings_rows(comparison)[0])
        yield f"The clock of the network {comparison.network.name} was simulated: {rows['links']}."


def _equal(comparison: Comparison) -> Iterator[str]:
    checks = fairness(comparison)
    faults = broken(checks)
    equal = [check.name.lower() for check in checks if check not in faults]
    if equal and len(comparison.modes) > 1:
        yield f"Checked from the runs, and equal in all modes: {', '.join(equal)}."
    for check in faults:
        yield f"{'Not equal' if check.status == 'differs' else 'Not known'}: {check.name.lower()} ({check.detail})."
    failed = [run for run in comparison.runs if run.status == "failed"]
    if failed:
        yield f"{len(failed)} of {len(comparison.runs)} runs failed and are in no mean."


def _where(comparison: Comparison) -> Iterator[str]:
    machines: Mapping[str, Mapping[str, Any]]
    machines = {one.name: one.machine for one in comparison.sources} or {"": comparison.machine}
    yield f"Machine and versions: {'; '.join(dict.fromkeys(map(machine_text, machines.values())))}."
