"""Batches of several tensors train as in bare PyTorch, and what no batch can be is an error by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from support.raising import raises
from support.several_tensors import (
    EXAMPLES,
    SGD,
    STEPS,
    Listed,
    as_dicts,
    as_tuples,
    in_bare_torch,
    made_up,
    model,
    two_losses,
    with_labels,
)
from torch import Tensor, nn

from fedcore.errors import UsageError
from fedcore.training import EngineConfig, Metric, evaluate, local_engine, train
from fedcore.training.engines import Recipe, World, make_engine
from fedcore.training.losses import as_loss
from fedcore.training.structures import map_tensors, rows_in


@pytest.mark.parametrize("collate", [as_dicts, as_tuples, with_labels])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_full_batches_are_those_of_bare_torch(collate: Callable[[list[Any]], Any], micro_batches: int) -> None:
    module = model()
    recipe = Recipe(build=lambda: module, optimizer=SGD, loss=as_loss(two_losses))
    engine = make_engine(recipe, EngineConfig(micro_batches=micro_batches), World(device=torch.device("cpu")))
    train(engine, Listed(made_up(), collate), batch_size=0, steps=STEPS, seed=1)
    for ours, theirs in zip(module.parameters(), in_bare_torch().parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_test_of_several_outputs_counts_each_example_once() -> None:
    def right(output: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        hits = output["class"].argmax(1) == targets["class"]
        return torch.stack([hits.sum(), torch.tensor(len(hits))])

    hits = Metric("hits", "max", 2, right, lambda sums: float(sums[0] / sums[1]))  # type: ignore[arg-type]
    module, data = model(), Listed(made_up(), as_dicts)
    result = evaluate(local_engine(copy.deepcopy(module), SGD, loss=two_losses), data, metrics=[hits])
    inputs, targets = as_dicts(made_up())
    with torch.no_grad():
        output = module(**inputs)
    assert result.loss == pytest.approx(float(two_losses(output, targets).mean()), rel=1e-6)
    assert result.examples == EXAMPLES
    assert result.values["hits"] == pytest.approx(float(right(output, targets)[0]) / EXAMPLES)


def test_minibatches_see_each_example_once_a_pass() -> None:
    engine = local_engine(model(), SGD, loss=two_losses)
    seen = [
        value
        for batch in engine.batches(Listed(made_up(), as_dicts), batch_size=4, epochs=1, seed=5)
        for value in batch.y["value"].tolist()
    ]
    assert sorted(seen) == sorted(as_dicts(made_up())[1]["value"].tolist())


# --- what is refused --------------------------------------------------------------------------------------------------


def first_step(examples: Sequence[Any], collate: Callable[[list[Any]], Any] | None = None) -> None:
    train(local_engine(nn.Linear(2, 2), SGD), Listed(examples, collate), batch_size=0, steps=1, seed=1)


@pytest.mark.parametrize(
    ("examples", "check"),
    [
        ([("a text", 1)] * 3, "no-tensor"),
        ([({"x": torch.ones(2), "id": "patient 17"}, 1)] * 3, "no-tensor"),
        ([(torch.ones(2), 1, 0.5)] * 3, "no-pair"),
        ([{"x": torch.ones(2), "y": 1}] * 3, "no-pair"),
        ([torch.ones(2)] * 3, "no-pair"),
    ],
    ids=["text", "text in a dict", "three", "dict without labels", "no targets"],
)
def test_what_is_no_batch_is_refused_by_its_rule(examples: Sequence[Any], check: str) -> None:
    with raises(UsageError, check=check):
        first_step(examples)


def test_rows_that_differ_are_refused() -> None:
    with raises(UsageError, check="rows-differ"):
        first_step([(torch.ones(2), 1)] * 3, lambda batch: (torch.ones(2, 2), torch.zeros(3)))
    with raises(UsageError, check="rows-differ"):
        first_step([(torch.ones(2), 1)] * 3, lambda batch: ((torch.ones(3, 2), torch.tensor(3)), torch.zeros(3)))


def test_dataclasses_and_named_tuples_keep_their_kind() -> None:
    @dataclass(frozen=True)
    class Scan:
        image: Tensor
        mask: Tensor | None = None

    class Pair(NamedTuple):
        a: Tensor
        b: Tensor

    doubled = map_tensors(lambda tensor: 2 * tensor, [Scan(torch.ones(2)), Pair(torch.ones(2), torch.zeros(2))])
    scan, pair = doubled
    assert isinstance(scan, Scan)
    assert scan.mask is None
    assert isinstance(pair, Pair)
    assert scan.image.tolist() == pair.a.tolist() == [2.0, 2.0]
    assert rows_in(doubled) == 2
