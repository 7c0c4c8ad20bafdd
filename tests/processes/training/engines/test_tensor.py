"""Tensor parallelism against one rank: same seed, same batches, same losses and weights."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from fedcore.errors import ConfigurationError
from fedcore.state import ModelState
from fedcore.training.engines.building import ParallelPlan
from tests.support.gpt_runs import (
    TINY,
    Run,
    engine_of,
    examples_of,
    saved,
    trained,
    trained_alone,
    with_history,
    write_initial,
)

TP = {"engine": "tp"}
MESH = {"engine": "ddp-tp", "tensor": 2}
# 23 examples in batches of 8 end with one of 7, which two groups of ranks share unevenly.
SMALL = dataclasses.replace(TINY, layers=2)
RUNS = {
    "50 steps": Run(model=SMALL),
    "clipped, float32": Run(model=SMALL, clip_norm=0.5, steps=8, dtype=torch.float32),
    "micro-batches": Run(model=SMALL, engine={"micro-batches": 3}, steps=4),
    "adam": Run(model=SMALL, optimizer="adam", steps=8),
    "checkpointed": Run(model=SMALL, engine={"checkpoint": True}, steps=3),
    "head of its own": Run(model=dataclasses.replace(SMALL, tied=False), steps=4),
}


def untrained(run, path):
    """The state that comes back from ranks of which only the first could read it."""
    engine = engine_of(run)
    engine.load(ModelState.open(path) if engine.world.rank == 0 else None)
    return saved(engine)


def largest_difference(run, path):
    """How far the ranks' copies of what is not split are apart after some steps."""
    engine = engine_of(run)
    engine.load(ModelState.open(path))
    for batch in engine.batches(examples_of(run), batch_size=run.batch_size, seed=5, steps=run.steps):
        engine.step(batch)
    own = torch.cat([p.detach().flatten() for p in engine.parameters() if not isinstance(p, DTensor)])
    others = [torch.empty_like(own) for _ in range(engine.world.size)]
    dist.all_gather(others, own)
    return max(float((own - other).abs().max()) for other in others)


def check_same(ranks, run, engine, path):
    """Losses are float32 in every case."""
    state = write_initial(run, path)
    alone = trained_alone(run, path)
    together = ranks.run(trained, dataclasses.replace(run, engine={**run.engine, **engine}), path)
    data = [together[0]] if engine is TP else together[::2]
    for outcome in data:
        np.testing.assert_allclose(outcome.losses, alone.losses, rtol=1e-5)
    assert alone.losses[-1] < alone.losses[0]
    assert list(together[0].state) == list(state)
    for name, array in together[0].state.items():
        np.testing.assert_allclose(
            array, alone.state[name], atol=1e-9 if run.dtype is torch.float64 else 1e-5, err_msg=name
        )
    return alone, together


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_make_the_steps_of_one(two, tmp_path, name):
    alone, together = check_same(two, RUNS[name], TP, tmp_path / "start.safetensors")
    assert max(outcome.held for outcome in together) < 0.65 * alone.held


def test_four_ranks_make_the_steps_of_one(four, tmp_path):
    check_same(four, RUNS["adam"], TP, tmp_path / "start.safetensors")


@pytest.mark.parametrize("name", ["adam", "clipped, float32", "micro-batches"])
def test_two_groups_of_two_make_the_steps_of_one_rank(four, tmp_path, name):
    check_same(four, RUNS[name], MESH, tmp_path / "start.safetensors")


def test_a_state_of_rank_0_alone_comes_back_as_it_was(four, tmp_path):
    run = Run(model=SMALL, steps=0, evaluate=False)
    state = write_initial(run, tmp_path / "start.safetensors")
    for engine in (TP, MESH):
        moved = dataclasses.replace(run, engine=engine)
        outcomes = four.run(untrained, moved, tmp_path / "start.safetensors")
        assert list(outcomes[0]) == list(state)
        for name, array in outcomes[0].items():
            np.testing.assert_array_equal(array, state[name], err_msg=name)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_history_of_the_optimizer_travels(four, tmp_path, optimizer):
    run = Run(model=SMALL, steps=3, optimizer=optimizer)
    start, middle = tmp_path / "start.safetensors", tmp_path / "middle.safetensors"
    write_initial(run, start)
    alone = with_history(run, start, middle)
    together = four.run(with_history, dataclasses.replace(run, engine=MESH), start, middle)[0]
    assert list(together) == list(alone)
    ModelState.from_arrays(alone).save(middle)
    again = with_history(run, start, middle)
    resumed = four.run(with_history, dataclasses.replace(run, engine=MESH), start, middle)[0]
    for name, array in again.items():
        np.testing.assert_allclose(together[name], alone[name], atol=1e-9, err_msg=name)
        np.testing.assert_allclose(resumed[name], array, atol=1e-9, err_msg=name)


def test_copies_stay_equal_to_the_last_bit(four, tmp_path):
    run = Run(model=SMALL, engine=MESH, steps=3)
    write_initial(run, tmp_path / "start.safetensors")
    assert max(four.run(largest_difference, run, tmp_path / "start.safetensors")) == 0.0


def test_every_rank_has_the_output(two, tmp_path):
    run = Run(model=SMALL, steps=1)
    write_initial(run, tmp_path / "start.safetensors")
    alone = trained(run, tmp_path / "start.safetensors")
    for outcome in two.run(trained, dataclasses.replace(run, engine=TP), tmp_path / "start.safetensors"):
        np.testing.assert_allclose(outcome.logits, alone.logits, atol=1e-6)


def test_bf16_follows_float32(two, tmp_path):
    run = Run(model=SMALL, dtype=torch.float32, steps=8, engine={**TP, "precision": "bf16"})
    write_initial(run, tmp_path / "start.safetensors")
    alone = trained(dataclasses.replace(run, engine={}), tmp_path / "start.safetensors")
    np.testing.assert_allclose(two.run(trained, run, tmp_path / "start.safetensors")[0].losses, alone.losses, rtol=0.02)


class Unplanned(nn.Linear):
    """A model that says nothing of how to split it."""


class Planned(nn.Sequential):
    """A layer under the plan that the test gives."""

    def __init__(self, plan: ParallelPlan) -> None:
        super().__init__(nn.Linear(6, 7))
        self.plan = plan

    def parallel_plan(self) -> ParallelPlan:
        return self.plan


def refusal(module):
    """What an engine says to a model."""
    try:
        engine_of(Run(engine=TP), build=lambda: module)
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Unplanned(4, 4), r"give it a method parallel_plan\(\)"),
        (Planned(ParallelPlan(tensor={"0": "colwise"}, heads=3)), "3 heads cannot be divided among 2 ranks"),
        (Planned(ParallelPlan(tensor={"0": "colwise"})), "7 out_features of layer 0 cannot be divided among 2"),
        (Planned(ParallelPlan(tensor={"*.layer": "rowwise"})), r"'\*\.layer', but the model has no such layer"),
    ],
)
def test_models_that_cannot_be_split_are_refused(two, module, reason):
    for answer in two.run(refusal, module):
        assert re.search(reason, answer)
