"""A ClientApp out of two functions that take an engine: the same app on one CPU, eight GPUs or several machines.

    app = local_app(model=make_model, optimizer=make_optimizer, train=fit, evaluate=check)

    def fit(engine: Engine, job: LocalJob) -> Metrics:
        summary = train(engine, my_data(job), batch_size=32, epochs=1, seed=..., rule=job.rule)
        return {"num-examples": summary.examples, "train_loss": summary.loss}

`supervised_app` has these two functions ready for what most federations begin with: minibatches of examples with
labels, its settings in the run config.

Either returns a `flwr.clientapp.ClientApp`, so Flower's own simulation and SuperNodes run it too, on one device.
Under fedcore the model goes from file to ranks and back tensor by tensor and never through a Flower record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict, UserConfig
from torch import nn

from fedcore.data.types import Split
from fedcore.data.validation import set_apart
from fedcore.errors import AppError, ConfigurationError
from fedcore.flower.apps import progress_protocol
from fedcore.flower.apps.local_algorithms import AlgorithmWork, weighed
from fedcore.flower.apps.own_model_store import ContextStore, OwnModelStore
from fedcore.flower.apps.personalization import Frozen, Personal, Personalization, with_strategy
from fedcore.flower.apps.statistics import UNNAMED, TrainingColumns
from fedcore.flower.apps.tensor_app import LocalJob, LocalResult, TensorApp, take_examples
from fedcore.flower.node.config import number_of_node
from fedcore.flower.records import arrays_from_state, merged_values, state_from_arrays
from fedcore.state import MemorySink, ModelState
from fedcore.training.algorithms import LocalAlgorithm
from fedcore.training.engines import (
    Engine,
    EngineConfig,
    MakeOptimizer,
    Proximal,
    Recipe,
    World,
    make_engine,
)
from fedcore.training.engines.batches import TrainingData
from fedcore.training.engines.building import modules_together
from fedcore.training.engines.streams import rows_to_pick
from fedcore.training.loop import evaluate
from fedcore.training.losses import Loss, LossFunction, as_loss, cross_entropy
from fedcore.training.metrics import Metric, checked_metrics
from fedcore.training.models.columns import remarks_on_scale, set_statistics, statistics_in
from fedcore.training.seeds import derive_seed
from fedcore.wire.base import MetricValue

__all__ = ["Definition", "LocalApp", "LocalJob", "Metrics", "OptimizerState", "Work", "local_app"]

Metrics: TypeAlias = Mapping[str, MetricValue]
OptimizerState: TypeAlias = Literal["reset", "keep", "average"]
EXAMPLES = "num-examples"
SYNC_KEY = "sync-batch-norm"


Work = Callable[[Engine, LocalJob], Metrics]
"""Trains or evaluates, and returns the metrics, "num-examples" among them."""

TrainAndTest: TypeAlias = tuple[TrainingData, TrainingData]
"""Training part and test part of one client."""

Data: TypeAlias = Callable[[LocalJob], TrainAndTest]
"""Reads both parts of a node."""


@dataclass(slots=True)
class ValidationData:
    """A `Data` that sets validation data apart where `fedcore compare --tune` asks for them.

    The validation part then takes the place of the test part, which nothing reads.

    data: of the app.
    """

    data: Data
    _parts: dict[int, tuple[TrainingData, TrainAndTest]] = field(default_factory=dict)

    def __call__(self, job: LocalJob) -> TrainAndTest:
        """Training and test part, or what is trained on and the validation part."""
        training, test = self.data(job)
        if not (share := progress_protocol.validation_share()):
            return training, test
        number = number_of_node(job.node, job.client)
        # An app returns the same objects in each round; to divide them again would take time and memory.
        if number not in self._parts or self._parts[number][0] is not training:
            seed = derive_seed("validation data", int(job.config.get("seed", 0)), number)
            self._parts[number] = (training, set_apart(training, rows_to_pick(training), share, seed=seed))
        return self._parts[number][1]


def with_validation(data: Data) -> ValidationData:
    """Let `fedcore compare --tune` set validation data apart; for a `local_app` whose own functions call `data`, too.

    `supervised_app` does this itself.
    """
    return data if isinstance(data, ValidationData) else ValidationData(data)


def local_app(
    *,
    model: Callable[[UserConfig], nn.Module | Mapping[str, nn.Module]],
    optimizer: Callable[[UserConfig], MakeOptimizer],
    train: Work,
    evaluate: Work,
    loss: Loss | LossFunction = cross_entropy,
    data: Data | None = None,
    metrics: Sequence[Metric] = (),
    columns: TrainingColumns = UNNAMED,
    personal: Callable[[UserConfig], Personal] = lambda config: Personal(),
    optimizer_state: OptimizerState = "reset",
    adapter: bool = False,
) -> LocalApp:
    """A ClientApp that trains and evaluates on an engine.

    Args:
        model: made from the run config; of a dict of models one module that has them by their names.
        optimizer: likewise, an `OptimizerConfig` or whatever makes one for a model.
        loss: what `train` and `evaluate` of fedcore.training go by; a plain function gives the loss of each example.
        data: training and test part of a node, for others, such as a comparison, to train and test the same model on
            the same examples.
        metrics: what its models are judged by; `evaluate` has to report them (`Evaluation.reported`).
        columns: names of the features, and which of their statistics the clients need before they train.
        personal: what stays on the client, from the run config.
        optimizer_state: momenta from round to round: fresh ones each round, those of this client's last
            round (lost when it restarts), or the federation's average, which is then part of the model that the server
            holds.
        adapter: only what requires gradients is federated, as with LoRA; the rest stays as `model` makes it, the same
            on every client and on the server. So does what `freeze` in the run config names
            (`fedcore.flower.apps.personalization`). `sync-batch-norm` in the run config has batch normalisation go by
            the whole batch on several ranks.
    """
    definition = Definition(
        model=model,
        optimizer=optimizer,
        loss=as_loss(loss),
        personal=personal,
        optimizer_state=optimizer_state,
        adapter=adapter,
    )
    return LocalApp(definition, train, evaluate, data=data, metrics=metrics, columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What `local_app` was given in addition to its two functions; the fields are explained there."""

    model: Callable[[UserConfig], nn.Module | Mapping[str, nn.Module]]
    optimizer: Callable[[UserConfig], MakeOptimizer]
    loss: Loss = cross_entropy
    personal: Callable[[UserConfig], Personal] = lambda config: Personal()
    optimizer_state: OptimizerState = "reset"
    adapter: bool = False

    def build(self, config: UserConfig) -> nn.Module:
        """The model, with the parameters frozen that the run config names."""
        return Frozen.of(config).applied(modules_together(self.model(config)))

    def keeps_weights(self, config: UserConfig) -> bool:
        """Whether something that `model` makes stays as it is, and never travels."""
        return self.adapter or bool(Frozen.of(config))

    def warm(self, config: UserConfig, engine_config: EngineConfig | None, world: World) -> Warm:
        Frozen.of(config).check(lambda: modules_together(self.model(config)))
        personal = with_strategy(self.personal(config), config)
        if personal.ditto and self.optimizer_state != "reset":
            raise ConfigurationError('ditto trains two models in turn, and needs optimizer_state = "reset"')
        recipe = Recipe(
            build=lambda: self.build(config),
            optimizer=self.optimizer(config),
            loss=self.loss,
            keep_weights=personal.parts or self.keeps_weights(config),
            sync_batch_norm=bool(config.get(SYNC_KEY, False)),
        )
        engine = make_engine(recipe, engine_config, world)
        averaged = self.optimizer_state == "average"
        work = Personalization.of(personal, engine, averaged=averaged, adapter=self.adapter, frozen=Frozen.of(config))
        return Warm(dict(config), engine, work)


@dataclass(slots=True)
class Warm:
    """The engine that stays from task to task, and what it was made for."""

    config: UserConfig
    engine: Engine
    personalization: Personalization
    client: int = 0
    histories: dict[int, dict[str, Any]] = field(default_factory=dict)
    has_remarks: bool = False
    """Whether the log says how this client's rows lie on the federation's scale."""


class LocalApp(TensorApp):
    """What `local_app` makes; its engine stays warm from one task to the next.

    data, metrics, columns: as given to `local_app`. With `data` it answers `federated_statistics` as well.
    """

    def __init__(
        self,
        definition: Definition,
        train: Work,
        evaluate: Work,
        *,
        data: Data | None = None,
        metrics: Sequence[Metric] = (),
        columns: TrainingColumns = UNNAMED,
    ) -> None:
        super().__init__()
        self.definition, self._train, self._evaluate = definition, train, evaluate
        self.data, self.metrics, self.columns = data, checked_metrics(metrics), columns
        if data is not None:
            columns.answer_for(self, data)
        self._warm: Warm | None = None
        self.train()(self._answer)
        self.evaluate()(self._answer)

    @property
    def loss(self) -> Loss:
        """What the model is trained and tested by."""
        return self.definition.loss

    @property
    def stays_in_process(self) -> bool:
        """Momenta that a client keeps are those of an optimizer in this process."""
        return self.definition.optimizer_state == "keep"

    def check_engine(self, config: EngineConfig) -> None:
        """Raise ConfigurationError for an engine that this machine or the loss cannot have."""
        world = World.current()
        world.check(config)
        self.loss.check_engine(config, world.size)

    def run(
        self,
        job: LocalJob,
        model: ModelState | None,
        *,
        trains: bool,
        store: OwnModelStore,
        engine_config: EngineConfig | None = None,
    ) -> LocalResult:
        """Do one task; `model` is the global one, which ranks other than 0 need not have.

        Raises AppError for metrics without a whole number of examples, and what the app's own code raises.
        """
        warm = self.warm_for(job.config, engine_config)
        work = warm.personalization
        if trains:
            before, began = warm.engine.examples_trained, time.monotonic()
            result = weighed(self._trained(warm, job, model, store), job.message)
            if progress_protocol.progress_enabled() and warm.engine.world.rank == 0:
                count = warm.engine.examples_trained - before
                progress_protocol.print_progress(
                    progress_protocol.TrainingProgress(round=job.server_round, examples=count)
                )
            progress_protocol.wait_for_pace(began, job.server_round)
            return result
        examples, rest = split_examples(work.evaluate(model, store, lambda: self.tested(warm.engine, job)))
        return LocalResult(examples=examples, metrics=rest)

    def initial_arrays(self, config: UserConfig, statistics: Mapping[str, Any] | None = None) -> ArrayRecord:
        """What a ServerApp begins with: the model without what stays on the clients, with averaged optimizer state.

        Args:
            statistics: what `columns.ask` gave, for the model's layers that stand for columns (`Standardise`).
        """
        warm = self.definition.warm(config, EngineConfig(), World())
        set_statistics(warm.engine.model, statistics or {})
        sink = MemorySink(warm.personalization.layout())
        warm.personalization.write(sink)
        return arrays_from_state(sink.state())

    def statistics_in(self, config: UserConfig, model: ModelState | None) -> dict[str, Any]:
        """What a trained model of the app says of its columns; {} if it does not say it, and for no model."""
        if model is None or self.columns.bounds is None:
            return {}
        return statistics_in(self.definition.warm(config, EngineConfig(), World()).engine.model, model)

    def trained(self, config: UserConfig) -> tuple[str, ...]:
        """Names of the parameters that the clients train and send, for strategies that tell them from buffers."""
        warm = self.definition.warm(config, EngineConfig(), World())
        parameters = warm.engine.module.named_parameters()
        return tuple(name for name, p in parameters if p.requires_grad and name in warm.personalization.shared)

    def _trained(self, warm: Warm, job: LocalJob, model: ModelState | None, store: OwnModelStore) -> LocalResult:
        work = warm.personalization
        steps = AlgorithmWork.of(job, work, store)
        if steps is not None:
            self._check_optimizer(steps.algorithm)
        own = model if steps is None else steps.model_of(model)
        work.prepare(own, store, job.server_round, lambda pull: self._fit(warm, replace(job, rule=pull)))
        rule = _proximal(job, warm.engine) if steps is None else steps.begin(model)
        examples, metrics = split_examples(self._fit(warm, replace(job, rule=rule)))
        if steps is not None:
            metrics |= steps.finish(job.server_round)
        work.keep(store, job.server_round, metrics)
        if self.definition.optimizer_state == "reset":
            warm.engine.release()
        out = work if steps is None else steps
        return LocalResult(examples=examples, metrics=metrics, layout=out.layout(), write=out.write)

    def _remark(self, warm: Warm, job: LocalJob) -> None:
        """Print once, which is for this client's own log, which columns lie far off the federation's scale."""
        if warm.has_remarks or self.data is None or self.columns.bounds is None or warm.engine.world.rank:
            return
        warm.has_remarks = True
        if isinstance(training := self.data(job)[0], Split):
            for line in remarks_on_scale(warm.engine.model, np.asarray(training.x)):
                print(line, flush=True)  # noqa: T201 - what user code prints stays in the client's log

    def _check_optimizer(self, algorithm: LocalAlgorithm) -> None:
        state = self.definition.optimizer_state
        if state == "average" or (algorithm.needs_sgd and state != "reset"):
            raise ConfigurationError(
                f'strategy {algorithm.name} needs local steps that begin without momentum: optimizer_state = "reset", '
                f'this app has "{state}"'
            )

    def _fit(self, warm: Warm, job: LocalJob) -> Metrics:
        self._begin(warm, job.client)
        self._remark(warm, job)
        return self._train(warm.engine, job)

    def tested(self, engine: Engine, job: LocalJob) -> Metrics:
        """Test the engine's model on one client."""
        metrics = self._evaluate(engine, job)
        if progress_protocol.progress_enabled() and self.data is not None:
            result = evaluate(engine, self.data(job)[1], metrics=self.metrics)
            if engine.world.rank == 0:
                progress = progress_protocol.EvaluationProgress(
                    round=job.server_round,
                    examples=result.examples,
                    targets=result.targets,
                    loss=result.loss,
                    sums=result.sums,
                )
                progress_protocol.print_progress(progress)
        return metrics

    def _begin(self, warm: Warm, client: int) -> None:
        """The optimizer as the round begins; in a simulation one engine serves many clients."""
        if self.definition.optimizer_state == "reset":
            warm.engine.reset_optimizer()
        elif self.definition.optimizer_state == "keep" and warm.client != client:
            warm.histories[warm.client] = warm.engine.optimizer.state_dict()
            warm.engine.reset_optimizer()
            if client in warm.histories:
                warm.engine.optimizer.load_state_dict(warm.histories.pop(client))
        warm.client = client

    @property
    def engine(self) -> Engine | None:
        """The one that waits for the next task; None before the first."""
        return self._warm.engine if self._warm is not None else None

    def warm_for(self, config: UserConfig, engine_config: EngineConfig | None) -> Warm:
        """The engine for tasks of one run config; another config takes its place."""
        if self._warm is None or self._warm.config != config:
            if self._warm is not None:
                self._warm.engine.close()
            self._warm = self.definition.warm(config, engine_config, World.current())
        return self._warm

    def _answer(self, message: Message, context: Context) -> Message:
        """The task as Flower's own runtime brings it, in records."""
        trains = message.metadata.message_type.partition(".")[0] == "train"
        arrays = list(message.content.array_records.items())
        if len(arrays) != 1:
            raise AppError(f"the message needs exactly one ArrayRecord, this one has {len(arrays)}")
        key, record = arrays[0]
        job = LocalJob(
            config=context.run_config,
            node=context.node_config,
            message=merged_values(message.content.config_records.values()),
            client=context.node_id,
        )
        result = self.run(job, state_from_arrays(record), trains=trains, store=ContextStore(context))
        metrics = MetricRecord(cast(Any, {EXAMPLES: result.examples, **result.metrics}))
        content = RecordDict({"metrics": metrics})
        if (state := result.state()) is not None:
            content[key] = arrays_from_state(state)
        return Message(content, reply_to=message)


def proximal_mu(job: LocalJob) -> float:
    """FedProx: the strategy sends the strength of the pull towards the model that the round began with."""
    return float(job.message.get("proximal-mu", 0.0))


def _proximal(job: LocalJob, engine: Engine) -> Proximal | None:
    mu = proximal_mu(job)
    return Proximal(mu=mu, anchor=engine.snapshot()) if mu > 0 else None


def split_examples(metrics: Metrics) -> tuple[int, dict[str, MetricValue]]:
    """The number of examples, and the other metrics; raises AppError if there is no such number."""
    rest = dict(metrics)
    return take_examples(rest, EXAMPLES), rest
