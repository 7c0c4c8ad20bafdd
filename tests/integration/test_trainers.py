"""examples/trainer and examples/lightning train what their trainers do, on one rank and under torchrun."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import tempfile
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from flwr.app import ArrayRecord
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tests.support.forking import CONTEXT
from tests.support.ranks import Ranks
from tests.thorough.examples.flower_messages import app_modules, context, message, run_config

Arrays = dict[str, np.ndarray]
SEED = 2043
"""What the examples make of client 1 in round 2."""
EXAMPLES = ["trainer", "lightning"]

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about workers and torch


def by_the_app(name: str) -> tuple[Arrays, dict[str, Any], dict[str, Any]]:
    """On this rank: what client 1 of 3 trains in round 2, its figures, and those of a test of what it was sent."""
    if dist.is_initialized():  # as a client's ranks have it
        rank, size = str(dist.get_rank()), str(dist.get_world_size())
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GROUP_RANK="0")
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    config = run_config(name)
    with app_modules(name) as (task, client, _):
        model = task.make_model(config) if name == "trainer" else task.make_module(config)
        sent = ArrayRecord(model.state_dict())
        trained = client.app(message("train", sent, 2, 2), context(config, 1, 3)).content
        tested = client.app(message("evaluate", sent, 2, 2), context(config, 1, 3)).content
        arrays = {key: tensor.numpy() for key, tensor in trained["arrays"].to_torch_state_dict().items()}
        return arrays, dict(trained["metrics"]), dict(tested["metrics"])


def by_its_trainer(name: str) -> tuple[Arrays, float]:
    """The same by a trainer alone, on this rank of torchrun or without one: the model, and the loss of this rank."""
    torch.set_num_threads(1)
    with app_modules(name) as (task, _, _), tempfile.TemporaryDirectory() as folder:
        model, loss = (bare_trainer if name == "trainer" else bare_lightning)(task, folder)
        return {key: tensor.detach().numpy().copy() for key, tensor in model.state_dict().items()}, loss


def bare_trainer(task: Any, folder: str) -> tuple[torch.nn.Module, float]:
    from transformers import Trainer, TrainingArguments

    model = task.make_model(run_config("trainer"))
    bare = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=folder, num_train_epochs=1, learning_rate=0.003, seed=SEED, report_to="none",
            per_device_train_batch_size=16 // int(os.environ.get("WORLD_SIZE", "1")), save_strategy="no", use_cpu=True,
            disable_tqdm=True, dataloader_pin_memory=False,
        ),
        train_dataset=task.Digits(slice(1, 1400, 3)),
    )  # fmt: skip
    return model, bare.train().training_loss


def bare_lightning(task: Any, folder: str) -> tuple[torch.nn.Module, float]:
    lightning = importlib.import_module("lightning")
    ranks, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    module = task.make_module(run_config("lightning"))
    data = task.local_data(context(run_config("lightning"), 1, 3), seed=0)[0].dataset
    order = torch.utils.data.DistributedSampler(data, num_replicas=ranks, rank=rank, seed=SEED)
    bare = lightning.Trainer(
        max_epochs=1, accelerator="cpu", devices=ranks, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        **({"strategy": "ddp"} if ranks > 1 else {}),
    )  # fmt: skip
    bare.fit(module, torch.utils.data.DataLoader(data, batch_size=16 // ranks, sampler=order))
    return module, float(bare.callback_metrics["train_loss"])


def under_torchrun(name: str) -> list[tuple[Arrays, float]]:
    """What torchrun does with two ranks, which it forks from the fork server: no imports, and one thread each."""
    assert CONTEXT.get_start_method() == "forkserver"
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="bare", start_method="forkserver", rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0", local_addr="127.0.0.1", monitor_interval=0.1,
    )  # fmt: skip
    results = elastic_launch(config, by_its_trainer)(name)
    return [results[rank] for rank in range(2)]


def largest(one: Arrays, other: Arrays) -> float:
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in other)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_its_trainer_and_on_two_ranks_torchrun(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both trainers fill up the last batch of two ranks: apart from that two ranks train as one."""
    if name == "lightning" and importlib.util.find_spec("lightning") is None:
        pytest.skip("needs lightning: pip install lightning")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    alone, loss = by_its_trainer(name)
    arrays, metrics, tested = by_the_app(name)
    assert largest(arrays, alone) == 0.0
    assert metrics["train_loss"] == loss
    with Ranks(2) as ranks:
        (first, about, tested_there), (second, _, _) = ranks.run(by_the_app, name)
    assert largest(first, second) == 0.0
    bare = under_torchrun(name)
    assert largest(first, bare[0][0]) < 1e-6
    assert about["train_loss"] == pytest.approx(np.mean([loss for _, loss in bare]), rel=1e-6)

    config = run_config(name)
    with app_modules(name) as (task, _, _):
        model = task.make_model(config) if name == "trainer" else task.make_module(config)
        start = {key: tensor.numpy() for key, tensor in model.state_dict().items()}
    moved = largest(start, arrays)
    off = largest(first, arrays) / moved
    sys.stdout.write(f"{name}: two ranks and one are {off:.1e} of what training moves apart\n")
    assert 0 < off < 0.03
    assert about["train_loss"] == pytest.approx(loss, rel=0.02)
    assert tested_there == pytest.approx(tested, rel=1e-5)
