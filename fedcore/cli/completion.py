"""Completion of option values; imports nothing heavy, and never raises.

Typer calls these with the part of the word that is there. If a value is a list of assignments in quotes, or of
modes with commas, the last of them is completed. The names of modes, partitions, strategies and trackers are written
down here a second time, since the modules that define them take seconds to import; a test holds the two together.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import typer

from fedcore.system.assignments import flat, kebab
from fedcore.system.plugins import installed

Offer = tuple[str, str]
"""A word, and what it means."""

MODES: Final[Mapping[str, str]] = {
    "all": "every mode that needs no further settings",
    "centralized": "all data in one place",
    "local": "each site alone",
    "xgboost": "XGBoost on all rows in one place, with its own bins",
    "allreduce": "synchronous data parallel, gradients averaged every step",
    "local-sgd": "models averaged every h steps, no server",
    "diloco": "local-sgd with an outer Nesterov optimizer",
    "ps-sync": "parameter server, one step for all workers",
    "ps-async": "parameter server, nobody waits",
    "ps-ssp": "parameter server, at most s steps ahead",
    "federated": "secure aggregation: the server learns the sum alone",
    "federated-plain": "the server reads every update",
    "federated-async": "secure sums of the clients that are ready; nobody waits for the slowest",
    "federated-dp": "secure aggregation with differential privacy",
}
STUDIES: Final[Mapping[str, str]] = {
    "niid": "data that differ from site to site",
    "fairness": "which sites gain, on whose examples",
    "privacy": "the cost of secure aggregation and differential privacy",
    "bytes": "accuracy against bytes",
}
PARTITIONS: Final[Mapping[str, str]] = {
    "iid": "at random",
    "dirichlet:": "labels by a Dirichlet distribution: dirichlet:ALPHA",
    "shards:": "a few labels for each site: shards:COUNT",
    "natural": "by the owners that the data come with",
}
STRATEGIES: Final = (
    "fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fednova", "scaffold", "feddyn", "diloco",
    "adaptive-clipping", "fedbuff", "ditto", "fedbn", "fedper",
)  # fmt: skip
TRACKERS: Final = ("tensorboard", "mlflow", "wandb")
STATUSES: Final = ("waiting", "running", "finished", "failed", "cancelled", "interrupted")


def modes(incomplete: str) -> list[Offer]:
    """The modes of a comparison; of a list with commas the last one."""
    done, _, last = incomplete.rpartition(",")
    lead = f"{done}," if done else ""
    return [(lead + name, title) for name, title in {**MODES, **_installed("modes")}.items() if name.startswith(last)]


def partitions(incomplete: str) -> list[Offer]:
    """How data are divided."""
    return _beginning(incomplete, PARTITIONS)


def studies(incomplete: str) -> list[Offer]:
    """The studies of a comparison."""
    return _beginning(incomplete, STUDIES)


def engines(incomplete: str) -> list[Offer]:
    """The training engines."""
    from fedcore.run.engine_config import ENGINES

    return _beginning(incomplete, dict.fromkeys(ENGINES, ""))


def trackers(incomplete: str) -> list[Offer]:
    """The experiment trackers."""
    return _beginning(incomplete, dict.fromkeys([*TRACKERS, *_installed("trackers")], ""))


def names_of_trackers() -> str:
    """For the help of an option."""
    *names, last = dict.fromkeys([*TRACKERS, *_installed("trackers")])
    return f"{', '.join(names)} or {last}"


def settings(incomplete: str) -> list[Offer]:
    """`[tool.fedcore]`: keys, and the values of those that have a few."""
    from fedcore.run.settings import JobSettings

    # Of the class, since a value of it would be checked, by what takes seconds to import.
    defaults = {kebab(field.name): field.default for field in fields(JobSettings)}
    return _assignments(incomplete, defaults, _choices(JobSettings))


def engine_settings(incomplete: str) -> list[Offer]:
    """Settings of an engine."""
    from fedcore.run.engine_config import ENGINES, EngineConfig

    choices = {**_choices(EngineConfig), "engine": tuple(ENGINES)}
    return _assignments(incomplete, EngineConfig().to_mapping(), choices)


def run_config(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """The run config of the app that the command line names already."""
    config = _project(ctx).get("flwr", {}).get("app", {}).get("config", {})
    return _assignments(incomplete, dict(flat(config)), {"strategy": (*STRATEGIES, *_installed("strategies"))})


def metrics(ctx: typer.Context, incomplete: str) -> list[Offer]:
    """The metrics that the app declares, and those that fedcore's own loops report."""
    own = _project(ctx).get("fedcore", {})
    declared = [*own.get("evaluate-metrics", []), *own.get("train-metrics", []), own.get("best-model", "")]
    names = dict.fromkeys([*(str(name).partition(":")[0] for name in declared), "eval_acc", "eval_loss"])
    both = {f"{name}{end}": what for name in names if name for end, what in _BETTER.items()}
    return _beginning(incomplete, both)


def statuses(incomplete: str) -> list[Offer]:
    """The states of a run."""
    return _beginning(incomplete, dict.fromkeys(STATUSES, ""))


_BETTER: Final = {"": "", ":max": "more is better", ":min": "less is better"}


def _installed(kind: str) -> dict[str, str]:
    """The names that packages bring, and which package brings it; none of them is imported."""
    return {entry.name: entry.dist.name if entry.dist is not None else "" for entry in installed(f"fedcore.{kind}")}


def _assignments(incomplete: str, values: Mapping[str, Any], choices: Mapping[str, tuple[str, ...]]) -> list[Offer]:
    """Of "K=V K=V" the last one: its key, or its value if there are a few to choose from."""
    done, _, last = incomplete.rpartition(" ")
    lead = f"{done} " if done else ""
    key, chosen, begun = last.partition("=")
    if chosen:
        return [(f"{lead}{key}={value}", "") for value in choices.get(key, ()) if value.startswith(begun)]
    return [(f"{lead}{name}=", f"now {value!r}") for name, value in values.items() if name.startswith(key)]


def _choices(cls: type) -> dict[str, tuple[str, ...]]:
    """The fields of a settings class that have a few values, by their keys."""
    choices: dict[str, tuple[str, ...]] = {}
    for name, hint in get_type_hints(cls).items():
        key = kebab(name)
        if get_origin(hint) is Literal:
            choices[key] = tuple(map(str, get_args(hint)))
        elif hint is bool:
            choices[key] = ("true", "false")
    return choices


def _beginning(incomplete: str, offers: Mapping[str, str]) -> list[Offer]:
    return [(name, what) for name, what in offers.items() if name.startswith(incomplete)]


def _project(ctx: typer.Context) -> dict[str, Any]:
    """`[tool]` of the app's pyproject.toml; empty if there is none yet."""
    # An option whose value is being typed ends click's parsing, and the positional arguments are left where they were.
    named = ctx.params.get("app") or ctx.params.get("paths") or ctx.args[:1]
    folder = (named or ["."])[0] if isinstance(named, list | tuple) else named
    try:
        content = tomllib.loads((Path(str(folder)) / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    tool = content.get("tool", {})
    return tool if isinstance(tool, dict) else {}
