"""Studies: questions that a plan of several comparisons answers, each of modes, partitions and seeds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from fedcore.comparison.modes import parse_modes
from fedcore.comparison.plan import PARTITION, SEED, CompareJob, parse_seeds
from fedcore.comparison.report import Comparison
from fedcore.comparison.report.forms.markdown import markdown_table
from fedcore.comparison.report.sites import site_means_table
from fedcore.comparison.report.story import headline
from fedcore.comparison.report.summary import NONE, JudgedMetric, best_points, mean_sd
from fedcore.comparison.report.tables import main_table
from fedcore.errors import ConfigurationError
from fedcore.run.settings import ROUNDS_KEY

STUDY_FILE: Final = "study.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A plan of comparisons of one app.

    question: what it answers.
    modes: as after `--modes`; {rounds} stands for the rounds of the app.
    partitions: a comparison for each; () for the app's own alone.
    seeds: how many, from the app's own on.
    table: what the page of the study shows of each comparison: the figures of sites, or the main table.
    """

    name: str
    question: str
    modes: str
    partitions: tuple[str, ...] = ()
    seeds: int = 5
    table: Literal["sites", "main"] = "main"


STUDIES: Final[Mapping[str, Study]] = {
    study.name: study
    for study in (
        Study(
            name="niid",
            question="What do data that differ from site to site cost a federation, and sites alone?",
            modes="local,federated,centralized",
            partitions=("iid", "dirichlet:1", "dirichlet:0.1"),
            table="sites",
        ),
        Study(
            name="fairness",
            question="Which sites gain by federating, on whose test examples, and does a small one count?",
            modes="local,federated,centralized",
            table="sites",
        ),
        Study(
            name="privacy",
            question="What do secure aggregation and differential privacy cost in accuracy, bytes and seconds?",
            modes="federated-plain,federated,federated-dp[dp-epsilon=8.0,dp-rounds={rounds},clip-norm=1.0],"
            "federated-dp[dp-epsilon=2.0,dp-rounds={rounds},clip-norm=1.0]",
        ),
        Study(
            name="bytes",
            question="How well do models get for how many bytes?",
            modes="allreduce,local-sgd,federated-plain,federated,federated[field-bits=auto],"
            "federated[field-bits=auto,upload-fraction=0.25]",
        ),
    )
}


def study_named(name: str) -> Study:
    """Raises ConfigurationError, with what there is, for another name."""
    if name not in STUDIES:
        raise ConfigurationError(
            f"--study {name}: there is no such study; there are {', '.join(STUDIES)}", check="no-such-study"
        )
    return STUDIES[name]


def study_jobs(study: Study, job: CompareJob, *, own_modes: bool) -> dict[str, CompareJob]:
    """The comparisons of a study, by name, each in a folder of its own below that of `job`.

    What the job says of seeds and the partition is laid over the study's plan.

    Args:
        own_modes: the job's modes are meant, and not the study's.
    """
    rounds = {**job.app.run_config, **job.run_config}.get(ROUNDS_KEY, 1)
    modes = job.modes if own_modes else parse_modes(study.modes.replace("{rounds}", str(rounds)))
    seeds = job.seeds or parse_seeds(str(study.seeds), {**job.app.run_config, **job.run_config}.get(SEED))
    partitions = (job.partition,) if job.partition or not study.partitions else study.partitions
    jobs = {}
    for partition in partitions:
        name = f"{PARTITION}-{re.sub(r'[^A-Za-z0-9.]+', '-', partition)}" if partition else "own-partition"
        jobs[name] = replace(job, modes=modes, seeds=seeds, more_seeds=False, partition=partition, out=job.out / name)
    return jobs


def study_page(study: Study, comparisons: Mapping[str, Comparison]) -> str:
    """The page of a study in Markdown: the question, all means side by side, then each comparison's first sentences."""
    metrics = {name: JudgedMetric.of(one) for name, one in comparisons.items()}
    labels = list(dict.fromkeys(label for one in comparisons.values() for label in one.labels))
    metric = next((one for one in metrics.values() if one is not None), None)
    lines = [f"# Study {study.name}: {study.question}", ""]
    if metric is not None:
        head = (f"{metric.column}, on everybody's test examples", *labels)
        lines += [markdown_table((head, [(name, *_means(one, labels)) for name, one in comparisons.items()])), ""]
    for name, one in comparisons.items():
        table = site_means_table(one) if study.table == "sites" else main_table(one)
        lines += [f"## {name}", "", *(f"{sentence}\n" for sentence in headline(one))]
        lines += [markdown_table(table), ""] if table else []
        lines += [f"The whole report: [{name}/report.md]({name}/report.md).", ""]
    return "\n".join(lines).rstrip() + "\n"


def _means(comparison: Comparison, labels: list[str]) -> list[str]:
    metric, runs = JudgedMetric.of(comparison), best_points(comparison)
    return [
        mean_sd(metric.final(runs[label]), metric.form) if metric is not None and label in runs else NONE
        for label in labels
    ]
