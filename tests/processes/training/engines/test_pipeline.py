"""Pipelines against one rank: same seed, same batches, same losses and weights, in every order of work."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedcore.data.types import Split
from fedcore.errors import ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.state import ModelState
from fedcore.training import OptimizerConfig, seeded
from fedcore.training.engines import Proximal, Recipe, World, make_engine
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
from tests.support.ranks import RankFailed

SCHEDULES = ("gpipe", "1f1b", "interleaved")
# Six blocks, an embedding and a head: eight stages at most. 23 examples in batches of 8 end with one of 7.
RUNS = {
    "50 steps": Run(),
    "9 steps": Run(steps=9),
    "clipped, float32": Run(clip_norm=0.5, steps=5, dtype=torch.float32),
    "clipped, float64": Run(clip_norm=0.5, steps=3),
    "adam, head of its own": Run(model=dataclasses.replace(TINY, tied=False), optimizer="adam", steps=5),
    "checkpointed": Run(engine={"checkpoint": True}, steps=3),
    "fewer examples than micro-batches": Run(batch_size=3, steps=9),
}


# One order of work shows what adds up over many steps; the others differ within a step.
CASES = [(name, schedule) for name in RUNS for schedule in SCHEDULES if name != "50 steps" or schedule == "1f1b"]


def check_same(ranks, run, engine, path):
    """Losses are float32 in every case."""
    state = write_initial(run, path)
    alone = trained_alone(run, path)
    together = ranks.run(trained, dataclasses.replace(run, engine={**run.engine, "engine": "pp", **engine}), path)
    for outcome in together:
        np.testing.assert_allclose(outcome.losses, alone.losses, rtol=1e-5)
    assert alone.losses[-1] < alone.losses[0]
    # The norm of the gradient is added up in float32.
    tolerance = 1e-9 if run.dtype is torch.float64 and not run.clip_norm else 1e-5
    assert list(together[0].state) == list(state)
    for name, array in together[0].state.items():
        np.testing.assert_allclose(array, alone.state[name], atol=tolerance, err_msg=name)
    assert [outcome.logits is None for outcome in together] == [True] * (ranks.size - 1) + [False]
    np.testing.assert_allclose(together[-1].logits, alone.logits, atol=1e-5)
    return alone, together


@pytest.mark.parametrize(("name", "schedule"), CASES)
def test_two_ranks_make_the_steps_of_one(two, tmp_path, name, schedule):
    alone, together = check_same(two, RUNS[name], {"schedule": schedule}, tmp_path / "start.safetensors")
    assert max(outcome.held for outcome in together) < 0.65 * alone.held


@pytest.mark.parametrize(("name", "schedule"), [("9 steps", "gpipe"), ("50 steps", "1f1b"), ("9 steps", "interleaved")])
def test_four_ranks_make_the_steps_of_one(four, tmp_path, name, schedule):
    alone, together = check_same(
        four, RUNS[name], {"schedule": schedule, "micro-batches": 4}, tmp_path / "start.safetensors"
    )
    assert max(outcome.held for outcome in together) < 0.4 * alone.held


def test_bf16_follows_float32(two, tmp_path):
    run = Run(dtype=torch.float32, steps=8)
    write_initial(run, tmp_path / "start.safetensors")
    alone = trained(run, tmp_path / "start.safetensors")
    half = dataclasses.replace(run, engine={"engine": "pp", "precision": "bf16"})
    for outcome in two.run(trained, half, tmp_path / "start.safetensors"):
        np.testing.assert_allclose(outcome.losses, alone.losses, rtol=0.02)
        assert outcome.losses != alone.losses


def gradients(run, path, weights, passes):
    """The gradient of a batch whose examples count differently, added up over some backward passes."""
    engine = engine_of(run)
    engine.load(ModelState.open(path))
    (batch,) = engine.batches(examples_of(run), batch_size=0, seed=0, steps=1)
    loss = sum(engine.backward(dataclasses.replace(batch, weights=weights)) for _ in range(passes))
    norm = engine.clip(1e9)
    return float(loss), float(norm), {n: p.grad.numpy() for n, p in engine.module.named_parameters()}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights_of_examples_reach_their_losses(two, tmp_path, schedule):
    run = Run(dtype=torch.float32)
    write_initial(run, tmp_path / "start.safetensors")
    arguments = (tmp_path / "start.safetensors", torch.rand(run.examples, generator=torch.manual_seed(0)), 2)
    loss, norm, alone = gradients(run, *arguments)
    engine = {"engine": "pp", "schedule": schedule, "micro-batches": 4}
    first, last = two.run(gradients, dataclasses.replace(run, engine=engine), *arguments)
    assert first[0] == 0.0
    assert last[0] == pytest.approx(loss, rel=1e-5)
    assert first[1] == last[1] == pytest.approx(norm, rel=1e-5)
    # Of the tied weight both ranks have the whole gradient; a rank knows it by the name that is its own.
    np.testing.assert_array_equal(first[2]["embedding.tokens.weight"], last[2]["head.output.weight"])
    found = {**last[2], **first[2]}
    for name, gradient in alone.items():
        np.testing.assert_allclose(found[name], gradient, atol=2e-6, err_msg=name)


def untrained(run, path):
    """The state that comes back from ranks of which only the first could read it."""
    engine = engine_of(run)
    engine.load(ModelState.open(path) if engine.world.rank == 0 else None)
    return saved(engine), [name for name, _ in engine.module.named_parameters()]


def test_a_state_of_rank_0_alone_comes_back_as_it_was(two, tmp_path):
    run = Run(engine={"engine": "pp", "schedule": "interleaved"})
    state = write_initial(run, tmp_path / "start.safetensors")
    (whole, first), (_, last) = two.run(untrained, run, tmp_path / "start.safetensors")
    assert list(whole) == list(state)
    for name, array in whole.items():
        np.testing.assert_array_equal(array, state[name], err_msg=name)
    assert set(first) | set(last) == set(state)
    assert not set(first) & set(last)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_history_of_the_optimizer_travels(two, tmp_path, optimizer):
    run = Run(steps=3, optimizer=optimizer)
    start, middle = tmp_path / "start.safetensors", tmp_path / "middle.safetensors"
    write_initial(run, start)
    alone = with_history(run, start, middle)
    ranks = dataclasses.replace(run, engine={"engine": "pp", "schedule": "interleaved"})
    together, _ = two.run(with_history, ranks, start, middle)
    assert list(together) == list(alone)
    assert any(name.startswith("optimizer.") for name in alone)
    ModelState.from_arrays(alone).save(middle)
    again, (resumed, _) = with_history(run, start, middle), two.run(with_history, ranks, start, middle)
    for name, array in again.items():
        np.testing.assert_allclose(together[name], alone[name], atol=1e-9, err_msg=name)
        np.testing.assert_allclose(resumed[name], array, atol=1e-9, err_msg=name)


def test_part_of_a_state(two, tmp_path):
    run = Run(engine={"engine": "pp"})
    state = write_initial(run, tmp_path / "start.safetensors")
    names = ["blocks.0.mlp_norm.weight", "head.output.weight"]
    found, _ = two.run(part_of_state, run, tmp_path / "start.safetensors", names)
    assert list(found) == names
    for name in names:
        np.testing.assert_array_equal(found[name], state[name])


def part_of_state(run, path, names):
    engine = engine_of(run)
    engine.load(ModelState.open(path))
    return saved(engine, only=names)


class Masked(nn.Linear):
    """A layer with a constant that no state_dict has."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("mask", torch.arange(8.0), persistent=False)

    def forward(self, x):
        return super().forward(x * self.mask)


def frozen_and_masked():
    """Real numbers in, no plan, first layers without gradients, and a running mean."""
    with seeded(4):
        layers = [nn.Linear(8, 8), nn.ReLU(), Masked(), nn.BatchNorm1d(8), nn.Flatten(), nn.Linear(8, 3)]
    layers[0].requires_grad_(False)
    return nn.Sequential(*layers)


def fine_tuned(engine, keep_weights):
    """Losses of three steps, and the state at the end; from the model's own weights, or from the same as a state."""
    made = engine_of(Run(engine=engine), build=frozen_and_masked, keep_weights=keep_weights)
    if not keep_weights:
        made.load(ModelState.from_arrays({n: t.numpy() for n, t in frozen_and_masked().state_dict().items()}))
    generator = np.random.default_rng(0)
    data = Split(x=generator.normal(size=(12, 8)).astype(np.float32), y=generator.integers(0, 3, 12))
    losses = [float(made.total(made.step(batch))) for batch in made.batches(data, batch_size=0, seed=0, steps=3)]
    return losses, saved(made)


@pytest.mark.parametrize("initial", [True, False], ids=["own weights", "loaded weights"])
def test_a_sequential_model_keeps_what_no_state_holds(two, initial):
    alone, state = fine_tuned({}, True)
    (losses, found), _ = two.run(fine_tuned, {"engine": "pp", "schedule": "gpipe", "micro-batches": 1}, initial)
    np.testing.assert_allclose(losses, alone, rtol=1e-5)
    assert list(found) == list(state)
    for name, array in found.items():
        np.testing.assert_allclose(array, state[name], atol=1e-6, err_msg=name)


FROZEN_DATA = Split(
    x=np.random.default_rng(0).normal(size=(24, 6)).astype(np.float32), y=np.arange(24, dtype=np.int64) % 3
)


def partly_frozen(frozen):
    """Four layers of about one size, some of them frozen; a stage each, of a pipeline of four."""
    with seeded(4):
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 3))
    for layer in frozen:
        model[layer].requires_grad_(False)
    return model


def some_steps(engine, frozen, optimizer):
    """Losses of six clipped steps with FedProx's pull, and then the state with the optimizer's."""
    build = lambda: partly_frozen(frozen)  # noqa: E731
    recipe = Recipe(build=build, optimizer=OptimizerConfig(name=optimizer, lr=0.1, momentum=0.9 * (optimizer == "sgd")))
    world = World.current()
    made = make_engine(recipe, EngineConfig.from_mapping(engine, ranks=world.size), world)
    made.load(ModelState.from_arrays({name: t.numpy() for name, t in build().state_dict().items()}))
    batches, rule = made.batches(FROZEN_DATA, batch_size=8, seed=0, steps=6), Proximal(mu=0.1, anchor=made.snapshot())
    losses = [float(made.total(made.step(batch, clip_norm=0.5, rule=rule))) for batch in batches]
    return losses, saved(made, optimizer=True), made.outputs(next(made.passes(FROZEN_DATA, batch_size=24)))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("frozen", [(0, 1), (3, 5), (0, 3)], ids=str)
def test_stages_without_anything_to_train(two, frozen, schedule):
    """One of two stages, or one or two of four; what is behind them learns, and what is before them too."""
    for optimizer in ("sgd", "adamw"):
        losses, state, _ = some_steps({}, frozen, optimizer)
        (found, together, _), (_, _, outputs) = two.run(
            some_steps, {"engine": "pp", "schedule": schedule}, frozen, optimizer
        )
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        assert list(together) == list(state)
        for name, array in state.items():
            np.testing.assert_allclose(together[name], array, atol=1e-5, err_msg=name)
        assert outputs is not None


@pytest.mark.parametrize("frozen", [(0,), (3,), (1, 3, 5)], ids=str)
def test_four_stages_of_which_some_are_frozen(four, frozen):
    losses, state, _ = some_steps({}, frozen, "sgd")
    for schedule in ("gpipe", "1f1b"):
        (found, together, _), *_ = four.run(some_steps, {"engine": "pp", "schedule": schedule}, frozen, "sgd")
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        for name, array in state.items():
            np.testing.assert_allclose(together[name], array, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("engine", ["single", "ddp", "fsdp", "pp"])
def test_a_model_without_anything_to_train_is_refused(two, engine):
    def words(call):
        with pytest.raises((ConfigurationError, RankFailed), match="requires_grad"):
            call()

    everything = (0, 1, 3, 5)
    if engine == "single":
        words(lambda: some_steps({}, everything, "sgd"))
    else:
        words(lambda: two.run(some_steps, {"engine": engine}, everything, "sgd"))


class Loose(nn.Sequential):
    """A model with a weight beside its layers."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 2), nn.Linear(2, 2))
        self.scale = nn.Parameter(torch.ones(()))


def refusal(build, engine):
    """What an engine says to a model."""
    try:
        engine_of(Run(engine={"engine": "pp", **engine}), build=build)
    except ConfigurationError as error:
        return str(error)
    return ""


def three_layers():
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))


def four_layers():
    return nn.Sequential(three_layers(), nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))


def one_layer():
    return nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("build", "engine", "reason"),
    [
        (one_layer, {}, r"does not know how to cut Linear: give it a method parallel_plan\(\)"),
        (three_layers, {"schedule": "interleaved"}, "of 4 stages needs as many layers with parameters; there are 3"),
        (Loose, {}, "no layer with scale"),
        (four_layers, {"schedule": "interleaved", "micro-batches": 5}, "cannot order 5 micro-batches on 2 ranks"),
        (three_layers, {"micro-batches": 1}, "1f1b needs a micro-batch for each of 2 ranks, not 1"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(two, build, engine, reason):
    for answer in two.run(refusal, build, engine):
        assert re.search(reason, answer)


def figure():
    """The script that draws the figure."""
    path = Path(__file__).parents[4] / "docs" / "make_pipeline_figure.py"
    spec = importlib.util.spec_from_file_location("make_pipeline_figure", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def recorded(schedule, micro_batches):
    return figure().record(schedule, micro_batches)


@pytest.mark.parametrize("micro_batches", [4, 8])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ranks_are_idle_as_long_as_the_formula_says(four, schedule, micro_batches):
    runs = 2 if schedule == "interleaved" else 1
    drawn = figure()
    works = drawn.timeline(four.run(recorded, schedule, micro_batches), runs)
    assert len(works) == 2 * 4 * runs * micro_batches
    idle = drawn.bubble_fraction(schedule, ranks=4, micro_batches=micro_batches)
    assert drawn.idle_fraction(works, 4) == idle
    kept = {"gpipe": [micro_batches] * 4, "1f1b": [4, 3, 2, 1]}.get(schedule)
    assert kept is None or [drawn.most_kept(works, rank) for rank in range(4)] == kept


def test_the_bubble_shrinks_with_more_micro_batches_and_more_runs():
    bubble_fraction = figure().bubble_fraction
    assert bubble_fraction("gpipe", ranks=4, micro_batches=8) == Fraction(3, 11)
    assert bubble_fraction("1f1b", ranks=4, micro_batches=32) == Fraction(3, 35)
    assert bubble_fraction("interleaved", ranks=4, micro_batches=8) == Fraction(3, 19)
    assert bubble_fraction("interleaved", ranks=4, micro_batches=8, runs=4) == Fraction(3, 35)
