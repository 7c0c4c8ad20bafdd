"""The arithmetic of the memory benchmark, and the ranks that both benchmarks of engines start."""

import pytest
import torch.distributed as dist

from benchmarks.groups import on_ranks
from benchmarks.memory import SETUPS, Layers, layout_of
from fedcore.training.engines.building import plan_of


def test_the_arithmetic_of_each_engine():
    found = {setup.name: setup.arithmetic for setup in SETUPS}
    # Four times the model over the ranks that share it, and tenths of the model for what is beside.
    assert found == pytest.approx({"single": 4.1, "ddp2": 4.1, "fsdp2": 2.4, "fsdp4": 1.4, "tp2": 2.05, "pp2": 2.1})


def test_the_file_holds_the_model_and_the_plan_every_layer():
    model, layout = Layers(8), layout_of(8)
    assert {name: tuple(t.shape) for name, t in model.state_dict().items()} == {s.name: s.shape for s in layout.specs}
    assert (
        set(plan_of(model).tensor) == set(plan_of(model).blocks) == {name.split(".")[0] for name in model.state_dict()}
    )


def test_each_rank_has_a_process_and_answers_in_order():
    assert on_ranks(2, dist.get_rank) == [0, 1]
