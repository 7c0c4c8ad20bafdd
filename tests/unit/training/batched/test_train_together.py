"""Clients that train at once against the same clients one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from support.raising import raises
from torch import Tensor, nn

from fedcore.data import Split
from fedcore.errors import ConfigurationError, UsageError
from fedcore.run.engine_config import EngineConfig
from fedcore.training.batched import clients_that_pay, find_difference, refusal_reason, train_together
from fedcore.training.batched.rows import StackedBatches
from fedcore.training.batched.rules import StackedLinear
from fedcore.training.batched.stack import clip_each
from fedcore.training.engines import Engine, Proximal, Recipe, World, make_engine
from fedcore.training.loop import TrainingPlan, local_engine
from fedcore.training.losses import Loss, cox, squared_error
from fedcore.training.models import ClassWeights
from fedcore.training.models.small import lenet
from fedcore.training.optimizers import OptimizerConfig

EXAMPLES = (12, 5, 12, 1, 8)
"""Of each client: with batches of 5, three steps, one, three, one, two."""


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


class Tied(nn.Module):
    """One weight in two places, a frozen one, a number, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.fixed = nn.Linear(4, 3)
        self.fixed.requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fixed(self.scale * self.second(torch.tanh(self.first(x + self.shift))))
        return found


def data(examples: int, seed: int, shape: tuple[int, ...] = (4,)) -> Split:
    rng = np.random.default_rng(seed)
    return Split(x=rng.normal(size=(examples, *shape)).astype(np.float32), y=rng.integers(0, 3, examples))


def plans(**fields: Any) -> list[TrainingPlan]:
    given = {"batch_size": 5, "epochs": 1, **fields}
    return [TrainingPlan(data=data(n, i), seed=10 + i, **given) for i, n in enumerate(EXAMPLES)]


def weights(engine: Engine) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in engine.module.named_parameters() if p.requires_grad}


def one_by_one(engine: Engine, given: Sequence[TrainingPlan], mu: float) -> list[tuple[Any, dict[str, Tensor]]]:
    start, found = weights(engine), []
    own = dict(engine.module.named_parameters())
    for plan in given:
        with torch.no_grad():
            for name, value in start.items():
                own[name].copy_(value)
        engine.reset_optimizer()
        rule = Proximal(mu=mu, anchor=engine.snapshot()) if mu else None
        found.append((plan.run(engine, rule=rule), weights(engine)))
    with torch.no_grad():
        for name, value in start.items():
            own[name].copy_(value)
    return found


def compare(engine: Engine, given: Sequence[TrainingPlan], mu: float = 0.0) -> None:
    """Both ways, from the engine's weights; a client's update has to agree to 1e-5 of its size."""
    start = weights(engine)
    together = train_together(engine, given, mu=mu)
    assert all(torch.equal(value, start[name]) for name, value in weights(engine).items()), "the engine's own stay"
    for ours, (summary, alone) in zip(together, one_by_one(engine, given, mu), strict=True):
        assert (ours.summary.examples, ours.summary.steps) == (summary.examples, summary.steps)
        assert ours.summary.loss == pytest.approx(summary.loss, rel=1e-5)
        off = sum(float((ours.parameters[name] - value).square().sum()) for name, value in alone.items())
        moved = sum(float((start[name] - value).square().sum()) for name, value in alone.items())
        assert moved > 0
        assert off <= 1e-10 * moved


class TestAgainstOneByOne:
    @pytest.mark.parametrize(
        "optimizer",
        [
            OptimizerConfig(lr=0.3),
            OptimizerConfig(lr=0.3, momentum=0.9, weight_decay=0.01),
            OptimizerConfig(name="adam", lr=0.01),
            OptimizerConfig(name="adamw", lr=0.01, weight_decay=0.1),
            lambda model: torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9, nesterov=True),
            lambda model: torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True),
            lambda model: torch.optim.RMSprop(model.parameters(), lr=0.01, momentum=0.5, centered=True),
            lambda model: torch.optim.SGD(
                [
                    {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
                    {"params": [p for p in model.parameters() if p.dim() < 2]},
                ],
                lr=0.3,
            ),
        ],
        ids=["sgd", "momentum", "adam", "adamw", "nesterov", "amsgrad", "rmsprop", "groups"],
    )
    def test_optimizers(self, optimizer: Any) -> None:
        compare(local_engine(mlp(), optimizer), plans(epochs=2))

    @pytest.mark.parametrize("options", [{"batch_size": 0}, {"batch_size": 1}, {"epochs": 0, "steps": 4}])
    def test_batches(self, options: dict[str, int]) -> None:
        compare(local_engine(mlp(), OptimizerConfig(lr=0.3)), plans(**options))

    @pytest.mark.parametrize("mu", [0.0, 0.5])
    @pytest.mark.parametrize("clip_norm", [0.0, 0.05, 1e6])
    def test_proximal_pull_and_bound_on_the_norm(self, mu: float, clip_norm: float) -> None:
        compare(local_engine(mlp(), OptimizerConfig(lr=0.3)), plans(clip_norm=clip_norm, epochs=3), mu)

    def test_tied_and_frozen_tensors_and_buffers(self) -> None:
        compare(local_engine(Tied(), OptimizerConfig(name="adam", lr=0.01)), plans(epochs=2))

    def test_convolutions_and_grey_levels(self) -> None:
        rng = np.random.default_rng(0)
        images = [
            Split(x=rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), y=rng.integers(0, 3, n)) for n in (6, 3, 4)
        ]
        given = [TrainingPlan(data=own, batch_size=4, epochs=1, seed=i) for i, own in enumerate(images)]
        compare(local_engine(lenet(3), OptimizerConfig(lr=0.05)), given)

    def test_another_loss(self) -> None:
        rng = np.random.default_rng(0)
        numbers = [
            Split(x=rng.normal(size=(n, 4)).astype(np.float32), y=rng.normal(size=n).astype(np.float32)) for n in (6, 3)
        ]
        given = [TrainingPlan(data=own, batch_size=4, epochs=2, seed=i) for i, own in enumerate(numbers)]
        compare(local_engine(nn.Linear(4, 1), OptimizerConfig(lr=0.05), loss=squared_error), given)

    def test_a_client_that_has_ended_stays_bit_for_bit(self) -> None:
        engine = local_engine(mlp(), OptimizerConfig(name="adam", lr=0.01))
        given = plans()
        alone = {n: train_together(engine, [given[3], given[4]])[0].parameters[n] for n in weights(engine)}
        # Client 3 takes one step; whether the others take two or thirty must not move it.
        longer = [plan if i == 3 else TrainingPlan(data=plan.data, batch_size=5, epochs=10, seed=1)
                  for i, plan in enumerate(given)]  # fmt: skip
        found = train_together(engine, longer)
        assert found[3].summary.steps == 1
        for name, value in alone.items():
            torch.testing.assert_close(found[3].parameters[name], value, rtol=0, atol=1e-7)

    def test_one_client_that_diverges_leaves_the_others_alone(self) -> None:
        given = plans()
        broken = data(12, 0)
        broken.x[3, 1] = np.nan
        given[0] = TrainingPlan(data=broken, batch_size=5, epochs=1, seed=1)
        engine = local_engine(mlp(), OptimizerConfig(lr=0.3))
        found = train_together(engine, given)
        assert np.isnan(found[0].summary.loss)
        assert all(torch.isfinite(value).all() for one in found[1:] for value in one.parameters.values())

    def test_nobody_draws_from_the_generators_of_others(self) -> None:
        engine = local_engine(mlp())
        before = torch.get_rng_state()
        train_together(engine, plans())
        assert torch.equal(torch.get_rng_state(), before)

    def test_two_bounds_on_the_norm_are_refused(self) -> None:
        given = [*plans(), *plans(clip_norm=1.0)]
        with raises(ConfigurationError, check="different-bounds"):
            train_together(local_engine(mlp()), given)


class TestBatches:
    def test_padding_has_no_weight_and_repeats_the_first_example(self) -> None:
        given = [TrainingPlan(data=data(n, n), batch_size=3, epochs=1, seed=n) for n in (5, 2)]
        first, second = StackedBatches(given, torch.device("cpu"))
        assert first.x.shape == (2, 3, 4)
        assert first.totals.tolist() == [3, 2]
        assert first.weights is not None
        assert first.weights.tolist() == [[1, 1, 1], [1, 1, 0]]
        assert torch.equal(first.x[1, 2], first.x[1, 0])
        assert second.x.shape == (1, 2, 4)
        assert second.weights is None

    def test_the_rows_are_those_of_the_loop(self) -> None:
        plan = TrainingPlan(data=data(7, 0), batch_size=3, epochs=2, seed=5)
        engine = local_engine(mlp())
        expected = list(engine.batches(plan.data, batch_size=3, seed=5, epochs=2))
        for ours, theirs in zip(StackedBatches([plan], torch.device("cpu")), expected, strict=True):
            assert torch.equal(ours.x[0], theirs.x)
            assert torch.equal(ours.y[0], theirs.y)

    def test_clients_with_more_steps_come_first(self) -> None:
        with raises(UsageError, check="steps-order"):
            StackedBatches(list(reversed(plans()[:2])), torch.device("cpu"))


class TestRules:
    @pytest.mark.parametrize("bias", [True, False])
    def test_the_gradient_of_a_stacked_linear_layer(self, bias: bool) -> None:
        x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(3, 2, 5, dtype=torch.float64, requires_grad=True)
        of_bias = torch.randn(3, 2, dtype=torch.float64, requires_grad=True) if bias else None
        assert torch.autograd.gradcheck(StackedLinear.apply, (x, weight, of_bias))

    def test_norms_are_bounded_for_each_client_by_itself(self) -> None:
        gradients = [torch.tensor([[3.0], [0.3]]), torch.tensor([4.0, 0.4])]
        clip_each(gradients, 1.0)
        np.testing.assert_allclose(gradients[0].numpy(), [[0.6], [0.3]], rtol=1e-5)
        np.testing.assert_allclose(gradients[1].numpy(), [0.8, 0.4], rtol=1e-5)


class Mixing(nn.Module):
    """Every example's output depends on the others of its batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x - x.mean(dim=0))
        return found


class Counting(nn.Module):
    """Counts its batches in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + 1
        found: Tensor = self.layer(x)
        return found


class Drawing(nn.Module):
    """Draws from NumPy's generator, which vmap does not watch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x) * float(np.random.random())
        return found


class Looking(nn.Module):
    """Decides by the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x if x.sum() > 0 else -x)
        return found


class TestRefusals:
    @pytest.mark.parametrize(
        ("layer", "said"),
        [
            (nn.BatchNorm1d(4), "BatchNorm1d (0), whose examples depend on each other"),
            (nn.Dropout(0.1), "Dropout (0), which draws numbers"),
            (nn.MultiheadAttention(4, 2, dropout=0.1), "MultiheadAttention (0), which draws numbers"),
            (nn.GRU(4, 3), "GRU (0), which torch.func.vmap has no rule for"),
            (nn.InstanceNorm1d(4, track_running_stats=True), "counts what it sees"),
            (ClassWeights(3), "ClassWeights (0), which weighs examples"),
        ],
    )
    def test_layers(self, layer: nn.Module, said: str) -> None:
        model = nn.Sequential(layer, nn.Linear(4, 3))
        assert said in str(refusal_reason(local_engine(model)))

    @pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.LayerNorm(4), nn.GroupNorm(2, 4), ClassWeights(3, "none")])
    def test_layers_that_do_not_matter(self, layer: nn.Module) -> None:
        assert refusal_reason(local_engine(nn.Sequential(layer, nn.Linear(4, 3)))) is None

    def test_a_loss_over_the_batch(self) -> None:
        assert refusal_reason(local_engine(mlp(), loss=cox)) == "its loss cox is over a whole batch"

    def test_optimizers(self) -> None:
        def lbfgs(model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.LBFGS(model.parameters())

        assert "LBFGS" in str(refusal_reason(local_engine(mlp(), lbfgs)))  # type: ignore[arg-type]
        other = nn.Linear(2, 2)

        def elsewhere(model: nn.Module) -> torch.optim.Optimizer:
            return torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1)

        assert "other tensors" in str(refusal_reason(local_engine(mlp(), elsewhere)))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"precision": "bf16"}, "precision = bf16"),
            ({"micro-batches": 2}, "micro-batches"),
            ({"checkpoint": True}, "checkpoint"),
        ],
    )
    def test_engines(self, settings: Mapping[str, Any], said: str) -> None:
        config = EngineConfig.from_mapping(settings, ranks=1)
        recipe = Recipe(build=mlp, optimizer=OptimizerConfig())
        assert said in str(refusal_reason(make_engine(recipe, config, World())))


class TestSelfCheck:
    @pytest.mark.parametrize("optimizer", [OptimizerConfig(lr=0.3, momentum=0.9), OptimizerConfig(name="adam")])
    @pytest.mark.parametrize("mu", [0.0, 0.5])
    def test_what_agrees(self, optimizer: OptimizerConfig, mu: float) -> None:
        engine = local_engine(mlp(), optimizer)
        before = weights(engine)
        assert find_difference(engine, plans(epochs=3)[:2], mu=mu) is None
        assert all(torch.equal(value, before[name]) for name, value in weights(engine).items())

    def test_weights_that_start_at_zero(self) -> None:
        model = nn.Linear(4, 3)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        assert find_difference(local_engine(model, OptimizerConfig(lr=0.3)), plans(epochs=3)[:2]) is None

    @pytest.mark.parametrize(
        ("model", "said"),
        [(Mixing, "is off by"), (Counting, "changes seen as it trains"), (Drawing, "draws random numbers")],
    )
    def test_models_that_differ(self, model: type[nn.Module], said: str) -> None:
        engine = local_engine(model(), OptimizerConfig(lr=0.3))
        assert said in str(find_difference(engine, plans()[:2]))

    @pytest.mark.parametrize("model", [Looking, lambda: nn.Sequential(nn.Linear(4, 3), nn.RReLU())])
    def test_what_vmap_cannot_do_is_an_error(self, model: Any) -> None:
        with pytest.raises(RuntimeError, match="vmap"):
            find_difference(local_engine(model(), OptimizerConfig(lr=0.3)), plans()[:2])

    @pytest.mark.parametrize("wrong", [1.001, 0.999])
    def test_a_batched_rule_that_is_wrong_by_little(self, wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
        right = StackedLinear.backward

        def backward(ctx: Any, *gradients: Tensor) -> Any:
            of_x, of_weight, of_bias = right(ctx, *gradients)
            return of_x, None if of_weight is None else of_weight * wrong, of_bias

        monkeypatch.setattr(StackedLinear, "backward", staticmethod(backward))
        found = find_difference(local_engine(mlp(), OptimizerConfig(lr=0.3)), plans(epochs=3)[:2])
        assert "weight is off by" in str(found)

    def test_a_rule_that_mixes_clients(self, monkeypatch: pytest.MonkeyPatch) -> None:
        right = StackedLinear.forward

        def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return right(ctx, x, weight, bias if bias is None else bias.roll(1, dims=0))

        monkeypatch.setattr(StackedLinear, "forward", staticmethod(forward))
        engine = local_engine(mlp(), OptimizerConfig(lr=0.3))
        assert "is off by" in str(find_difference(engine, plans(epochs=3)[:2]))


def test_how_many_pay() -> None:
    assert clients_that_pay(local_engine(mlp())) == 64
    assert clients_that_pay(local_engine(nn.Linear(300, 400))) == 34  # 120,400 parameters
    assert clients_that_pay(local_engine(nn.Linear(500, 400))) == 1  # 200,400 parameters
    assert clients_that_pay(local_engine(nn.Linear(1000, 1500))) == 1


def test_a_custom_loss_that_is_a_function() -> None:
    def per_example(output: Tensor, targets: Tensor) -> Tensor:
        return (output.sum(dim=1) - targets).abs()

    compare(local_engine(mlp(), OptimizerConfig(lr=0.1), loss=Loss("mine", per_example)), plans())
