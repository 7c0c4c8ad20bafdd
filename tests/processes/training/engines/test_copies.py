"""Loops of one's own on two ranks: the same as on one, or an error that names the tensors that went apart."""

import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fedcore.data import Split
from fedcore.errors import AppError, ConfigurationError
from fedcore.run.engine_config import EngineConfig
from fedcore.state import MemorySink, ModelState
from fedcore.training.engines import Recipe, make_engine
from tests.support.ranks import RankFailed

RNG = np.random.default_rng(0)
REAL = Split(x=RNG.normal(3.0, 1.0, size=(32, 4)).astype(np.float32), y=np.zeros(32, np.int64))
NOISE = torch.from_numpy(RNG.normal(size=(32, 4)).astype(np.float32))
SAYS = nn.functional.binary_cross_entropy_with_logits


class Gan(nn.Module):
    """A generator and a discriminator in one module, as a state has both."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.g = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.d = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.d(x)


def play(module, batches, *, before_step):
    """The loop of a tutorial on GANs; the learning rates differ."""
    g, d = torch.optim.SGD(module.g.parameters(), lr=0.05), torch.optim.Adam(module.d.parameters(), lr=0.01)
    for x, noise in batches:
        ones, zeros = torch.ones(len(x), 1), torch.zeros(len(x), 1)
        module.zero_grad()
        (SAYS(module.d(x), ones) + SAYS(module.d(module.g(noise).detach()), zeros)).backward()
        before_step()
        d.step()
        module.zero_grad()
        SAYS(module.d(module.g(noise)), ones).backward()
        before_step()
        g.step()


def gan_engine():
    torch.set_num_threads(1)
    engine = make_engine(
        Recipe(build=Gan, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1)), EngineConfig(engine="ddp")
    )
    engine.load(ModelState.from_arrays({name: tensor.numpy() for name, tensor in Gan().state_dict().items()}))
    return engine


def saved(engine):
    """On rank 0 what is handed over, or on every rank the error."""
    sink = MemorySink(engine.layout()) if engine.world.rank == 0 else None
    try:
        engine.save(sink)
    except AppError as error:
        return str(error)
    return dict(sink.state().items()) if sink is not None else None


def own_loop(averages):
    """Each rank has half of every batch."""
    engine = gan_engine()
    rank, real = dist.get_rank(), torch.from_numpy(REAL.x)
    halves = [slice(start + 4 * rank, start + 4 * rank + 4) for start in range(0, 32, 8)]
    batches = [(real[half], NOISE[half]) for half in halves]
    engine.module.g[1].eval()  # its running means are each rank's own
    play(engine.module, batches, before_step=engine.average_gradients if averages else lambda: None)
    return saved(engine)


def test_a_gan_whose_ranks_go_apart_is_an_error_by_name(two):
    for said in two.run(own_loop, False):
        assert "g.0.weight" in said
        assert "ranks 0 and 1" in said
        assert "engine.average_gradients()" in said


def test_with_averaged_gradients_it_is_the_loop_of_one_process(two):
    found, _ = two.run(own_loop, True)
    alone = Gan()
    alone.g[1].eval()
    wholes = [slice(start, start + 8) for start in range(0, 32, 8)]
    play(alone, [(torch.from_numpy(REAL.x)[w], NOISE[w]) for w in wholes], before_step=lambda: None)
    for name, tensor in alone.state_dict().items():
        np.testing.assert_allclose(found[name], tensor.numpy(), rtol=0, atol=1e-6)


def buffers_apart():
    """Running means and counters may differ: the former are averaged, of the others rank 0's count."""
    engine = gan_engine()
    rank = dist.get_rank()
    engine.module.g[1].running_mean.fill_(rank)
    engine.module.g[1].num_batches_tracked.fill_(7 + rank)
    return saved(engine)


def test_buffers_are_what_each_rank_saw(two):
    found, _ = two.run(buffers_apart)
    assert found["g.1.running_mean"].tolist() == [0.5] * 8
    assert found["g.1.num_batches_tracked"] == 7


def one_bit_apart(where, by):
    engine = gan_engine()
    if dist.get_rank() == 1:
        with torch.no_grad():
            engine.module.get_parameter(where).view(-1)[-1].add_(by)
    return saved(engine)


@pytest.mark.parametrize("by", [1e-6, float("nan")])
def test_one_element_that_differs_is_found(two, by):
    for said in two.run(one_bit_apart, "d.0.weight", by):
        assert "of 1 tensor differ" in said
        assert "d.0.weight" in said


def momenta_apart():
    engine = gan_engine()
    engine.optimizer = torch.optim.Adam(engine.module.parameters())
    engine.entries(optimizer=True)  # makes the state
    if dist.get_rank() == 1:
        engine.optimizer.state[engine.module.d[2].bias]["exp_avg"].add_(1.0)
    engine.save(MemorySink(engine.layout(optimizer=True)) if dist.get_rank() == 0 else None, optimizer=True)


def test_so_is_an_optimizers_state(two):
    with pytest.raises(RankFailed, match=r"AppError.*optimizer\.exp_avg\.d\.2\.bias"):
        two.run(momenta_apart)


def sharded(engine):
    """A replica of a part, on ranks 0 and 2 of (2, 2)."""
    torch.set_num_threads(1)
    build = lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))  # noqa: E731
    made = make_engine(
        Recipe(build=build, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1)), EngineConfig(**engine)
    )
    made.load(ModelState.from_arrays({name: tensor.numpy() for name, tensor in build().state_dict().items()}))
    fine = saved(made)
    if dist.get_rank() == 2:
        with torch.no_grad():
            made.parameters()[0].to_local().add_(1.0)
    return isinstance(fine, str), saved(made)


def test_parts_with_copies_are_compared_with_their_own(four):
    for wrong, said in four.run(sharded, {"engine": "hsdp", "shard": 2}):
        assert not wrong
        assert "0.weight" in said
        assert "ranks 0 and 2" in said
    assert [said for _, said in four.run(sharded, {"engine": "fsdp"})][1:] == [None] * 3


def unprepared():
    """Parts of `engine.model` on two ranks, by optimizers that nobody prepared."""
    engine = gan_engine()
    rank, real = dist.get_rank(), torch.from_numpy(REAL.x)
    play(engine.model, [(real[4 * rank : 4 * rank + 4], NOISE[4 * rank : 4 * rank + 4])], before_step=lambda: None)
    return saved(engine)


def test_parts_of_the_engines_model_are_those_of_the_model(two):
    for message in two.run(unprepared):
        assert "g.0.weight" in message
        assert "engine.prepare(model, optimizer)" in message


def separate():
    """A prepared model that is no part of the engine's goes apart."""
    engine = gan_engine()
    torch.manual_seed(dist.get_rank())
    probe = engine.prepare(nn.Linear(2, 1))
    alike = saved(engine)
    if dist.get_rank() == 1:
        with torch.no_grad():
            probe.weight.add_(1.0)
    return isinstance(alike, str), saved(engine)


def test_models_that_are_not_handed_over_are_compared_as_well(two):
    for wrong, message in two.run(separate):
        assert not wrong
        assert "Linear 1: weight" in message


def own_streams(steps, epochs):
    """Rank 0 has five numbers, rank 1 two; what a step has of each, and over all."""
    numbers = [[0.0, 1.0, 2.0, 3.0, 4.0], [10.0, 11.0]][dist.get_rank()]
    data = [(torch.full((4,), number), torch.tensor(0)) for number in numbers]
    batches = gan_engine().batches(Listed(data), batch_size=4, steps=steps, epochs=epochs, seed=1, sharded=True)
    return [(batch.x[:, 0].tolist() if batch.weights is None else [], batch.total) for batch in batches]


class Listed(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        return iter(self.rows)


def test_ranks_with_streams_of_their_own_end_together(two):
    assert two.run(own_streams, 0, 1) == [
        [([0.0, 1.0], 4), ([2.0, 3.0], 2), ([4.0], 1)],
        [([10.0, 11.0], 4), ([], 2), ([], 1)],
    ]
    assert two.run(own_streams, 4, 0)[1] == [([10.0, 11.0], 4), ([], 2), ([], 1), ([10.0, 11.0], 4)]


def refused(name):
    recipe = Recipe(build=in_layers, optimizer=lambda m: torch.optim.LBFGS(m.parameters()))
    engine = make_engine(recipe, EngineConfig(engine=name))
    reasons = []
    for attempt in (
        lambda: engine.prepare(engine.module),
        lambda: engine.step(next(engine.batches(REAL, batch_size=4, steps=1, seed=1))),
    ):
        try:
            attempt()
        except ConfigurationError as error:
            reasons.append(error.check)
    return reasons


def in_layers():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))


@pytest.mark.parametrize("name", ["fsdp", "pp"])
def test_engines_with_a_model_in_parts_refuse_both(two, name):
    assert two.run(refused, name) == [["prepare-engine", "closure-engine"]] * 2


class Counted(Dataset):
    """Rows that no pickle holds, as those of an open file or a lambda."""

    def __init__(self):
        self.row = lambda number: (torch.full((4,), float(number)), torch.full((4,), float(os.getpid())))

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return self.row(number)


def rows_by_workers():
    """What this rank gets of two batches, and whether it read them itself."""
    _, loader = gan_engine().prepare(nn.Linear(4, 1), DataLoader(Counted(), batch_size=4, num_workers=1))
    batches = list(loader)
    return [int(x[0, 0]) for x, _ in batches], any(int(who[0, 0]) == os.getpid() for _, who in batches)


def test_a_rank_forks_the_workers_of_a_loader(two):
    """From a fork server of their own they would take seconds of imports for each rank, and a dataset that pickles."""
    assert two.run(rows_by_workers) == [([0, 4], False), ([2, 6], False)]
