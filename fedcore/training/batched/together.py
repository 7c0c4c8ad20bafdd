"""The local loop for several clients at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from fedcore.errors import ConfigurationError
from fedcore.training.batched.rows import StackedBatch, StackedBatches
from fedcore.training.batched.rules import BatchedRules
from fedcore.training.batched.stack import Stack
from fedcore.training.engines import Engine
from fedcore.training.loop import TrainingPlan, TrainSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedClient:
    """What the training of one client gave.

    parameters: those that are trained, by their names, as they are now.
    """

    summary: TrainSummary
    parameters: Mapping[str, Tensor]


def train_together(engine: Engine, plans: Sequence[TrainingPlan], *, mu: float = 0.0) -> list[TrainedClient]:
    """Train one client by each of the plans, all from the engine's parameters, which stay as they are.

    Raises ConfigurationError for plans that mean nothing, and RuntimeError for what vmap cannot do: ask
    `refusal_reason` and `find_difference` first. The loss of a client that diverged is no number.

    Args:
        plans: on arrays that differ in their number of examples alone, with one bound on the gradient's norm.
        mu: strength of the pull towards the start (FedProx).
    """
    with engine.seeded(plans[0].seed):  # nothing may draw; what does leaves the generators as they were
        return train_stack(engine, plans, mu=mu)


def train_stack(
    engine: Engine, plans: Sequence[TrainingPlan], *, mu: float = 0.0, padding: int = 0
) -> list[TrainedClient]:
    """`train_together` with the generators as they are.

    Args:
        padding: examples of weight 0 added to every batch, which change nothing but for models that mix examples.
    """
    if len({plan.clip_norm for plan in plans}) > 1:
        raise ConfigurationError(
            "clients that train at once have one bound on their gradients", check="different-bounds"
        )
    order = sorted(range(len(plans)), key=lambda i: -plans[i].batches[1])
    batches = StackedBatches([plans[i] for i in order], engine.device, padding=padding)
    stack = Stack(engine, len(plans))
    losses, weights = (torch.zeros(len(plans), dtype=torch.float64, device=engine.device) for _ in range(2))
    engine.model.train()
    for batch in batches:
        stack.narrow(len(batch.totals))
        values = _losses(engine, stack.leaves, batch)
        stack.step(values, batch.totals, clip_norm=plans[0].clip_norm, mu=mu)
        losses[: stack.clients] += values.detach()
        weights[: stack.clients] += batch.totals
    means = (losses / weights).tolist()
    trained = {
        client: TrainedClient(
            summary=TrainSummary(examples=plans[client].examples, steps=batches.steps[index], loss=means[index]),
            parameters={name: value[index] for name, value in stack.values.items()},
        )
        for index, client in enumerate(order)
    }
    return [trained[client] for client in range(len(plans))]


def _losses(engine: Engine, leaves: Mapping[str, Tensor], batch: StackedBatch) -> Tensor:
    """The sum of the losses of each client's batch [k]."""

    def output(own: Mapping[str, Tensor], x: Tensor) -> Tensor:
        with BatchedRules():  # not around the rest: it sees every call of torch, which takes longer than some of them
            values: Tensor = functional_call(engine.module, dict(own), (x,))
        return values

    def of_all(own: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return engine.recipe.loss.sum(output(own, x), y)

    def of_some(own: Mapping[str, Tensor], x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return (engine.recipe.loss(output(own, x), y) * weights).sum()

    values: Tensor
    if batch.weights is None:
        values = torch.vmap(of_all, randomness="error")(dict(leaves), batch.x, batch.y)
    else:
        values = torch.vmap(of_some, randomness="error")(dict(leaves), batch.x, batch.y, batch.weights)
    return values
