"""The app itself on a real server and clients, in which no training waits for its slowest client: federated-async.

Every model is made of `buffer-size` updates, so a run takes more rounds than its run config names: as many as give all
sites together the same number of trainings. With a network, clients really take times in the proportions that it gives
them, since who is ready first decides whose updates a model is made of; the simulated clock then follows from who was
in which sum.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from fedcore.comparison.federation import ReusableFederation
from fedcore.comparison.measure.clock import paces
from fedcore.comparison.modes.base import InReport, Trained
from fedcore.comparison.modes.federated import Federated, describe, first_point, result_of
from fedcore.comparison.results import Staleness
from fedcore.comparison.run import INITIAL_FILE, MODEL_FILE, PlannedRun
from fedcore.comparison.workers.models import everywhere
from fedcore.comparison.workers.processes import Workers
from fedcore.federation import Policy
from fedcore.run.buffer import buffer_size
from fedcore.run.settings import BUFFERED_SETTINGS, ROUNDS_KEY, JobSettings
from fedcore.wire.events import EventSink, ExchangeDone

QUICKEST_SECONDS: Final = 1.0
"""Of the quickest training, where clients keep the proportions of a network: much longer than an exchange takes."""


@dataclass(frozen=True, kw_only=True)
class FederatedAsync(Federated):
    """FedBuff over real processes (`fedcore.run.buffer`); those of its models that were caught are evaluated."""

    @property
    def grows_trees(self) -> bool:
        return False

    @property
    def in_report(self) -> InReport:
        return replace(super().in_report, twins={"federated": "asynchrony"})

    def setting_names(self) -> frozenset[str]:
        return super().setting_names() | BUFFERED_SETTINGS.keys()

    def settings(self, settings: Mapping[str, Any], *, sites: int) -> dict[str, Any]:
        """With a buffer of a half of the sites, or as few as a sum may be made of, where nobody says another size."""
        checked = super().settings(settings, sites=sites)
        job = JobSettings.from_mapping(checked)
        least = buffer_size(job, sites, Policy.default(sites).min_cohort)
        return {**checked, "buffer-size": job.buffer_size or max(least, math.ceil(sites / 2))}

    def _rounds(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Evaluations are asked of the clients that do not train, however few."""
        return {"asynchrony": "buffered", "min-clients": 0}

    @property
    def warm_group(self) -> str:
        """Its clients keep a pace, which is no business of others."""
        return "federation-async"

    def train(self, run: PlannedRun, workers: Workers, emit: EventSink, warm: ReusableFederation) -> Trained:
        run = _with_all_trainings(run)
        about = describe(run, workers)
        if run.network is not None and run.cost is not None and about.schedule is not None:
            rounds = int(run.config.get(ROUNDS_KEY, 1))
            warm.paces = paces(about.schedule, rounds, run.cost, run.network, quickest=QUICKEST_SECONDS)
        followed = warm.execute(run, emit)
        result = result_of(run, followed, about)
        result = replace(result, staleness=staleness_of(followed.record.exchanges, int(run.settings["max-staleness"])))
        if about.schedule is None or not result.model_sha256:
            return Trained(result=result)
        rest = tuple(replace(point, metrics={}) for point in result.curve if point.round)
        start = first_point(result)
        last = rest[-1].round
        models = {number: path for number, path in followed.versions.items() if 0 < number < last}
        models |= {0: run.folder / INITIAL_FILE, last: run.folder / MODEL_FILE}
        return Trained(
            result=replace(result, curve=(start, *rest), by_server=()),
            models={number: everywhere(run, model) for number, model in sorted(models.items())},
        )


def staleness_of(exchanges: Sequence[ExchangeDone], bound: int) -> Staleness | None:
    """How old the updates of a buffered run were; None if it made no model."""
    sizes = [len(exchange.survivors) for exchange in exchanges if exchange.trains]
    buffers = [exchange.staleness.values() for exchange in exchanges if exchange.trains]
    clocks, updates = Counter[int](), Counter[int]()
    for number, ages in enumerate(buffers):
        clocks.update(ages)
        updates.update(sum(sizes[number - age : number]) for age in ages)
    return (
        Staleness(clocks=dict(sorted(clocks.items())), updates=dict(sorted(updates.items())), bound=bound)
        if clocks
        else None
    )


def _with_all_trainings(run: PlannedRun) -> PlannedRun:
    """The run with as many models as take the trainings of the rounds that it names."""
    rounds = run.config.get(ROUNDS_KEY)
    if not isinstance(rounds, int):
        return run
    size = int(run.settings["buffer-size"])
    return replace(run, config={**run.config, ROUNDS_KEY: math.ceil(rounds * run.sites / size)})
