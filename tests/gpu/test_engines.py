"""Every engine that one device allows takes the steps of one processor, from the same weights on the same batches.

In float32 a GPU adds in another order and contracts products: losses agree to 1e-4 of their value and weights to 1e-4
after 20 steps. In bfloat16 a rounding is 4e-3 of a value; losses and weights agree to 5e-2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fedcore.errors import ConfigurationError
from fedcore.training import World
from tests.support.engine_runs import Case, Outcome, data_of, engine_of, train
from tests.support.ranks import Ranks

EXACT, BF16 = 1e-4, 5e-2

ALONE = [
    Case(engine={"engine": "single"}, optimizer="adam", steps=20),
    Case(engine={"engine": "single", "micro-batches": 3}, optimizer="momentum", clip_norm=0.5, mu=0.1, steps=20),
    Case(engine={"engine": "ddp"}, optimizer="momentum", clip_norm=0.5, steps=20),
    Case(engine={"engine": "fsdp"}, model="tied", optimizer="adam", clip_norm=0.2, steps=20),
    Case(engine={"engine": "fsdp", "offload": True}, optimizer="adamw", clip_norm=0.5, mu=0.1, steps=20),
    Case(engine={"engine": "fsdp", "offload": True, "checkpoint": True}, model="positions", optimizer="adam", steps=20),
    Case(engine={"engine": "single", "precision": "bf16"}, optimizer="momentum", steps=20),
    Case(engine={"engine": "ddp", "precision": "bf16"}, model="tied", optimizer="adam", steps=20),
    # From its twelfth step on this loss falls so steeply that processors, which differ in bfloat16, part by a tenth.
    Case(engine={"engine": "fsdp", "precision": "bf16"}, model="positions", optimizer="momentum", steps=10),
]
COMPILED = Case(engine={"engine": "single", "compile": True}, model="tied", optimizer="momentum", steps=5)
TOGETHER = [
    Case(engine={"engine": "ddp"}, optimizer="adam", clip_norm=0.5, steps=20),
    Case(engine={"engine": "ddp", "precision": "bf16", "hook": "bf16"}, optimizer="momentum", steps=20),
    # Batches of 2 and 1 of 3 examples: a rank has no share.
    Case(engine={"engine": "ddp"}, optimizer="sgd", examples=3, batch_size=2, steps=20),
]


def named(case: Case) -> str:
    return "-".join([*map(str, case.engine.values()), case.model, case.optimizer])


@pytest.fixture(scope="module")
def ranks_on() -> Iterator[Callable[[torch.device, int], Ranks]]:
    """Groups of ranks by device and size, which stay for all tests."""
    groups: dict[tuple[str, int], Ranks] = {}

    def of(device: torch.device, size: int) -> Ranks:
        return groups.setdefault((device.type, size), Ranks(size, device=device.type))

    yield of
    for group in groups.values():
        group.__exit__(None, None, None)


@cache
def on_the_processor(case: str) -> Outcome:
    return train(next(one for one in [*ALONE, COMPILED, *TOGETHER] if repr(one) == case).single())


def agree(found: Outcome, case: Case) -> None:
    expected = on_the_processor(repr(case))
    tolerance = BF16 if case.engine.get("precision") == "bf16" else EXACT
    np.testing.assert_allclose(found.losses, expected.losses, rtol=tolerance, atol=tolerance / 10)
    assert list(found.weights) == list(expected.weights)
    for name, array in expected.weights.items():
        np.testing.assert_allclose(found.weights[name], array, rtol=0, atol=tolerance, err_msg=name)


def where() -> tuple[str, bool, str]:
    world = World.current()
    return world.device.type, world.shared, str(dist.get_backend_config())


@pytest.mark.parametrize("case", ALONE, ids=named)
def test_one_rank_does_the_work_of_one_processor(device: torch.device, case: Case, ranks_on: Any) -> None:
    (found,) = ranks_on(device, 1).run(train, case)
    agree(found, case)


@pytest.mark.parametrize("case", TOGETHER, ids=named)
def test_two_ranks_that_share_a_device_do_as_well(device: torch.device, case: Case, ranks_on: Any) -> None:
    found = ranks_on(device, 2).run(train, case)
    agree(found[0], case)
    np.testing.assert_array_equal(found[0].losses, found[1].losses)


def test_the_ranks_are_where_they_should_be(device: torch.device, ranks_on: Any) -> None:
    ((alone, shared, backends),) = ranks_on(device, 1).run(where)
    assert (alone, shared) == (device.type, False)
    assert ("nccl" in backends) == (device.type == "cuda")
    for kind, shared, backends in ranks_on(device, 2).run(where):
        sharing = device.type == "cuda" and torch.cuda.device_count() < 2
        assert (kind, shared) == (device.type, sharing)
        assert ("nccl" in backends) == (device.type == "cuda" and not sharing)


def test_compiled_steps_are_the_same_steps(device: torch.device, ranks_on: Any) -> None:
    """On a GPU Triton makes the kernels."""
    if device.type == "cpu":
        pytest.skip("compiling for a processor takes a minute: tests/processes/training/engines/test_blocks.py does it")
    (found,) = ranks_on(device, 1).run(train, COMPILED)
    agree(found, COMPILED)


def refusal(case: Case) -> str:
    try:
        engine_of(case)
    except ConfigurationError as error:
        return str(error)
    return ""


def test_two_ranks_on_one_gpu_are_refused_the_engines_that_cannot(device: torch.device, ranks_on: Any) -> None:
    said = ranks_on(device, 2).run(refusal, Case(engine={"engine": "fsdp"}))
    if device.type == "cuda" and torch.cuda.device_count() < 2:
        assert all("engine fsdp needs a GPU for each rank" in text for text in said)
    else:
        assert said == ["", ""]


def outputs_of(case: Case) -> tuple[str, np.ndarray]:
    """Where the model's outputs are, and their values."""
    engine = engine_of(case)
    (batch,) = engine.passes(data_of(case), batch_size=1000)
    output = engine.outputs(batch)
    assert output is not None
    return output.device.type, output.cpu().numpy()


@pytest.mark.parametrize(
    "engine", [{"engine": "single"}, {"engine": "fsdp", "offload": True}], ids=lambda e: e["engine"]
)
def test_outputs_are_made_on_the_device(device: torch.device, engine: dict[str, Any], ranks_on: Any) -> None:
    case = Case(engine=engine)
    ((kind, found),) = ranks_on(device, 1).run(outputs_of, case)
    assert kind == device.type
    np.testing.assert_allclose(found, outputs_of(case.single())[1], rtol=EXACT, atol=EXACT)
