"""What a process imports before it trains on one rank: every second of it is one of each client's start."""

from __future__ import annotations

import json
import subprocess
import sys

import torch
from torch import nn

TRAIN = """
import json, sys
import numpy as np
import torch
from torch import nn
from fedcore.data import Split
from fedcore.training import OptimizerConfig, Recipe, make_engine

rows = Split(x=np.eye(4, 3, dtype=np.float32), y=np.array([0, 1, 1, 0]))
started = []
for name in sys.argv[1:]:
    torch.manual_seed(0)
    recipe = Recipe(build=lambda: nn.Linear(3, 2), optimizer=OptimizerConfig(name=name, lr=0.1), keep_weights=True)
    engine = make_engine(recipe)
    (batch,) = engine.batches(rows, batch_size=4, seed=1, steps=1)
    engine.step(batch)
    engine.optimizer.load_state_dict(engine.optimizer.state_dict())
    started.append((engine, batch))
unwanted = ("torch._dynamo", "torch.distributed.tensor", "torch.distributed.fsdp")
loaded = [name for name in unwanted if name in sys.modules]
import torch._dynamo
for engine, batch in started:
    engine.optimizer.zero_grad()
    engine.step(batch)
disabled = hasattr(torch.optim.Optimizer.zero_grad.__wrapped__.__dynamo_disable, "_torchdynamo_disable")
weights = [torch.cat([p.detach().flatten() for p in engine.parameters()]).tolist() for engine, _ in started]
print(json.dumps([loaded, disabled, weights]))
"""


def test_training_loads_neither_a_compiler_nor_what_shards() -> None:
    done = subprocess.run([sys.executable, "-c", TRAIN, "sgd", "adam"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, disabled, found = json.loads(done.stdout)
    assert loaded == []
    assert disabled, "torch's own again, once the compiler is loaded"
    assert found == [_by_torch(torch.optim.SGD), _by_torch(torch.optim.Adam)]


def _by_torch(kind: type[torch.optim.Optimizer]) -> list[float]:
    """Two steps by torch alone."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = kind(model.parameters(), lr=0.1)  # type: ignore[call-arg]
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.eye(4, 3)), torch.tensor([0, 1, 1, 0]), reduction="sum").div(
            4
        ).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()
