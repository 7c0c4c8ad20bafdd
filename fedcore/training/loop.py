"""The local loop on whatever engine: train on one client's data, evaluate on its test part, ask for outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedcore.data.types import Split
from fedcore.errors import DataError, UsageError
from fedcore.training.engines import Batch, Engine, EngineConfig, LocalRule, Recipe, World, make_engine
from fedcore.training.engines.batches import TrainingData, steps_of
from fedcore.training.engines.streams import rows_to_pick
from fedcore.training.losses import Loss, LossFunction, as_loss, cross_entropy, one_tensor
from fedcore.training.memory import within_memory
from fedcore.training.metrics import Metric, accuracy, checked_metrics
from fedcore.training.optimizers import OptimizerConfig, Rates
from fedcore.training.structures import Structure, rows_in

_EVALUATION_BATCH = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSummary:
    """What a client reports of its training.

    examples: size of its training part, the weight of its update in FedAvg; of a stream without a length how many it
        has trained on.
    steps: optimizer steps taken.
    loss: mean over the examples seen, each before its step.
    """

    examples: int
    steps: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What a test gave.

    examples: size of the test part.
    targets: what was predicted, and what the loss is the mean over: one for each example, but for sequences one for
        each counted position.
    loss: by the engine's own loss.
    sums: of each metric, by its name; `values` are the figures that they make.
    """

    examples: int
    targets: int
    loss: float
    metrics: tuple[Metric, ...]
    sums: Mapping[str, tuple[float, ...]]

    @property
    def values(self) -> dict[str, float]:
        """The figure of each metric on these examples alone, nan if it means nothing."""
        return {m.name: m.value(torch.tensor(self.sums[m.name], dtype=torch.float64)) for m in self.metrics}

    @property
    def accuracy(self) -> float:
        """Share of right predictions, 0 to 1, 0 if nothing was counted; UsageError if it was not asked for."""
        if accuracy.name not in self.sums:
            raise UsageError("the accuracy was not measured: ask for it by evaluate(..., metrics=[accuracy])")
        right, total = self.sums[accuracy.name]
        return right / max(total, 1.0)

    def reported(self, weight: int) -> dict[str, float | list[float]]:
        """What a client tells of it in a reply of that weight, its number of examples.

        `eval_loss`, and `eval_acc` for the accuracy, are plain means. Of other metrics it is their sums over the
        weight, as `<name>/sums`: the mean over the clients times the total weight is then the federation's sums.
        """
        figures: dict[str, float | list[float]] = {"eval_loss": self.loss}
        for metric in self.metrics:
            if metric is accuracy:
                figures["eval_acc"] = self.accuracy
            else:
                figures[metric.sums_name] = [value / max(weight, 1) for value in self.sums[metric.name]]
        return figures


def local_engine(
    model: nn.Module, optimizer: OptimizerConfig | None = None, *, loss: Loss | LossFunction = cross_entropy
) -> Engine:
    """An engine around a model that exists, in this process alone."""
    recipe = Recipe(build=lambda: model, optimizer=optimizer or OptimizerConfig(), loss=as_loss(loss))
    return make_engine(recipe, EngineConfig(), World(device=World.current().device))


def train(
    engine: Engine,
    data: TrainingData,
    *,
    batch_size: int,
    seed: int,
    epochs: int = 0,
    steps: int = 0,
    clip_norm: float = 0.0,
    rule: LocalRule | None = None,
    sharded: bool = False,
    workers: int = 0,
    rates: Rates | None = None,
) -> TrainSummary:
    """Train the engine's model for a number of epochs, or of optimizer steps.

    Raises ConfigurationError for settings that mean nothing, OutOfMemory with what to lower; the engine can then go on
    with another batch size.

    Args:
        batch_size: examples of one step over all ranks; 0 means one full batch in the order of the data.
        epochs, steps: exactly one is positive; with steps, passes over the data follow one another, each in a new
            order, until the steps are used up (FLamby counts its rounds so).
        seed: decides order and dropout.
        sharded: each rank has data of its own.
        rule: what a federated algorithm changes in each step, `job.rule`.
        workers: processes that read a dataset.
        rates: factors of the optimizer's learning rate; the optimizer has its own again afterwards.
    """
    if rates is not None:
        total = engine.steps_of(data, batch_size=batch_size, epochs=epochs, steps=steps, sharded=sharded)
        rates = rates.over(engine.optimizer, total)
    batches = engine.batches(
        data, batch_size=batch_size, seed=seed, epochs=epochs, steps=steps, sharded=sharded, workers=workers
    )

    def all_steps() -> tuple[int, int, Tensor]:
        step_count, example_count, loss = 0, 0, torch.zeros((), dtype=torch.float64, device=engine.device)
        on_host, added = engine.device.type == "cpu", 0.0
        engine.model.train()
        with engine.seeded(seed):
            for batch in batches:
                if rates is not None:
                    rates.set(step_count)
                part = engine.step(batch, clip_norm=clip_norm, rule=rule)
                if on_host:  # the same sum to the last bit, in a tenth of the time
                    added += part.item()
                else:  # where a number would be waited for
                    loss += part
                step_count += 1
                example_count += batch.total
        return step_count, example_count, loss + added

    doing = f"training with batch size {batch_size or 'all'}"
    try:
        step_count, example_count, loss = within_memory(engine, all_steps, doing)
    finally:
        if rates is not None:
            rates.reset()
    mean = float(engine.total(loss)) / example_count
    refuse_missing(mean, data)
    examples = engine.examples(data, sharded=sharded)
    return TrainSummary(examples=example_count if examples is None else examples, steps=step_count, loss=mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """A client's local training before it begins: what `train` is to be given, where the fields are explained."""

    data: TrainingData
    batch_size: int
    seed: int
    epochs: int = 0
    steps: int = 0
    clip_norm: float = 0.0
    workers: int = 0
    rates: Rates | None = None

    @property
    def examples(self) -> int:
        """Raises ConfigurationError for a stream."""
        return rows_to_pick(self.data)

    @property
    def batches(self) -> tuple[int, int]:
        """Size and number of the batches of one rank alone; raises ConfigurationError for what means nothing."""
        return steps_of(self.examples, batch_size=self.batch_size, epochs=self.epochs, steps=self.steps)

    def run(self, engine: Engine, *, rule: LocalRule | None = None) -> TrainSummary:
        """Train the engine's model by it."""
        return train(
            engine,
            self.data,
            batch_size=self.batch_size,
            seed=self.seed,
            epochs=self.epochs,
            steps=self.steps,
            clip_norm=self.clip_norm,
            rule=rule,
            workers=self.workers,
            rates=self.rates,
        )


def evaluate(
    engine: Engine,
    data: TrainingData,
    *,
    metrics: Sequence[Metric] | None = None,
    sharded: bool = False,
    workers: int = 0,
) -> Evaluation:
    """Loss and metrics of the engine's model on `data`, all of it; its mode and weights stay as they are.

    The loss is the engine's own. 1024 examples are tested at a time, or as many as the data's `test_rows` says.

    Args:
        metrics: by default the accuracy if that is cross entropy, and none elsewhere.
    """
    if metrics is None:
        metrics = default_metrics(engine.recipe.loss)
    count = _Count(engine, checked_metrics(metrics))
    rows = int(getattr(data, "test_rows", _EVALUATION_BATCH))
    was_training = engine.model.training
    engine.model.eval()

    def see_all() -> None:
        for batch in engine.passes(data, batch_size=rows, sharded=sharded, workers=workers):
            count.see(batch)

    try:
        within_memory(engine, see_all, f"testing {rows} examples at a time")
    finally:
        engine.model.train(was_training)
    examples = engine.examples(data, sharded=sharded)
    if examples is None:
        examples = int(engine.total(torch.tensor(float(count.examples), dtype=torch.float64, device=engine.device)))
    return count.evaluation(examples, data)


def default_metrics(loss: Loss) -> tuple[Metric, ...]:
    """The metrics by default: the accuracy with cross entropy, none with other losses."""
    return (accuracy,) if loss is cross_entropy else ()


class _Count:
    """Adds up loss and metrics over the batches of a test.

    What is over the whole test set (`set` metrics, batch losses) waits for its outputs from all ranks.
    """

    def __init__(self, engine: Engine, metrics: tuple[Metric, ...]) -> None:
        self._engine, self._metrics, self._loss = engine, metrics, engine.recipe.loss
        self._sums = {metric.name: self._zeros(metric.length) for metric in metrics}
        self._losses = self._zeros(2)
        self.examples = 0
        self._whole_set = (self._loss.over == "batch" and self._loss.of == "output") or any(
            metric.over == "set" for metric in metrics
        )
        self._outputs: list[tuple[Tensor, Tensor]] = []

    def see(self, batch: Batch) -> None:
        """A batch of the test set; one of weight 0 is not part of it."""
        self.examples += len(batch) if batch.weights is None else 0
        if self._loss.of == "model":
            self._see_with_model(batch)
            return
        output = self._engine.outputs(batch)
        if output is None:
            return
        self._note(output, batch)

    def _see_with_model(self, batch: Batch) -> None:
        """The loss is computed of the model and the batch; outputs are for the metrics alone."""
        number, loss = self._engine.model_losses(batch)
        if batch.weights is None:
            self._losses += torch.stack([number, loss.to(number.device)])
        if self._metrics:
            self._note(self._engine.outputs(batch), batch)

    def _note(self, output: Structure, batch: Batch) -> None:
        if self._whole_set:
            rows = slice(0, 0) if batch.weights is not None else slice(None)
            self._outputs.append((one_tensor(output)[rows], _one_tensor(batch.y)[rows]))
        if batch.weights is None:
            self._add(output, batch.y, whole_set=False)

    def _add(self, output: Structure, targets: Structure, *, whole_set: bool) -> None:
        if self._loss.of == "output" and (self._loss.over == "batch") == whole_set:
            self._losses += self._loss_sum(output, targets)
        for metric in self._metrics:
            if (metric.over == "set") == whole_set:
                self._sums[metric.name] += metric.sums(output, targets).to(self._engine.device)

    def _loss_sum(self, output: Structure, targets: Structure) -> Tensor:
        """Number of targets, and their losses together, float64 [2]."""
        counts = self._loss.counts(targets) if self._loss.counts else torch.ones(rows_in(targets), dtype=torch.float64)
        losses = self._loss(output, targets).double()
        if self._loss.over == "mean":
            losses = losses.expand(rows_in(targets))
        return torch.stack([counts.sum().to(losses.device), (losses * counts.to(losses.device)).sum()])

    def evaluation(self, examples: int, data: TrainingData) -> Evaluation:
        """After the last batch; every rank has to call it. Raises DataError if missing values make nonsense."""
        if self._whole_set and (self._outputs or self._engine.data_size > 1):
            output, targets = (self._engine.together(torch.cat(parts)) for parts in zip(*self._outputs, strict=True))
            if self._engine.data_rank == 0:
                self._add(output, targets, whole_set=True)
        targets_total, loss = self._engine.total(self._losses).tolist()
        sums = {name: tuple(self._engine.total(value).tolist()) for name, value in self._sums.items()}
        mean = loss / max(targets_total, 1.0)
        refuse_missing(mean, data)
        return Evaluation(examples=examples, targets=round(targets_total), loss=mean, metrics=self._metrics, sums=sums)

    def _zeros(self, length: int) -> Tensor:
        return torch.zeros(length, dtype=torch.float64, device=self._engine.device)


def _one_tensor(value: Structure) -> Tensor:
    """Raises UsageError for several: what is over the whole test set needs rows of all ranks."""
    if isinstance(value, Tensor):
        return value
    raise UsageError(
        'a loss with over="batch" or a metric with over="set" needs one tensor of outputs and one of targets, not '
        "several",
        check="several-tensors",
    )


def refuse_missing(result: float, data: TrainingData) -> None:
    """Raise DataError if a result is no number because values of the data are missing, saying which."""
    if math.isfinite(result) or not isinstance(data, Split):
        return
    for name, values in (("features x", data.x), ("targets y", data.y)):
        rows = np.asarray(values).reshape(len(data), -1)
        missing = np.isnan(rows) if rows.dtype.kind == "f" else np.zeros(rows.shape, bool)
        if missing.any():
            columns = np.flatnonzero(missing.any(axis=0))
            names = ", ".join(map(str, columns[:8])) + (", ..." if len(columns) > 8 else "")
            raise DataError(
                f"the {name} have missing values (nan) in {int(missing.any(axis=1).sum())} of {len(data)} examples, in "
                f"columns {names}: fill them in, as with the federation's means, or leave these examples out",
                check="missing-values",
            )


def outputs(module: nn.Module, x: Tensor, *, batch_size: int = 256) -> Tensor:
    """The outputs [n, ...] of a trained model for the inputs x [n, ...], in their order, without gradients.

    The module is called as it is: `fedcore predict` gives it in eval mode. n is at least 1.
    """
    with torch.no_grad():
        return torch.cat([module(part) for part in torch.split(x, batch_size)])
