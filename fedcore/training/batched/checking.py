"""A few steps in both ways, compared: whether clients that train at once get what they get one by one."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from fedcore.training.batched.together import train_stack
from fedcore.training.engines import Engine, Proximal
from fedcore.training.loop import TrainingPlan

STEPS = 4
"""Steps that are compared: state of an optimizer shows from the second on, and a short last batch soon."""

SLACK = 2.0**-16
"""256 roundings of float32: what sums of a few thousand products differ by in another order, with room to spare."""


def find_difference(engine: Engine, plans: Sequence[TrainingPlan], *, mu: float = 0.0) -> str | None:
    """Train by each plan for a few steps one by one and at once; None if all agree, else in words what does not.

    Both compute the same sums in another order, and either is the exact result of slightly other weights: an error of
    that kind is at most some roundings of each weight. So each client is trained one by one a second time, from weights
    that are wrong by SLACK of their size, with random signs, and that is how far rounding alone may take each tensor w
    after T steps, whatever the model and the optimizer make of it:

        |w together - w alone| <= |w from wrong weights - w alone| + SLACK T |w alone - w at the start|

    in the L2 norm. The last term is for tensors that start at zero. Batches are made longer by one example of weight 0
    when clients train at once, which shows a model that mixes examples. The engine's parameters and buffers are
    afterwards what they were.
    """
    short = [_shortened(plan) for plan in plans]
    before = {name: tensor.detach().clone() for name, tensor in _state(engine).items()}
    try:
        with engine.seeded(short[0].seed):
            unmoved = _drawn()
            together = train_stack(engine, short, mu=mu, padding=1)
            if _drawn() != unmoved:
                return "its model draws random numbers"
        for index, (plan, result) in enumerate(zip(short, together, strict=True), start=1):
            alone = _alone(engine, plan, before, mu)
            if changed := _changed_buffer(engine, before):
                return f"its model changes {changed} as it trains"
            wrong = _alone(engine, plan, before, mu, wrong_by=SLACK)
            if difference := _difference(before, alone, wrong, result.parameters, steps=result.summary.steps):
                return f"client {index} of {len(plans)}: {difference}"
    finally:
        _restore(engine, before)
    return None


def _shortened(plan: TrainingPlan) -> TrainingPlan:
    """The same plan for at most STEPS steps."""
    return replace(plan, epochs=0, steps=min(plan.batches[1], STEPS))


def _alone(
    engine: Engine, plan: TrainingPlan, before: Mapping[str, Tensor], mu: float, *, wrong_by: float = 0.0
) -> dict[str, Tensor]:
    """The trained parameters after the ordinary loop, begun with weights that are wrong by a share of their size."""
    _restore(engine, before)
    rule = Proximal(mu=mu, anchor=engine.snapshot()) if mu > 0 else None
    generator = torch.Generator(engine.device).manual_seed(0)
    with torch.no_grad():
        for parameter in engine.parameters() if wrong_by else ():
            signs = torch.randint(0, 2, parameter.shape, generator=generator, device=engine.device).mul_(2).sub_(1)
            parameter.mul_(1 + wrong_by * signs.to(parameter.dtype))
    engine.reset_optimizer()
    plan.run(engine, rule=rule)
    return {name: p.detach().clone() for name, p in engine.module.named_parameters() if p.requires_grad}


def _difference(
    before: Mapping[str, Tensor],
    alone: Mapping[str, Tensor],
    wrong: Mapping[str, Tensor],
    together: Mapping[str, Tensor],
    *,
    steps: int,
) -> str | None:
    for name, expected in alone.items():
        allowed = _distance(wrong[name], expected) + SLACK * steps * _distance(expected, before[name])
        distance = _distance(together[name], expected)
        if not distance <= allowed:  # nor if either is no number
            return f"{name} is off by {distance:.2g} after {steps} steps, and rounding explains {allowed:.2g}"
    return None


def _distance(a: Tensor, b: Tensor) -> float:
    return float(torch.linalg.vector_norm(a.double() - b.double()))


def _changed_buffer(engine: Engine, before: Mapping[str, Tensor]) -> str | None:
    buffers = engine.module.named_buffers(remove_duplicate=False)
    return next((name for name, now in buffers if not torch.equal(now, before[name])), None)


@torch.no_grad()
def _restore(engine: Engine, before: Mapping[str, Tensor]) -> None:
    for name, tensor in _state(engine).items():
        tensor.copy_(before[name])


def _state(engine: Engine) -> dict[str, Tensor]:
    """Parameters and buffers, also those that no state has, by all their names."""
    module = engine.module
    return dict(chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)))


def _drawn() -> tuple[object, ...]:
    """The state of the generators that vmap does not watch."""
    _, keys, position, *_ = np.random.get_state(legacy=True)
    return random.getstate(), np.asarray(keys).tobytes(), position
