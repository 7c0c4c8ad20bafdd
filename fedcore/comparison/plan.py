"""Plans a comparison: its job and its runs. Nothing here starts a process or imports an app."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fedcore.comparison.design.budget import Budget
from fedcore.comparison.design.tuning import Tuning
from fedcore.comparison.judging import MetricChoice
from fedcore.comparison.modes import MODES, ChosenMode
from fedcore.comparison.modes.federated import TOGETHER
from fedcore.comparison.run import Kill, PlannedRun
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.flower.app import FlowerApp
from fedcore.run.settings import ROUNDS_KEY, JobSettings
from fedcore.simulation.devices.network import Network
from fedcore.system.assignments import override, parse_assignments, split_assignments
from fedcore.wire.base import Scalar

SEED, PARTITION = "seed", "partition"
ALL_MODES = "all"
RUNS_FOLDER = "runs"
TUNING_FOLDER = "tuning"
_SET = "--set"
_RUN_CONFIG = "the run config"
# What the mode itself, or another option of the command, decides.
_DECIDED = {
    SEED: "--seeds names the seeds",
    "aggregation": "each federated mode has its own aggregation",
    "min-clients": "all sites take part; --clients says how many",
}

Sweep = Mapping[str, tuple[Scalar, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareJob:
    """What is compared. run_config is laid over the app's own; out must be a folder of this job alone.

    seeds: a run of each mode for each; empty for the app's own seed, or one run where it has none.
    partition: "" for the app's own.
    sweep: key -> values, of the run config, of modes, or of [tool.fedcore] for the federated modes; a key with several
        values is swept over, every combination with those of the others.
    kill: in every mode.
    metric: what models are judged by, None for the app's own; it changes no run.
    budget: of what all modes have equally much.
    tuning: what each mode chooses for itself on validation data; None for nothing.
    more_seeds: five seeds from the app's own on, if one takes seconds; for a job that names none.
    """

    app: FlowerApp
    modes: tuple[ChosenMode, ...]
    sites: int
    out: Path
    seeds: tuple[int, ...] = ()
    partition: str = ""
    network: Network | None = None
    run_config: Mapping[str, Scalar] = field(default_factory=dict)
    sweep: Sweep = field(default_factory=dict)
    kill: Kill | None = None
    data_dir: Path | None = None
    metric: MetricChoice | None = None
    budget: Budget = field(default_factory=Budget)
    tuning: Tuning | None = None
    more_seeds: bool = False

    def config(self) -> dict[str, Scalar]:
        """The run config before seeds, sweep and modes."""
        changes = dict(self.run_config)
        for key, value, option in ((SEED, self.seeds, "--seeds"), (PARTITION, self.partition, "--partition")):
            if value and key not in self.app.run_config:
                raise ConfigurationError(
                    f"{option} needs the key {key!r} in the run config of {self.app.name}", check="key-needed"
                )
        if self.partition:
            changes[PARTITION] = self.partition
        return override(self.app.run_config, changes, _RUN_CONFIG)


def plan(job: CompareJob, *, first: int = 1) -> tuple[PlannedRun, ...]:
    """All runs: modes x points of the sweep x seeds, in this order.

    A key of the sweep holds for the modes that know it and do not name it in their own brackets; for the others there
    is nothing to sweep over. Raises ConfigurationError that names everything that is wrong with the modes, UnknownKey
    for a key of the sweep that no mode knows.

    Args:
        first: number of the first run, which the folders are named by.
    """
    config = job.config()
    _check_job(job, config)
    runs: list[PlannedRun] = []
    problems: dict[str, None] = {}
    for mode in job.modes:
        for point, seed in itertools.product(_points(job, mode, config), _seeds(job, config)):
            try:
                runs.append(_run(job, mode, config, point, seed, number=first + len(runs)))
            except ConfigurationError as error:
                problems[f"{mode.label}: {error}"] = None
    if problems:
        raise ConfigurationError("\n".join(problems))
    return tuple(runs)


def plan_trials(job: CompareJob, *, first: int = 1) -> tuple[PlannedRun, ...]:
    """A run on validation data for each value that each mode may choose, with each seed; empty without tuning.

    Raises ConfigurationError for a key that is not each mode's to choose, since all have the same number of trials.

    Args:
        first: as in `plan`.
    """
    if job.tuning is None:
        return ()
    config, values = job.config(), job.tuning.values
    for key in values:
        if key in job.sweep or key in _DECIDED:
            raise ConfigurationError(
                f"--tune {key}: {_DECIDED.get(key, '--set names it, too')}", check="tuned-elsewhere"
            )
        known = set().union(*(_known(mode, config) for mode in job.modes))
        if key not in known:
            raise UnknownKey(key, known, "--tune")
        if without := [mode.label for mode in job.modes if key in mode.keys or key not in _known(mode, config)]:
            raise ConfigurationError(
                f"--tune {key}: every mode has the same number of trials, and {key} is not for {', '.join(without)} to "
                "choose",
                check="unequal-trials",
            )
    trials = plan(replace(job, sweep={**job.sweep, **values}, tuning=None), first=first)
    folder = job.out / TUNING_FOLDER
    return tuple(replace(run, validation=job.tuning.share, folder=folder / run.folder.name) for run in trials)


def parse_seeds(text: str, own: Scalar | None) -> tuple[int, ...]:
    """Read `5` (the app's own seed and the next four), `42,43`, or "" for the app's own alone."""
    if not text:
        return ()
    if not re.fullmatch(r"\d+(,\d+)*,?", text):
        raise ConfigurationError(f"--seeds is a number of seeds, or a list of them such as 42,43: {text!r}")
    if "," in text:
        seeds = tuple(int(word) for word in text.rstrip(",").split(","))
    elif isinstance(own, int):
        seeds = tuple(range(own, own + int(text)))
    else:
        raise ConfigurationError(
            f"--seeds needs the key {SEED!r}, a whole number, in the app's run config", check="key-needed"
        )
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigurationError(f"--seeds names each seed once, at least one: {text!r}")
    return seeds


def parse_sweep(words: list[str], *, option: str = "--set") -> dict[str, tuple[Scalar, ...]]:
    """Read `lr=0.01,0.1 momentum=0.9`: keys, each with one value or several.

    Args:
        option: what gave them.
    """
    sweep: dict[str, tuple[Scalar, ...]] = {}
    for key, values in (pair for word in words for pair in split_assignments(word)):
        # A comma within quotes belongs to the value.
        parts = re.findall(r'(?:"[^"]*"|[^,])+', values)
        if not parts:
            raise ConfigurationError(f"expected key=value or key=value,value, not {key}=")
        parsed = tuple(parse_assignments([f'"{key}"={part}'])[key] for part in parts)
        if key in sweep or len({json.dumps(value) for value in parsed}) != len(parsed):
            raise ConfigurationError(f"{option} names each key once, with each value once: {key}={values}")
        sweep[key] = parsed
    return sweep


def parse_kill(text: str) -> Kill:
    """Read `client-2@3`: the second site's worker, after round 3."""
    match = re.fullmatch(r"client-([1-9]\d*)@([1-9]\d*)", text)
    if match is None:
        raise ConfigurationError(f"--kill is SITE@ROUND, as in client-2@3, not {text!r}")
    return Kill(site=int(match[1]) - 1, round=int(match[2]))


def _check_job(job: CompareJob, config: Mapping[str, Scalar]) -> None:
    """What is wrong whatever the mode."""
    if job.sites < 2:
        raise ConfigurationError("a comparison needs at least 2 clients", check="too-few-clients")
    if job.kill is not None:
        rounds = config.get(ROUNDS_KEY)
        if job.kill.site >= job.sites or (isinstance(rounds, int) and job.kill.round >= rounds):
            raise ConfigurationError(
                f"--kill {job.kill}: there are {job.sites} clients, and {rounds} rounds; name a round before the last",
                check="kill-place",
            )
    if job.network is not None and any(site >= job.sites for site in job.network.slow):
        raise ConfigurationError(
            f"--network slows down a client that does not exist; there are {job.sites}", check="no-such-client"
        )
    known = set().union(*(_known(mode, config) for mode in job.modes))
    for key in job.sweep:
        if key in _DECIDED:
            raise ConfigurationError(f"--set {key}: {_DECIDED[key]}", check="set-by-option")
        if key not in known:
            if key in job.app.settings.to_mapping():
                raise ConfigurationError(
                    f"--set {key} is for {_takers(key)}, which --modes does not name", check="other-modes"
                )
            raise UnknownKey(key, known, _SET)
    if job.app.settings.private and not any(chosen.mode.private for chosen in job.modes):
        raise ConfigurationError(
            TOGETHER.format(" or ".join(name for name, mode in MODES.usable().items() if mode.private))
        )


def _known(chosen: ChosenMode, config: Mapping[str, Scalar]) -> frozenset[str]:
    """The keys that can be set for a mode."""
    return frozenset({*config, *chosen.options, *chosen.mode.setting_names()} - {SEED})


def _takers(key: str) -> str:
    """The modes that a key of [tool.fedcore] is for."""
    *names, last = [name for name, mode in MODES.usable().items() if key in mode.setting_names()]
    return f"the modes {', '.join(names)} and {last}" if names else f"the mode {last}"


def _points(job: CompareJob, mode: ChosenMode, config: Mapping[str, Scalar]) -> Iterator[dict[str, Scalar]]:
    """Values of the keys that hold for a mode, one combination after the other."""
    keys = [key for key in job.sweep if key in _known(mode, config) and key not in mode.keys]
    for values in itertools.product(*(job.sweep[key] for key in keys)):
        yield dict(zip(keys, values, strict=True))


def _seeds(job: CompareJob, config: Mapping[str, Scalar]) -> tuple[int, ...]:
    if job.seeds:
        return job.seeds
    own = config.get(SEED, 0)
    return (own if isinstance(own, int) else 0,)


def _run(
    job: CompareJob,
    chosen: ChosenMode,
    config: Mapping[str, Scalar],
    point: Mapping[str, Scalar],
    seed: int,
    *,
    number: int,
) -> PlannedRun:
    options = chosen.options
    values = {**point, **chosen.config}
    for key in chosen.config:
        if key not in _known(chosen, config):
            raise _refusal(key, chosen, config)
    changes = {key: value for key, value in values.items() if key in config and key not in options}
    rest = {key: value for key, value in values.items() if key not in config and key not in options}
    if SEED in config:
        changes[SEED] = seed
    settings = chosen.mode.settings({**job.app.settings.to_mapping(), **rest}, sites=job.sites)
    return PlannedRun(
        app=job.app,
        chosen=chosen.with_options({key: value for key, value in point.items() if key in options}),
        config=override(config, changes, _RUN_CONFIG),
        settings=settings,
        sites=job.sites,
        seed=seed,
        folder=job.out / RUNS_FOLDER / f"{number:03d}-{chosen.mode.name}-seed-{seed}",
        point={key: value for key, value in point.items() if len(job.sweep[key]) > 1},
        network=job.network,
        kill=job.kill,
        data_dir=job.data_dir,
    )


def _refusal(key: str, chosen: ChosenMode, config: Mapping[str, Scalar]) -> ConfigurationError:
    """Why a key in the brackets of a mode is not for it."""
    if key in _DECIDED:
        return ConfigurationError(f"{key}: {_DECIDED[key]}")
    if chosen.mode.setting_names() and key in JobSettings().to_mapping():
        return ConfigurationError(f"{key} is for {_takers(key)}")
    return UnknownKey(key, _known(chosen, config), "--modes")
