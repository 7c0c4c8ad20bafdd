"""Data-parallel engines do the work of one rank: the same losses, step by step, and the same weights at the end.

Fifty steps on the same batches, drawn from the same seed. What differs is the order in which floating point numbers
are added: about 1e-7 of a value in each step (float32), some times that where a loss has become small. So losses agree
to 2e-5 of their value and weights to 1e-5. In bfloat16 a rounding is 4e-3 of a value.
"""

import numpy as np
import pytest
import torch

from fedcore.training.engines import Batch
from fedcore.training.engines.batches import own_rows
from fedcore.training.seeds import derive_seed
from tests.support.engine_runs import Case, data_of, engine_of, saved, train

LOSSES, WEIGHTS = 2e-5, 1e-5
LOOSE = 5e-2

DDP, FSDP, HSDP = {"engine": "ddp"}, {"engine": "fsdp"}, {"engine": "hsdp", "shard": 2}

ON_TWO = [
    # 90 examples in batches of 16: the last batch of a pass has 10.
    Case(engine=DDP, optimizer="adam"),
    Case(engine=DDP, optimizer="momentum", clip_norm=0.5, mu=0.1),
    Case(engine=DDP | {"micro-batches": 3, "static-graph": True}, optimizer="momentum"),
    # Batches of 2 and 1 of 3 examples: a rank has no share, and a micro-batch no example.
    Case(engine=DDP | {"micro-batches": 2}, examples=3, batch_size=2),
    Case(engine=FSDP, optimizer="momentum", clip_norm=0.5, mu=0.1),
    Case(engine=FSDP | {"micro-batches": 3}, model="tied", optimizer="adam", clip_norm=0.2),
    Case(engine=FSDP | {"offload": True}, optimizer="adamw"),
    Case(engine=FSDP, examples=3, batch_size=2, optimizer="momentum"),
    Case(engine=FSDP, model="positions", optimizer="adam"),
]
ON_FOUR = [
    Case(engine=DDP, model="tied", optimizer="adam"),
    Case(engine=FSDP, optimizer="momentum", clip_norm=0.5),
    Case(engine=HSDP | {"micro-batches": 2}, optimizer="adam", clip_norm=0.5, mu=0.1),
]
LOOSELY = [
    Case(engine=DDP | {"precision": "bf16"}, optimizer="momentum"),
    Case(engine=FSDP | {"precision": "bf16"}, model="positions", optimizer="momentum", steps=20),
    Case(engine=FSDP | {"precision": "bf16"}, optimizer="momentum"),
    Case(engine=DDP | {"hook": "fp16"}),
    Case(engine=DDP | {"hook": "bf16"}),
]


def named(case):
    return "-".join([*map(str, case.engine.values()), case.model, case.optimizer, str(case.examples)])


def check(ranks, case, *, losses, weights, floor=None):
    """floor: of the tolerance of small losses, a tenth of the relative one where it is not said."""
    expected, found = train(case.single()), ranks.run(train, case)
    for outcome in found:
        np.testing.assert_allclose(
            outcome.losses, expected.losses, rtol=losses, atol=losses / 10 if floor is None else floor
        )
    assert list(found[0].weights) == list(expected.weights)
    for name, array in expected.weights.items():
        np.testing.assert_allclose(found[0].weights[name], array, rtol=0, atol=weights, err_msg=name)


@pytest.mark.parametrize("case", ON_TWO, ids=named)
def test_two_ranks_do_the_work_of_one(two, case):
    check(two, case, losses=LOSSES, weights=WEIGHTS)


@pytest.mark.parametrize("case", ON_FOUR, ids=named)
def test_four_ranks_do_the_work_of_one(four, case):
    check(four, case, losses=LOSSES, weights=WEIGHTS)


@pytest.mark.parametrize("case", LOOSELY, ids=named)
def test_lower_precision_stays_near(two, case):
    """Where a loss falls fast, how a processor rounds bf16 moves it by more than its share."""
    check(two, case, losses=LOOSE, weights=LOOSE, floor=LOOSE)


def test_powersgd_still_learns(two):
    # Ten steps with exact gradients come first.
    case = Case(engine=DDP | {"hook": "powersgd"}, model="wide")
    (found, _), exact = two.run(train, case), train(case.single())
    assert found.losses[:9] == pytest.approx(exact.losses[:9], rel=LOSSES)
    assert found.losses != pytest.approx(exact.losses, rel=LOSSES)
    assert found.losses[-1] < 0.85 * found.losses[10]


@pytest.mark.parametrize("engine", [DDP, FSDP])
def test_checkpointing_changes_no_bit(two, engine):
    runs = [Case(engine=engine | {"checkpoint": on}, model="dropout", steps=10) for on in (False, True)]
    plain, again = (two.run(train, run)[0] for run in runs)
    assert plain.losses == again.losses
    assert all(np.array_equal(plain.weights[name], again.weights[name]) for name in plain.weights)


def test_clipping_is_that_of_torch():
    engine, other = engine_of(Case(engine={"engine": "single"})), engine_of(Case(engine={"engine": "single"}))
    data = data_of(Case())
    batch = Batch(torch.tensor(data.x), torch.tensor(data.y), len(data))
    for one in (engine, other):
        one.backward(batch)
    norm = engine.clip(0.1)
    expected = torch.nn.utils.clip_grad_norm_(other.module.parameters(), 0.1)
    assert float(norm) == pytest.approx(float(expected), rel=1e-6)
    for ours, theirs in zip(engine.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


COUNTS = (41, 8)


def train_sharded(case):
    """Each rank has its own, uneven part of the examples."""
    engine = engine_of(case)
    first = sum(COUNTS[: engine.data_rank])
    data = data_of(case).take(np.arange(first, first + COUNTS[engine.data_rank]))
    batches = engine.batches(data, batch_size=10, seed=5, epochs=3, sharded=True)
    totals = [(batch.total, float(engine.step(batch))) for batch in batches]
    return totals, saved(engine), engine.examples(data, sharded=True)


@pytest.mark.parametrize("engine", [DDP, FSDP])
def test_sharded_data_are_walked_in_step(two, engine):
    case = Case(engine=engine, optimizer="momentum", examples=sum(COUNTS))
    found = two.run(train_sharded, case)
    single, data, expected = engine_of(case.single()), data_of(case), []
    seeds = [derive_seed("order of a shard", 5, rank) for rank in range(2)]
    walks = [own_rows(COUNTS, 10, 15, seed=seed, rank=rank) for rank, seed in enumerate(seeds)]
    for parts in zip(*walks, strict=True):
        rows = torch.cat([part.rows + sum(COUNTS[:rank]) for rank, part in enumerate(parts) if not part.empty])
        loss = single.step(Batch(torch.tensor(data.x)[rows], torch.tensor(data.y)[rows], len(rows)))
        expected.append((len(rows), float(loss)))
    assert [total for total, _ in expected] == [10, 10, 10, 10, 9] * 3
    assert [total for total, _ in found[0][0]] == [total for total, _ in expected]
    sums = np.add([loss for _, loss in found[0][0]], [loss for _, loss in found[1][0]])
    np.testing.assert_allclose(sums, [loss for _, loss in expected], rtol=LOSSES)
    for name, array in saved(single).items():
        np.testing.assert_allclose(found[0][1][name], array, rtol=0, atol=WEIGHTS)
    assert found[0][2] == found[1][2] == 49


def test_dropout_follows_the_seed_and_differs_between_ranks(two):
    case = Case(engine=DDP, model="dropout", steps=5)
    first, again = two.run(train, case), two.run(train, case)
    assert first[0].losses == again[0].losses
    one, other = two.run(draws, 3)
    assert one != other
    assert [one, other] == two.run(draws, 3)
    assert one not in two.run(draws, 4)


def draws(seed):
    engine = engine_of(Case(engine=DDP))
    with engine.seeded(seed):
        return torch.rand(4).tolist()
