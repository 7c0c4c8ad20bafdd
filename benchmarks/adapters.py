"""LoRA's two matrices averaged apart, and Fed-SB's one between fixed ones: bytes, loss, and how exact the mean is.

    python benchmarks/adapters.py [--quick] [--json]

Three sites, each with messages and replies of one subject, tune one tiny Llama that was trained on plain text first, in
secure runs in memory. Each adapter has the best of the learning rates named. Then the sites train for one more round,
and the update that the averaged adapter stands for is compared with the mean of the sites' updates, by PEFT's own
account of what an adapter adds to a weight.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
from torch import Tensor, nn

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import fedcore
from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from fedcore import LocalJob, OptimizerConfig, averaging_server, supervised_app
from fedcore.cli.new.examples import chats, messages
from fedcore.system.standard_output import user_output_to_stderr
from fedcore.training import local_engine, train
from fedcore.training.huggingface import CausalLM
from fedcore.training.language import ChatDataset, Conversation, chat_tokenizer, load_base, with_adapter
from fedcore.training.losses import token_cross_entropy
from fedcore.training.metrics import perplexity
from fedcore.training.shared_tensors import adapter_names

SITES = 3
WINDOW = 256
EXACT_AIM = 1e-6
BYTES_AIM = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """An adapter, and the learning rates to choose from."""

    kind: str
    rank: int
    rates: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.kind}, rank {self.rank}"


ARMS = (
    Arm(kind="lora", rank=8, rates=(0.003, 0.01)),
    Arm(kind="sb", rank=8, rates=(0.03, 0.1)),
    Arm(kind="sb", rank=24, rates=(0.03, 0.1)),
)


def main() -> int:
    """The command line."""
    return run(measure, parser("Two ways to average adapters.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All arms on one base."""
    rounds, count = sized(arguments, smallest=(1, 8), quick=(3, 24), whole=(8, 40))
    chosen = {arm.name: arm.rates[:1] if arguments.quick else arm.rates for arm in ARMS}
    arms = ARMS[:2] if arguments.smallest else ARMS
    with tempfile.TemporaryDirectory(prefix="fedcore-adapters-") as folder:
        make_base(Path(folder), steps=sized(arguments, smallest=2, quick=50, whole=300))
        results = {}
        for arm in arms:
            tried = [tuned(arm, folder, rate, rounds, count) for rate in chosen[arm.name]]
            results[arm.name] = min(tried, key=lambda one: one.losses[-1])
            say(f"{arm.name}: {results[arm.name].losses}")
        errors = {arm.name: mean_error(arm, folder, results[arm.name], count) for arm in arms}
    lora, small = results[ARMS[0].name], results[ARMS[1].name]
    return Report(
        benchmark="adapters",
        figures=(
            Figure(name="sb_mean_error", value=errors[ARMS[1].name], aim=EXACT_AIM),
            Figure(name="sb_over_lora_bytes", value=small.update_bytes / lora.update_bytes, aim=BYTES_AIM),
        ),
        tables=(_table(arms, results, errors), _losses(results)),
        notes=(
            f"{SITES} sites of one subject each, secure, {rounds} rounds; the error is that of one more round: how far "
            "the averaged adapter's update of the weights is from the mean of the sites', over that mean's size",
            "learning rates tried: " + "; ".join(f"{name} {list(rates)}" for name, rates in chosen.items()),
        ),
    )


def make_base(folder: Path, *, steps: int) -> None:
    """A tiny Llama that has read the messages as plain text, and its tokenizer."""
    tokenizer, base = chat_tokenizer(""), load_base("", seed=1)
    text = torch.tensor(tokenizer(messages(labels=False), add_special_tokens=False)["input_ids"])
    optimizer = torch.optim.Adam(base.parameters(), lr=0.003)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        starts = torch.randint(len(text) - 64, (16,), generator=generator)
        rows = torch.stack([text[start : start + 64] for start in starts])
        optimizer.zero_grad()
        base(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
    base.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def conversations(site: int, count: int) -> list[Conversation]:
    """Some of one subject: all with one reply."""
    every = [json.loads(line)["messages"] for line in chats().splitlines()]
    replies = sorted({chat[-1]["content"] for chat in every})
    return [chat for chat in every if chat[-1]["content"] == replies[site]][:count]


def parts(site: int, folder: str, count: int) -> tuple[ChatDataset, ChatDataset]:
    """Training and test part of a site."""
    own, tokenizer = conversations(site, count), chat_tokenizer(folder)
    training = [chat for place, chat in enumerate(own) if place % 5 != 4]
    return ChatDataset(training, tokenizer, window=WINDOW), ChatDataset(own[4::5], tokenizer, window=WINDOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a run gave.

    losses: of the test parts after each round. update_bytes: masked, of the last training, one site's.
    """

    rate: float
    losses: tuple[float, ...]
    perplexity: float
    update_bytes: float
    adapter: Mapping[str, Any]


def model(arm: Arm, folder: str) -> CausalLM:
    """The base in a folder with an adapter."""
    return with_adapter(load_base(folder), arm.kind, rank=arm.rank, alpha=2.0 * arm.rank, seed=3)


def tuned(arm: Arm, folder: str, rate: float, rounds: int, count: int) -> Tuned:
    """A secure run of all sites."""
    sites = [parts(site, folder, count) for site in range(SITES)]

    def data(job: LocalJob) -> tuple[ChatDataset, ChatDataset]:
        return sites[int(job.node["partition-id"])]

    client = supervised_app(
        model=lambda config: model(arm, folder),
        optimizer=lambda config: OptimizerConfig(name="adamw", lr=rate),
        data=data,
        loss=token_cross_entropy,
        metrics=(perplexity,),
        weigh="targets",
        adapter=True,
    )
    with user_output_to_stderr():  # the ServerApp prints its figures
        result = fedcore.simulate(
            (client, averaging_server(client)),
            clients=SITES,
            aggregation="secure",
            run_config={"num-server-rounds": rounds, "batch-size": 8, "seed": 1, "local-epochs": 1},
            settings={"field-bits": 16},
            progress=False,
        )
    history, state = result.history, result.model
    assert state is not None
    sent = [column for column in history.columns if column.startswith("bytes") and "up" in column]
    return Tuned(
        rate=rate,
        losses=tuple(history["eval_loss"]),
        perplexity=float(history["perplexity"].iloc[-1]),
        update_bytes=float(history[sent[0]].iloc[-1]) / SITES,
        adapter=dict(state.items()),
    )


def mean_error(arm: Arm, folder: str, result: Tuned, count: int) -> float:
    """One more round: the averaged adapter's update of the weights against the mean of the sites' updates."""
    start = model(arm, folder)
    start.load_state_dict({name: torch.tensor(array) for name, array in result.adapter.items()}, strict=False)
    sites: list[nn.Module] = []
    for site in range(SITES):
        optimizer = OptimizerConfig(name="adamw", lr=result.rate)
        engine = local_engine(copy.deepcopy(start), optimizer, loss=token_cross_entropy)
        train(engine, parts(site, folder, count)[0], batch_size=8, epochs=1, seed=site)
        sites.append(engine.module)
    mean = copy.deepcopy(start)
    for name in adapter_names(start):
        every = [one.get_parameter(name).detach().double() for one in sites]
        mean.get_parameter(name).data = torch.stack(every).mean(0).float()
    before = weight_updates(start)
    true = [torch.stack(layer).mean(0) for layer in zip(*map(weight_updates, sites), strict=True)]
    off = _size([a - b for a, b in zip(weight_updates(mean), true, strict=True)])
    return off / _size([a - b for a, b in zip(true, before, strict=True)])


def weight_updates(module: nn.Module) -> list[Tensor]:
    """What the adapter adds to each weight."""
    layers: list[Any] = [one for one in module.modules() if isinstance(one, peft.tuners.lora.LoraLayer)]
    return [layer.get_delta_weight("default").detach().double() for layer in layers]


def _size(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(tensor.square().sum()) for tensor in tensors))


def _table(arms: Sequence[Arm], results: Mapping[str, Tuned], errors: Mapping[str, float]) -> Table:
    rows = []
    for arm in arms:
        one = results[arm.name]
        elements = sum(array.size for array in one.adapter.values())
        figures = (
            f"{one.update_bytes:,.0f}",
            f"{one.losses[-1]:.4f}",
            f"{one.perplexity:.3f}",
            f"{errors[arm.name]:.1e}",
        )
        rows.append((arm.name, f"{one.rate:g}", f"{elements:,}", *figures))
    header = ("adapter", "lr", "elements", "bytes up, one site, a round", "loss", "perplexity", "error of the mean")
    return Table(title="Both ways", header=header, rows=tuple(rows))


def _losses(results: Mapping[str, Tuned]) -> Table:
    rounds = range(len(next(iter(results.values())).losses))
    rows = tuple((str(number + 1), *(f"{one.losses[number]:.4f}" for one in results.values())) for number in rounds)
    return Table(title="Loss after each round", header=("round", *results), rows=rows)


if __name__ == "__main__":
    sys.exit(main())
