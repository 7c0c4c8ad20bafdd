"""examples/trainer and examples/lightning train what their trainers do by themselves, the former on two ranks, too."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from flwr.app import ArrayRecord

from tests.support.ranks import Ranks
from tests.thorough.examples.flower_messages import app_modules, context, message, run_config


def by_the_app(name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What client 1 of 3 trains in round 2, on this rank."""
    if dist.is_initialized():  # as a client's ranks have it
        rank, size = str(dist.get_rank()), str(dist.get_world_size())
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    config = run_config(name)
    with app_modules(name) as (task, client, _):
        model = task.make_model(config) if name == "trainer" else task.make_module(config)
        sent = message("train", ArrayRecord(model.state_dict()), 2, 2)
        reply = client.app(sent, context(config, 1, 3)).content
        return reply["arrays"].to_torch_state_dict(), dict(reply["metrics"])


def largest(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in other)


def test_hugging_faces_trainer(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    arrays, metrics = by_the_app("trainer")
    with app_modules("trainer") as (task, _, _):
        model = task.make_model(run_config("trainer"))
        start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        bare = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=str(tmp_path), num_train_epochs=1, per_device_train_batch_size=16, learning_rate=0.003,
                seed=2043, report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=task.Digits(slice(1, 1400, 3)),
        )  # fmt: skip
        loss = bare.train().training_loss
    assert largest(arrays, dict(model.state_dict())) == 0.0
    assert metrics["train_loss"] == loss
    moved = largest(start, arrays)
    with Ranks(2) as ranks:
        (first, _), (second, _) = ranks.run(by_the_app, "trainer")
    assert largest(first, second) == 0.0
    # Trainer's own ranks do not train what one of them does: how far they are from it is theirs.
    assert 0 < largest(first, arrays) < moved
    assert largest(first, start) > moved / 2


@pytest.mark.filterwarnings("ignore")  # of Lightning, about workers and torch
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs lightning")
def test_lightnings_trainer(tmp_path: Path) -> None:
    lightning = importlib.import_module("lightning")
    arrays, metrics = by_the_app("lightning")
    with app_modules("lightning") as (task, _, _):
        module = task.make_module(run_config("lightning"))
        loader, _ = task.local_data(context(run_config("lightning"), 1, 3), seed=2043)
        bare = lightning.Trainer(
            max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
        )  # fmt: skip
        bare.fit(module, loader)
    assert largest(arrays, dict(module.state_dict())) == 0.0
    assert metrics["train_loss"] == float(bare.callback_metrics["train_loss"])
