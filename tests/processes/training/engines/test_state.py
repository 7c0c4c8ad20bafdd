"""State into the ranks and out of them: one file, whoever can read it, whatever the engine."""

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from fedcore.errors import ConfigurationError, EncodingError
from fedcore.run.engine_config import EngineConfig
from fedcore.state import FileSink, ModelState
from fedcore.training.dtensors import local
from fedcore.training.engines import Recipe, make_engine
from fedcore.training.engines.transfer import part_of
from tests.support.engine_runs import MODELS, OPTIMIZERS, Case, data_of, engine_of, saved, start_of, train, world
from tests.support.ranks import RankFailed

DDP, FSDP, HSDP = {"engine": "ddp"}, {"engine": "fsdp"}, {"engine": "hsdp", "shard": 2}


def equal(one, other):
    return list(one) == list(other) and all(np.array_equal(one[name], other[name]) for name in one)


def round_trip(case, source, target, readers):
    """Load the file where a rank is among the readers, save to another file; what the ranks held in between."""
    engine = engine_of(case)
    rank = dist.get_rank()
    engine.load(ModelState.open(source) if rank in readers else None)
    held = sum(local(p).numel() for p in engine.parameters())
    if rank:
        engine.save(None)
    else:
        with FileSink(target, engine.layout()) as sink:
            engine.save(sink)
    return held


@pytest.mark.parametrize("readers", [(0, 1, 2, 3), (0,), (0, 1)], ids=["all", "first", "some"])
@pytest.mark.parametrize(("engine", "share"), [(DDP, 1), (FSDP, 4), (HSDP, 2)], ids=["ddp", "fsdp", "hsdp"])
def test_a_state_comes_back_bit_for_bit(four, tmp_path, engine, share, readers):
    source, target = tmp_path / "source.safetensors", tmp_path / "target.safetensors"
    values = {name: array + np.float32(0.5) for name, array in start_of("tied").items()}
    ModelState.from_arrays(values).save(source)
    held = four.run(round_trip, Case(engine=engine, model="tied"), source, target, readers)
    assert target.read_bytes() == source.read_bytes()
    whole = sum(p.numel() for p in MODELS["tied"]().parameters())
    # A tensor with fewer rows than ranks leaves some of them without a part.
    assert max(held) <= 1.4 * whole / share
    assert min(held) < whole or share == 1


def bounds():
    """How DTensor itself divides tensors, against our formula."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2))
    wrong = []
    for placements in (
        (torch_shard(0), torch_shard(0)),
        (torch_shard(1), torch_shard(0)),
        (replicate(), torch_shard(1)),
    ):
        for shape in ((7, 3), (1, 5), (4, 4)):
            whole = torch.arange(np.prod(shape)).view(shape)
            tensor = dist.tensor.distribute_tensor(whole, mesh, placements)
            if not torch.equal(whole[part_of(tensor, dist.get_rank())], tensor.to_local()):
                wrong.append((placements, shape))
    return wrong


def torch_shard(dimension):
    return dist.tensor.Shard(dimension)


def replicate():
    return dist.tensor.Replicate()


def test_parts_are_where_torch_puts_them(four):
    assert four.run(bounds) == [[], [], [], []]


def loads_other(case, readers, other):
    engine = engine_of(case)
    with pytest.raises(EncodingError) as error:
        engine.load(start_of(other) if dist.get_rank() in readers else None)
    engine.load(start_of(case.model))
    return str(error.value)


@pytest.mark.parametrize("readers", [(0, 1), (0,)])
def test_another_model_is_refused_on_every_rank(two, readers):
    first, second = two.run(loads_other, Case(engine=FSDP), readers, "norm")
    assert "expected tensor '3.weight', found tensor '1.weight'" in first
    assert second == (first if 1 in readers else "another rank refused the state")


def without_state(case):
    engine_of(case).load(None)


def test_rank_0_needs_the_state(two):
    with pytest.raises(RankFailed, match=r"UsageError|EncodingError"):
        two.run(without_state, Case(engine=DDP))


def statistics(case):
    """Running means of each rank before saving, and what is saved."""
    engine = engine_of(case)
    for batch in engine.batches(data_of(case), batch_size=20, seed=1, steps=4):
        engine.step(batch)
    own = dict(engine.module.named_buffers())["1.running_mean"].clone().numpy()
    return own, saved(engine), dict(engine.module.named_buffers())["1.running_mean"].numpy()


@pytest.mark.parametrize("engine", [DDP, FSDP, FSDP | {"precision": "bf16"}], ids=["ddp", "fsdp", "bf16"])
def test_running_statistics_are_averaged(two, engine):
    (one, written, after), (other, _, after_other) = two.run(statistics, Case(engine=engine, model="norm"))
    assert np.abs(one - other).max() > 1e-3
    np.testing.assert_allclose(written["1.running_mean"], (one + other) / 2, rtol=1e-5, atol=1e-7)
    assert np.array_equal(after, after_other)
    assert written["1.num_batches_tracked"] == 4


def ties(case):
    engine = engine_of(case)
    same = [engine.module.output.weight is engine.module.embedding.weight]
    for batch in engine.batches(data_of(case), batch_size=20, seed=1, steps=3):
        engine.step(batch)
    same.append(engine.module.output.weight is engine.module.embedding.weight)
    return same, len(engine.parameters()), len(engine.optimizer.param_groups[0]["params"]), saved(engine)


@pytest.mark.parametrize("engine", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_a_tied_weight_is_one_tensor_under_two_names(two, engine):
    (same, number, optimized, state), _ = two.run(ties, Case(engine=engine, model="tied"))
    assert same == [True, True]
    assert number == optimized == len(list(MODELS["tied"]().parameters()))
    assert np.array_equal(state["output.weight"], state["embedding.weight"])


class CrossTied(nn.Sequential):
    """Two layers of a Sequential, and so two blocks, that share a weight."""

    def __init__(self):
        super().__init__(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12), nn.Linear(12, 5))
        self[2].weight = self[0].weight


def cross_tied():
    recipe = Recipe(build=CrossTied, optimizer=OPTIMIZERS["sgd"])
    here = world()
    engine = make_engine(recipe, EngineConfig(engine="fsdp" if here.size > 1 else "single"), here)
    torch.manual_seed(0)
    engine.load(ModelState.from_arrays({name: t.numpy() for name, t in CrossTied().state_dict().items()}))
    for batch in engine.batches(data_of(Case()), batch_size=20, seed=1, steps=10):
        engine.step(batch)
    return saved(engine)


def test_blocks_that_share_a_weight_stay_tied(two):
    found, expected = two.run(cross_tied)[0], cross_tied()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5)


def before_loading(keep):
    recipe = Recipe(build=lambda: nn.Sequential(nn.Linear(4, 4)), optimizer=OPTIMIZERS["sgd"], keep_weights=keep)
    engine = make_engine(recipe, EngineConfig(engine="fsdp"))
    weight = engine.module[0].weight
    assert isinstance(weight, DTensor)
    return bool(weight.to_local().isnan().all()), bool(weight.to_local().isfinite().all())


def test_a_model_that_was_not_loaded_is_not_trained_by_mistake(two):
    assert two.run(before_loading, False) == [(True, False)] * 2
    assert two.run(before_loading, True) == [(False, True)] * 2


def with_history(case, state=None):
    """Some steps from the start, or from a state with the optimizer's; what is saved, likewise."""
    engine = engine_of(case)
    if state is not None:
        engine.load(state, optimizer=True)
    for batch in engine.batches(data_of(case), batch_size=20, seed=1, steps=5):
        engine.step(batch)
    return saved(engine, optimizer=True)


@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw"])
@pytest.mark.parametrize("engine", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_optimizer_state_travels(two, engine, optimizer):
    case = Case(engine=engine, optimizer=optimizer, model="tied")
    expected = with_history(case.single())
    found = two.run(with_history, case)[0]
    assert list(found) == list(expected)
    kinds = {name.split(".")[1] for name in found if name.startswith("optimizer.")}
    assert kinds == ({"momentum_buffer"} if optimizer == "momentum" else {"step", "exp_avg", "exp_avg_sq"})
    # The second half goes on from the file, on another engine, as if nothing had happened.
    state = ModelState.from_arrays(found)
    onwards, expected_onwards = two.run(with_history, case, state)[0], with_history(case.single(), state)
    for name, array in expected_onwards.items():
        np.testing.assert_allclose(onwards[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    if optimizer != "momentum":
        assert found["optimizer.step.embedding.weight"] == 5
        assert onwards["optimizer.step.embedding.weight"] == 10


def test_history_loaded_is_history_kept():
    case = Case(engine={"engine": "single"}, optimizer="adam")
    engine, data = engine_of(case), data_of(case)
    for batch in engine.batches(data, batch_size=20, seed=1, steps=5):
        engine.step(batch)
    state = ModelState.from_arrays(saved(engine, optimizer=True))
    for batch in engine.batches(data, batch_size=20, seed=1, steps=5):
        engine.step(batch)
    assert equal(with_history(case, state), saved(engine, optimizer=True))
    engine.reset_optimizer()
    assert not any(
        array.any() for name, array in saved(engine, optimizer=True).items() if name.startswith("optimizer.")
    )


def test_a_noisy_mean_of_second_moments_is_never_negative():
    case = Case(engine={"engine": "single"}, optimizer="adam")
    engine = engine_of(case)
    arrays = {
        name: array - 1 if name.startswith("optimizer.") else array
        for name, array in saved(engine, optimizer=True).items()
    }
    engine.load(ModelState.from_arrays(arrays), optimizer=True)
    after = saved(engine, optimizer=True)
    assert (after["optimizer.exp_avg_sq.0.weight"] == 0).all()
    assert after["optimizer.step.0.weight"] == 0
    assert (after["optimizer.exp_avg.0.weight"] == -1).all()


def test_an_optimizer_whose_state_cannot_be_averaged_is_refused():
    recipe = Recipe(build=MODELS["layers"], optimizer=lambda model: torch.optim.NAdam(model.parameters()))
    engine = make_engine(recipe, EngineConfig(), world())
    with pytest.raises(ConfigurationError, match="NAdam"):
        engine.layout(optimizer=True)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_asking_for_optimizer_state_changes_nothing(optimizer):
    # The momentum has weight decay, which must not show in a history that has not begun.
    case = Case(engine={"engine": "single"}, optimizer=optimizer)
    engine, other = engine_of(case), engine_of(case)
    engine.layout(optimizer=True)
    for one in (engine, other):
        for batch in one.batches(data_of(case), batch_size=20, seed=1, steps=3):
            one.step(batch)
    assert equal(saved(engine, optimizer=True), saved(other, optimizer=True))


def after_evaluation(how):
    """Whether the parameters are sharded after a forward pass without a backward pass."""
    # A model whose root has parameters of its own, beside its blocks.
    case = Case(engine=FSDP, model="tied")
    engine = engine_of(case)
    batch = next(engine.batches(data_of(case), batch_size=8, seed=0, steps=1))
    if how == "outputs":
        engine.outputs(batch)
        return [isinstance(parameter, DTensor) for parameter in engine.module.parameters()]
    with torch.no_grad():
        engine.model(batch.x)
    if how == "reset":
        engine.reset_optimizer()
        return [isinstance(parameter, DTensor) for parameter in engine.optimizer.param_groups[0]["params"]]
    if how == "entries":
        return [isinstance(entry.tensor, DTensor) for entry in engine.entries()]
    return [isinstance(parameter, DTensor) for parameter in engine.parameters()]


@pytest.mark.parametrize("how", ["outputs", "parameters", "reset", "entries"])
def test_parameters_are_sharded_again_after_an_evaluation(two, how):
    assert {*map(all, two.run(after_evaluation, how))} == {True}


def rounds(case):
    """Two rounds in one engine against each of them in a new one."""
    first, warm = train(case), engine_of(case)
    wrapper, result = warm.model, []
    for _ in range(2):
        warm.load(start_of(case.model))
        warm.reset_optimizer()
        with warm.seeded(11):
            for batch in warm.batches(data_of(case), batch_size=case.batch_size, seed=5, steps=case.steps):
                warm.step(batch)
        result.append(saved(warm))
    return warm.model is wrapper, [equal(first.weights, weights) for weights in result]


@pytest.mark.parametrize("engine", [DDP | {"static-graph": True}, FSDP], ids=["ddp", "fsdp"])
def test_a_warm_engine_trains_as_a_new_one(two, engine):
    assert two.run(rounds, Case(engine=engine, optimizer="adam", steps=8)) == [(True, [True, True])] * 2
