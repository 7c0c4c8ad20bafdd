"""Several apps that read the same rows, each in the same modes: a comparison for each, and one report of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from fedcore.comparison.app_probe import AppFacts
from fedcore.comparison.judging import MetricChoice, choose
from fedcore.comparison.plan import SEED, CompareJob, parse_seeds
from fedcore.comparison.report import Comparison, merge
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp
from fedcore.wire.base import Scalar

APPS_FOLDER: Final = "apps"
"""Below the folder of the whole: the comparison of each app."""


def app_jobs(job: CompareJob, apps: Sequence[FlowerApp], *, seeds: str) -> dict[str, CompareJob]:
    """A comparison of each app, by its name, in a folder of its own.

    A key of the run config or of the sweep is for the apps that know it; one that no app knows is for none, and left to
    each to refuse. An app without a seed draws nothing at random: it runs once.
    Raises ConfigurationError if two apps have one name, UnknownKey for a key of the run config that none knows.

    Args:
        job: of the first app.
        seeds: as after `--seeds`; by default the seed of the first app that has one.
    """
    names = [app.name for app in apps]
    if len(set(names)) < len(names):
        raise ConfigurationError(
            f"the apps are called {', '.join(names)}, and the report needs a name for each: change the name in the "
            "pyproject.toml of one of them",
            check="same-name",
        )
    known = {key for app in apps for key in app.run_config}
    for key in job.run_config:
        if key not in known:
            raise UnknownKey(key, known, "the run config of the apps")
    own = [{**app.run_config, **job.run_config}[SEED] for app in apps if SEED in app.run_config]
    if seeds and not own:
        raise ConfigurationError(f"--seeds: none of the apps has {SEED!r} in its run config", check="key-needed")
    chosen = parse_seeds(seeds, own[0]) if seeds else _first(own)
    return {app.name: _job(job, app, chosen, known) for app in apps}


def _first(own: Sequence[Scalar]) -> tuple[int, ...]:
    return tuple(seed for seed in own[:1] if isinstance(seed, int))


def _job(job: CompareJob, app: FlowerApp, seeds: tuple[int, ...], known: set[str]) -> CompareJob:
    def of_app(key: str) -> bool:
        return key in app.run_config or key not in known

    return replace(
        job,
        app=app,
        out=job.out / APPS_FOLDER / app.name,
        run_config={key: value for key, value in job.run_config.items() if of_app(key)},
        sweep={key: values for key, values in job.sweep.items() if of_app(key)},
        seeds=seeds if SEED in app.run_config else (),
        more_seeds=False,
    )


def check_folder(out: Path) -> None:
    """Raise ConfigurationError for a folder that holds something else than the comparison of several apps."""
    if out.exists() and (not out.is_dir() or (any(out.iterdir()) and not (out / APPS_FOLDER).is_dir())):
        raise ConfigurationError(
            f"--out: {out} holds something else than a comparison of several apps; name another folder",
            check="other-folder",
        )


def check_same_rows(facts: Mapping[str, AppFacts]) -> None:
    """Raise ConfigurationError unless all apps train and are tested on the same rows, as far as targets tell."""
    for name, one in facts.items():
        if one.refusal or not one.targets or not all(one.targets):
            why = one.refusal or "its examples are no arrays"
            raise ConfigurationError(
                f"{name} cannot be compared with another app, since nobody can tell whether both read the same rows: "
                f"{why}. Compare it alone",
                check="unknown-rows",
            )
    first, *others = facts
    for name in others:
        sites = [
            f"client-{site}"
            for site, (mine, theirs) in enumerate(zip(facts[first].targets, facts[name].targets, strict=True), start=1)
            if mine != theirs
        ]
        if sites:
            counts = {one: sum(site.training + site.test for site in facts[one].split) for one in (first, name)}
            rows = ", ".join(f"{number} in {one}" for one, number in counts.items())
            raise ConfigurationError(
                f"{first} and {name} do not read the same targets in the same rows at {', '.join(sites)} ({rows} over "
                "all sites); write both from one table with one --target, and name the same file for both "
                "(--data-dir, --run-config csv=)",
                check="other-rows",
            )


def common_metric(choice: MetricChoice | None, facts: Mapping[str, AppFacts]) -> MetricChoice:
    """The metric that judges all models: the one that was asked for, else the first that all apps have.

    Raises ConfigurationError if an app lacks it, or if they have none in common.
    """
    if choice is not None:
        for one in facts.values():
            choose(choice, one.metrics)
        return choice
    first, *others = (one.metrics for one in facts.values())
    for name, better in first.items():
        if better and all(one.get(name) == better for one in others):
            return MetricChoice(name=name, better=better)
    raise ConfigurationError(f"{', '.join(facts)} have no metric in common", check="no-such-metric")


def suited(jobs: Mapping[str, CompareJob], facts: Mapping[str, AppFacts]) -> dict[str, CompareJob]:
    """The jobs with the modes that their apps can be trained in, judged by one metric.

    Raises ConfigurationError if the apps do not read the same rows, for a mode that none of them can be trained in, an
    app that has no mode, and whatever else an app cannot have.
    """
    check_same_rows(facts)
    metric = common_metric(next(iter(jobs.values())).metric, facts)
    for mode in next(iter(jobs.values())).modes:
        if not any(one.allows(mode) for one in facts.values()):
            refused = "; ".join(f"{name}: {text}" for name, one in facts.items() for text in one.refusals([mode]))
            raise ConfigurationError(f"--modes {refused}", check="modes-refused")
    possible = {}
    for name, job in jobs.items():
        facts[name].check_design(job)
        modes = tuple(mode for mode in job.modes if facts[name].allows(mode))
        if not modes:
            raise ConfigurationError(f"{name}: --modes {'; '.join(facts[name].refusals(job.modes))}", check="no-mode")
        possible[name] = replace(job, modes=modes, metric=metric)
    return possible


def lay_over(
    done: Mapping[str, Comparison], jobs: Mapping[str, CompareJob], facts: Mapping[str, AppFacts]
) -> Comparison:
    """One report of the comparisons of all apps.

    Args:
        done: by the name of the app.
        jobs: as `app_jobs` made them.
        facts: of each app.
    """
    seeds = next((job.seeds for job in jobs.values() if job.seeds), ())
    merged = merge({name: for_seeds(one, () if jobs[name].seeds else seeds) for name, one in done.items()})
    refused = (f"{name}: {text}" for name, job in jobs.items() for text in facts[name].refusals(job.modes))
    return replace(merged, left_out=(*merged.left_out, *refused))


def for_seeds(comparison: Comparison, seeds: tuple[int, ...]) -> Comparison:
    """The comparison of an app without a seed, whose models count for each of these; () leaves it as it is."""
    if not seeds:
        return comparison
    return replace(
        comparison,
        seeds=seeds,
        runs=tuple(replace(run, seed=seed) for run in comparison.runs for seed in seeds),
        sum_checks=tuple(replace(check, seed=seeds[0]) for check in comparison.sum_checks),
    )
