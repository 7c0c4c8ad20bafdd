"""A program that a user brings: once as an app of fedcore, once as a plain loop of PyTorch over the same batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fedcore import LocalJob
from fedcore.flower.apps.engine_app import LocalApp
from fedcore.flower.records import state_from_arrays
from fedcore.run.engine_config import EngineConfig
from fedcore.state import MemorySink

BASE = {"batch-size": 0, "local-epochs": 2, "local-steps": 0, "seed": 1, "num-server-rounds": 1}
"""The run config of every program: the batches are those of a DataLoader, or one full batch."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """app: as its author writes it. bare: the trained model by PyTorch alone.

    bound: of the largest difference, over the largest element of its tensor.
    """

    name: str
    app: Callable[[], LocalApp]
    bare: Callable[[], nn.Module]
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    bound: float = 1e-5


def drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def choices(seed: int, most: int, *shape: int) -> Tensor:
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(seed))


def loop(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[nn.Module, Any], Tensor],
    optimizer: torch.optim.Optimizer,
    *,
    epochs: int = 2,
    clip: float = 0.0,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> nn.Module:
    """What a tutorial of PyTorch has."""
    model.train()
    for _ in range(epochs):
        for batch in batches:
            optimizer.zero_grad()
            loss(model, batch).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
    return model


def by_fedcore(program: Program) -> dict[str, Tensor]:
    """What a client hands over after one round, on this rank of its group; nothing on ranks other than 0."""
    torch.set_num_threads(1)
    config: Any = {**BASE, **program.config}
    app = program.app()
    job = LocalJob(config=config, node={}, message={"server-round": 1}, client=1)
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    engine = EngineConfig.from_mapping({}, ranks=ranks)
    sent = state_from_arrays(app.initial_arrays(config))
    result = app.run(job, sent, trains=True, store=cast(Any, None), engine_config=engine)
    assert result.layout is not None
    assert result.write is not None
    first = not dist.is_initialized() or dist.get_rank() == 0
    sink = MemorySink(result.layout) if first else None
    result.write(sink)
    if app.engine is not None:
        app.engine.close()
    return {} if sink is None else {name: torch.from_numpy(array.copy()) for name, array in sink.state().items()}


def largest_difference(ours: Mapping[str, Tensor], bare: nn.Module) -> float:
    """Over all tensors that were handed over: of an element, over the largest of its tensor."""
    theirs = bare.state_dict()
    assert ours
    worst = 0.0
    for name, tensor in ours.items():
        expected = theirs[name].detach()
        assert tensor.shape == expected.shape
        # Flower's records have no bfloat16: what is one here is float32 wherever it is handed over.
        assert tensor.dtype == (torch.float32 if expected.dtype == torch.bfloat16 else expected.dtype)
        size = max(float(expected.double().abs().max()), 1e-3) if expected.numel() else 1.0
        worst = max(worst, float((tensor.double() - expected.double()).abs().max()) / size)
    return worst
