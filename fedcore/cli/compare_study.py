"""A study on a terminal: its comparisons one after another, and the page that has them all."""

from __future__ import annotations

from collections.abc import Callable

from rich import box
from rich.console import Console
from rich.table import Table

from fedcore.comparison.design.studies import STUDIES, STUDY_FILE, Study, study_jobs, study_page
from fedcore.comparison.plan import CompareJob, plan
from fedcore.comparison.report import Comparison
from fedcore.system.files import write_file
from fedcore.system.terminal import escape


def run_study(
    study: Study,
    job: CompareJob,
    console: Console,
    compare: Callable[[CompareJob], Comparison],
    *,
    own_modes: bool,
) -> list[Comparison]:
    """Carry out every comparison of a study, each with its report, and write the page of the study.

    Raises ConfigurationError before the first one if any of them cannot work.

    Args:
        compare: carries one out, and writes its report.
        own_modes: the job's modes are meant, and not the study's.
    """
    jobs = study_jobs(study, job, own_modes=own_modes)
    for one in jobs.values():
        plan(one)
    done: dict[str, Comparison] = {}
    for number, (name, one) in enumerate(jobs.items(), start=1):
        console.print(f"study {study.name}, {number} of {len(jobs)}: {escape(name)}", highlight=False, soft_wrap=True)
        done[name] = compare(one)
    write_file(job.out / STUDY_FILE, study_page(study, done))
    console.print(f"study: {job.out}/{STUDY_FILE}", highlight=False, soft_wrap=True)
    return list(done.values())


def studies_table() -> Table:
    """Every study with its question and its plan."""
    table = Table(box=box.SIMPLE_HEAVY, pad_edge=False)
    for title in ("study", "question", "modes", "partitions", "seeds"):
        table.add_column(title, overflow="fold")
    for study in STUDIES.values():
        partitions = ", ".join(study.partitions) or "the app's own"
        modes = study.modes.replace("{rounds}", "ROUNDS")
        table.add_row(study.name, study.question, escape(modes.replace(",", ", ")), partitions, str(study.seeds))
    return table
