"""Several apps on a terminal: one comparison after another, and the report of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from fedcore.comparison.app_probe import AppFacts, find_facts
from fedcore.comparison.design.several_apps import app_jobs, check_folder, lay_over, suited
from fedcore.comparison.folder import OutFolder
from fedcore.comparison.plan import CompareJob, plan
from fedcore.comparison.report import Comparison
from fedcore.flower.app import FlowerApp
from fedcore.system.terminal import escape


def run_apps(
    job: CompareJob,
    apps: Sequence[FlowerApp],
    console: Console,
    compare: Callable[[CompareJob, AppFacts], Comparison],
    *,
    seeds: str,
    force: bool,
) -> Comparison:
    """Carry out the comparison of every app; returns the one of all.

    Raises ConfigurationError before the first if any of them cannot work, or if they do not read the same rows.

    Args:
        job: of the first app.
        compare: carries one out.
        seeds: as after `--seeds`.
    """
    check_folder(job.out)
    jobs = app_jobs(job, apps, seeds=seeds)
    facts = {name: (None if force else OutFolder(one.out).facts()) or _facts(one) for name, one in jobs.items()}

    possible = suited(jobs, facts)
    for one in possible.values():
        OutFolder(one.out).check(one, force=force)
    done = {}
    for number, (name, one) in enumerate(possible.items(), start=1):
        console.print(f"app {number} of {len(jobs)}: {escape(name)}", highlight=False, soft_wrap=True)
        done[name] = compare(one, facts[name])
    return lay_over(done, jobs, facts)


def _facts(job: CompareJob) -> AppFacts:
    return find_facts(plan(job)[0])
