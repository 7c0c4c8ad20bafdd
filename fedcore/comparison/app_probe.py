"""Facts about an app that its comparison needs, determined in a separate process.

Can the modes train its model, how are its data divided, and what does a step cost on this machine?
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from pydantic import Field

from fedcore.comparison.judging import LOSS, Better
from fedcore.comparison.plan import CompareJob
from fedcore.comparison.report import SiteSplit
from fedcore.comparison.run import ChosenMode, PlannedRun, worker_name
from fedcore.comparison.workers.pooled import further_metrics, scored
from fedcore.comparison.workers.problem import Problem, TreesProblem
from fedcore.comparison.workers.processes import Ended, ReportSink, WorkerReport, Workers
from fedcore.data.types import Split
from fedcore.errors import AppError, ConfigurationError, FedcoreError, UsageError
from fedcore.flower.apps.engine_app import LocalApp, ValidationData
from fedcore.flower.apps.local_algorithms import STRATEGY
from fedcore.flower.apps.personalization import PERSONAL
from fedcore.flower.loading import load_object
from fedcore.simulation.devices.network import Cost, Network
from fedcore.training.algorithms import ALGORITHMS
from fedcore.training.engines import Engine, EngineConfig, World, make_engine
from fedcore.training.engines.batches import Rows, TrainingData
from fedcore.training.engines.streams import rows_to_pick
from fedcore.training.metrics import two_class_logits

# A large data set may have to be read from a slow disk.
_SILENCE_SECONDS = 900.0
_WARM_STEPS, _REPETITIONS = 3, 25
_FIRST_EXAMPLES = 16
_SECONDS = 3.0
"""Of measuring one batch size, after the first few steps."""


class AppFacts(WorkerReport):
    """What was found.

    refusal: why the modes that train the app's model themselves cannot; "" if they can.
    metrics: that every model is evaluated by, the most important first; empty if the app's own evaluation alone can.
    definitions: of these metrics, as far as anybody wrote one down.
    batch_loss: the name of a loss over a whole batch; "" for one of each example.
    strategy: what the run config names, where it asks something of the clients that only a federation can do, and the
        ClientApp is one that does it; "" otherwise.
    split: of the data over the sites; empty if it cannot be known.
    cost: of computation, None without a network.
    validation: whether the app lets validation data be set apart.
    trees: whether boosted trees grow, which take no steps.
    targets: SHA-256 of the training and test targets of each site, in their order; "" if they are no arrays.
    """

    refusal: str
    metrics: dict[str, Better | None] = Field(default_factory=dict)
    definitions: dict[str, str] = Field(default_factory=dict)
    batch_loss: str = ""
    strategy: str = ""
    split: tuple[SiteSplit, ...] = ()
    cost: Cost | None = None
    validation: bool = False
    trees: bool = False
    targets: tuple[str, ...] = ()

    def allows(self, chosen: ChosenMode) -> bool:
        """Whether the app can be trained in this mode."""
        return not self._why_not(chosen)

    def check(self, modes: Sequence[ChosenMode]) -> None:
        """Raise ConfigurationError that names every mode that the app cannot be trained in."""
        if refused := self.refusals(modes):
            raise ConfigurationError("\n".join(f"--modes {text}" for text in refused), check="modes-refused")

    def refusals(self, modes: Sequence[ChosenMode]) -> list[str]:
        """A sentence for each reason, with the modes that it holds for."""
        refused: dict[str, dict[str, None]] = {}
        for mode in modes:
            if reason := self._why_not(mode):
                refused.setdefault(reason, {})[mode.label] = None
        return [f"{', '.join(labels)}: {reason}" for reason, labels in refused.items()]

    def check_strategies(self, runs: Sequence[PlannedRun]) -> None:
        """Raise ConfigurationError if runs of one comparison would be judged in different ways.

        A strategy that keeps models on the clients is judged by what these report, any other by the run's own model.
        """
        named = {str(run.config.get(STRATEGY, "")) for run in runs}
        if (self.strategy or not self.refusal) and (personal := named & PERSONAL) and named - PERSONAL:
            raise ConfigurationError(
                f"strategy {', '.join(sorted(personal))} keeps models on the clients, which are judged by what the "
                f"clients report, and {', '.join(sorted(named - PERSONAL))} does not: compare them one by one, each "
                "with its own --out",
                check="two-judgements",
            )

    def check_design(self, job: CompareJob) -> None:
        """Raise ConfigurationError for a budget or a tuning that this app cannot have."""
        if job.budget.kind == "steps" and self.trees:
            raise ConfigurationError("--budget steps: trees grow without steps", check="unknown-steps")
        if job.budget.kind == "steps" and self.refusal:
            raise ConfigurationError(
                f"--budget steps: nobody counts the steps of {job.app.name}, which trains in its own way: "
                f"{self.refusal}",
                check="unknown-steps",
            )
        target = job.budget.target
        if target is not None and self.metrics and target.metric not in self.metrics:
            raise ConfigurationError(
                f"--budget: {job.app.name} has no metric {target.metric!r}; there is {', '.join(self.metrics)}",
                check="no-such-metric",
            )
        if job.tuning is not None and self.trees:
            raise ConfigurationError(
                f"--tune: {job.app.name} grows trees, which have no validation data; sweep with --set, and test data "
                "choose",
                check="no-validation",
            )
        if job.tuning is not None and not self.validation:
            raise ConfigurationError(
                f"--tune: {job.app.name} offers no validation data. Make its ClientApp with supervised_app, or have "
                "train, evaluate and data of its local_app read examples by one function "
                "with_validation(...) of fedcore.flower.apps.engine_app; else sweep with --set, and test data choose",
                check="no-validation",
            )

    def _why_not(self, chosen: ChosenMode) -> str:
        federation = bool(chosen.mode.in_report.protection)
        if self.strategy in PERSONAL and not federation:
            return (
                f"strategy {self.strategy} keeps models on the clients, next to a federation that this mode does not "
                "have; only the federated modes can do that"
            )
        if self.strategy and self.refusal and chosen.mode.in_report.pooled:
            return (
                f"the app's ServerApp would lead strategy {self.strategy} on pooled data as on one client of several, "
                'which is no centralized training; give the app data=... (local_app), or set strategy="fedavg"'
            )
        if self.refusal and not chosen.mode.any_app:
            return self.refusal
        if reason := chosen.mode.lacks(trees=self.trees):
            return reason
        if self.trees and not chosen.mode.grows_trees:
            return (
                "the app grows boosted trees, which take no steps; centralized, local, xgboost, federated and "
                "federated-plain can have it"
            )
        if self.batch_loss and chosen.mode.divides_batches(chosen.options):
            return (
                f"the loss {self.batch_loss} is over a whole batch, which this mode divides over several processes; "
                "centralized with one rank, local, local-sgd, diloco, ps-async, ps-ssp and the federated modes do not"
            )
        return ""


class Unreadable(WorkerReport):
    """Why nothing can be compared with this app, or with these values of its run config."""

    reason: str


def find_facts(run: PlannedRun) -> AppFacts:
    """Import the app and read its data as `run` would, in a worker process.

    Raises AppError if the app or its data cannot be read.
    """
    with (
        tempfile.TemporaryDirectory(prefix="fedcore-app-") as folder,
        Workers(Path(folder), run.environment()) as workers,
    ):
        workers.start("app", report_facts, run)
        reports = [event.report for event in workers.events(silence=_SILENCE_SECONDS)]
    match reports:
        case [AppFacts() as facts, Ended(exitcode=0)]:
            return facts
        case [Unreadable(reason=reason), Ended(exitcode=0)]:
            raise AppError(f"{run.app.name} cannot be compared: {reason}")
        case [*_, Ended() as end]:
            # Its log goes with the folder; where the app's code stumbled is in the traceback alone.
            raise AppError(f"{run.app.name} cannot be compared: {end.reason}\n{end.traceback}".rstrip())
    raise AssertionError(reports)  # the last report of a worker is its end


def report_facts(report: ReportSink, run: PlannedRun) -> None:
    """In the worker."""
    try:
        problem = Problem.of(run)
    except ConfigurationError as error:
        report(AppFacts(refusal=str(error), strategy=_strategy(run)))
        return
    try:
        if isinstance(problem, TreesProblem) and run.network is not None:
            report(Unreadable(reason="--network counts the seconds of steps, and trees take none: leave it out"))
            return
        split = tuple(_site(problem, site) for site in range(run.sites))
        targets = tuple(_targets(problem, site) for site in range(run.sites))
        cost = _cost(problem, run.network) if run.network is not None else None
    except FedcoreError as error:
        report(Unreadable(reason=str(error)))
    else:
        report(_facts(problem, split, cost).model_copy(update={"targets": targets}))


def _strategy(run: PlannedRun) -> str:
    """The strategy of the run config, where the ClientApp does what it asks of clients in addition to plain steps."""
    name = str(run.config.get(STRATEGY, ""))
    try:
        load_object(run.app.folder, run.app.clientapp, LocalApp)
    except AppError:
        return ""
    return name if name in PERSONAL or name in ALGORITHMS else ""


def _facts(problem: Problem, split: tuple[SiteSplit, ...], cost: Cost | None) -> AppFacts:
    loss = problem.loss
    if any(site.labels is None or site.test_labels is None for site in split):
        two_classes = scored(loss) and _scores_two_classes(problem)
    else:
        two_classes = scored(loss) and bool(split) and all(_of_two_classes(site) for site in split)
    further = further_metrics(problem.metrics, two_classes=two_classes)
    return AppFacts(
        refusal="",
        metrics={
            **{metric.name: metric.better for metric in problem.metrics},
            LOSS: "min",
            **{name: better for name, (better, _) in further.items()},
        },
        definitions={
            **{metric.name: metric.definition for metric in problem.metrics if metric.definition},
            LOSS: f"mean {loss.name} over the test examples, as the app weighs them",
            **{name: meaning for name, (_, meaning) in further.items()},
        },
        batch_loss=loss.name if loss.over == "batch" else "",
        split=split,
        cost=cost,
        validation=isinstance(problem.app.data, ValidationData),
        trees=isinstance(problem, TreesProblem),
    )


def _of_two_classes(site: SiteSplit) -> bool:
    labels = (site.labels, site.test_labels)
    return all(of is not None and of.keys() <= {"0", "1"} for of in labels)


def _scores_two_classes(problem: Problem) -> bool:
    """Whether the model's outputs for the first test examples, and their targets, are of two classes.

    So of data whose labels nobody counts, since each example would have to be read: datasets and streams.
    """
    engine = make_engine(problem.recipe(), EngineConfig(), World(device=World.current().device))
    try:
        engine.model.eval()
        batch = next(iter(engine.passes(problem.test(0), batch_size=_FIRST_EXAMPLES)), None)
        if batch is None or not isinstance(batch.y, torch.Tensor):
            return False
        output = engine.outputs(batch)
        if output is None:
            return False
        two_class_logits(output, batch.y)
    except UsageError:  # more classes, or several positions
        return False
    finally:
        engine.close()
    return True


def _site(problem: Problem, site: int) -> SiteSplit:
    training, test = problem.training(site), problem.test(site)
    return SiteSplit(
        site=worker_name(site),
        training=len(training),  # type: ignore[arg-type]
        test=len(test),  # type: ignore[arg-type]
        labels=_labels(training),
        test_labels=_labels(test),
        training_bytes=_bytes(training),
    )


def _targets(problem: Problem, site: int) -> str:
    """SHA-256 of a site's targets, which other apps that read the same rows have, too."""
    halves = (problem.training(site), problem.test(site))
    digest = hashlib.sha256()
    for half in halves:
        if not isinstance(half, Split):
            return ""
        digest.update(len(half).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(half.y, np.float32).tobytes())
    return digest.hexdigest()


def _bytes(examples: TrainingData) -> int | None:
    """Of all examples as arrays; where they are read one by one, as many times as the first one takes."""
    if isinstance(examples, Split):
        return int(examples.x.nbytes + examples.y.nbytes)
    try:
        first, count = examples[0], len(examples)  # type: ignore[index,arg-type]
    except (TypeError, LookupError, NotImplementedError):
        return None
    parts = first.values() if isinstance(first, Mapping) else first if isinstance(first, tuple | list) else [first]
    sizes = [np.asarray(part).nbytes for part in parts if isinstance(part, torch.Tensor | np.ndarray | int | float)]
    return count * sum(sizes) if sizes else None


def _labels(examples: TrainingData) -> dict[str, int] | None:
    """Examples by label, where each has one: a whole number, or 0.0 and 1.0 as losses of two classes take them."""
    if not isinstance(examples, Split) or examples.y.shape not in {(len(examples.y),), (len(examples.y), 1)}:
        return None
    targets = examples.y.ravel()
    if not np.issubdtype(targets.dtype, np.integer) and not np.isin(targets, (0, 1)).all():
        return None
    return {str(label): count for label, count in sorted(Counter(targets.astype(np.int64).tolist()).items())}


# --- what a step costs -----------------------------------------------------------------------------------------------


def _cost(problem: Problem, network: Network) -> Cost:
    """What the network model says of computation, and measurements for what it leaves open."""
    if network.step is not None and network.example is not None:
        return Cost(step=network.step, example=network.example)
    measured = measure_cost(problem)
    return Cost(
        step=measured.step if network.step is None else network.step,
        example=measured.example if network.example is None else network.example,
    )


def measure_cost(problem: Problem, *, timer: Callable[[], float] = time.perf_counter) -> Cost:
    """Time real steps of the app's model, on one thread, with the batch of its run config and an eighth of it.

    The data are the first site's; the weights are what `build` gives. A step counts as the lower quartile of its
    repetitions, since whatever else the machine does can only make it longer.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        data = problem.training(0)
        large = min(problem.schedule.batch_size or problem.schedule.counts[0], problem.schedule.counts[0])
        engine = make_engine(problem.recipe(), EngineConfig(), World(device=World.current().device))
        sizes = sorted({max(1, large // 8), large})
        try:
            engine.model.train()
            return fit_cost([(size, _seconds(engine, data, size, timer)) for size in sizes])
        finally:
            engine.close()
    finally:
        torch.set_num_threads(threads)


def fit_cost(measured: list[tuple[int, float]]) -> Cost:
    """Least squares over (examples, seconds) of one or two steps, with neither part of the cost below 0."""
    (n1, t1), (n2, t2) = measured[0], measured[-1]
    if n1 == n2 or t2 <= t1:
        return Cost(step=(t1 + t2) / 2, example=0.0)
    example = (t2 - t1) / (n2 - n1)
    if (step := t1 - example * n1) >= 0:
        return Cost(step=step, example=example)
    return Cost(step=0.0, example=(n1 * t1 + n2 * t2) / (n1**2 + n2**2))


def _seconds(engine: Engine, data: TrainingData, size: int, timer: Callable[[], float]) -> float:
    """Of one step on `size` examples, reading and collating them included."""
    generator = torch.Generator().manual_seed(0)
    examples = rows_to_pick(data)
    orders = (torch.randperm(examples, generator=generator)[:size] for _ in range(_WARM_STEPS + _REPETITIONS))
    batches = engine.read(data, (Rows(order, size) for order in orders))
    for _ in range(_WARM_STEPS):
        engine.step(next(batches))
    seconds: list[float] = []
    end = timer() + _SECONDS
    while len(seconds) < _REPETITIONS and (len(seconds) < _WARM_STEPS or timer() < end):
        start = timer()
        # What was read from the device is there: an accelerator has then done the step.
        float(engine.step(next(batches)))
        seconds.append(timer() - start)
    return statistics.quantiles(seconds, n=4)[0]
