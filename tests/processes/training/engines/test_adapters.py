"""Adapters on a frozen language model: two ranks train what one does, and an engine that cannot divide it says so."""

import sys

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fedcore import LocalJob, OptimizerConfig, supervised_app
from fedcore.errors import ConfigurationError
from fedcore.flower.records import state_from_arrays
from fedcore.run.engine_config import EngineConfig
from fedcore.state import MemorySink
from fedcore.training.language import ChatDataset, chat_tokenizer, load_base, with_adapter
from fedcore.training.losses import token_cross_entropy
from fedcore.training.metrics import perplexity

CONFIG = {"batch-size": 3, "local-epochs": 2, "local-steps": 0, "seed": 1, "num-server-rounds": 1}


def chats():
    """Eleven answers of very different lengths: the ranks' parts of a batch differ in targets, the last in examples."""
    turns = ([("user", f"question {n}"), ("assistant", "yes " * (1 + n * n % 11))] for n in range(10))
    return [[{"role": role, "content": content} for role, content in chat] for chat in turns]


def tuned(kind, settings, packing):
    """The adapter that was sent, the one after two epochs, and the loss and the perplexity; no adapter on rank 1."""
    torch.set_num_threads(1)
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    data = ChatDataset(chats(), chat_tokenizer(""), window=96, packing=packing)
    app = supervised_app(
        model=lambda config: with_adapter(load_base("", seed=1), kind, rank=4, alpha=8.0, seed=2),
        # Not AdamW, which makes steps of rounding errors as long as those of gradients.
        optimizer=lambda config: OptimizerConfig(lr=0.1),
        data=lambda job: (data, data),
        loss=token_cross_entropy,
        metrics=(perplexity,),
        weigh="targets",
        adapter=True,
    )
    job = LocalJob(config=CONFIG, node={}, message={"server-round": 1}, client=1)
    sent = state_from_arrays(app.initial_arrays(CONFIG))
    engine = EngineConfig.from_mapping(settings, ranks=ranks)
    result = app.run(job, sent, trains=True, store=None, engine_config=engine)
    sink = MemorySink(result.layout) if not dist.is_initialized() or dist.get_rank() == 0 else None
    result.write(sink)
    tested = app.run(job, sent, trains=False, store=None, engine_config=engine)
    app.engine.close()
    figures = [result.metrics["train_loss"], tested.metrics["eval_loss"], *tested.metrics["perplexity/sums"]]
    return dict(sent.items()), {} if sink is None else dict(sink.state().items()), figures


@pytest.mark.parametrize(
    ("kind", "engine", "packing"), [("lora", "ddp", False), ("sb", "ddp", True), ("sb", "fsdp", False)]
)
def test_two_ranks_train_the_adapter_of_one(two, kind, engine, packing):
    sent, alone, figures = tuned(kind, {}, packing)
    (_, adapter, found), _ = two.run(tuned, kind, {"engine": engine}, packing)
    assert set(adapter) == set(alone)
    moved = max(np.abs(alone[name] - sent[name]).max() for name in alone)
    off = max(np.abs(adapter[name] - alone[name]).max() for name in alone) / moved
    sys.stdout.write(f"{kind}, {engine}: two ranks and one are {off:.1e} of what training moves apart\n")
    assert moved > 1e-2
    assert off < 1e-5
    assert found == pytest.approx(figures, rel=1e-5)


def refused(settings):
    with pytest.raises(ConfigurationError) as error:
        tuned("lora", settings, packing=False)
    return error.value.check


def test_an_engine_that_cannot_divide_it_says_so(two):
    assert two.run(refused, {"engine": "tp"}) == ["tensor-plan"] * 2
    assert two.run(refused, {"engine": "pp"}) == ["target-loss"] * 2
