"""Downloads on slow lines where the mean is no model: the exact difference to the last one over the model.

    python benchmarks/downloads.py --data-dir DATA [--quick] [--json]

The models that a server sends in the secure runs of `bytes.py` on heart disease (four hospitals): with FedAdam; with
FedAvgM; and with differential privacy, whose noise for four clients is larger than most weights, so that little is
saved. Of each model after the first, the file with its exact difference
(`fedcore.state.exact_difference`) over the model; 1 if there is none. difference_over_model: the mean without noise.

seconds_over_saved: the processor's seconds for making and applying the difference of 1e7 float32 numbers, each of which
has moved by a hundredth of the standard deviation, and for hashing the result, over the seconds in which a line of 200
Mbit/s carries the bytes that it saves. On a slower line it pays.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.bytes import CASES, initial_model, most_examples, own_part
from benchmarks.common import Figure, Report, Table, data_parser, run, say, sized
from benchmarks.stopwatch import Patience, shortest
from fedcore import averaging_server, supervised_app
from fedcore.flower.memory_app import load_app
from fedcore.monitoring.line_speed import CHANGES_BELOW
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.settings import JobSettings
from fedcore.simulation import Simulation
from fedcore.state import ModelState, apply_exact_difference, sha256_file, write_exact_difference
from fedcore.training import OptimizerConfig
from fedcore.wire.base import Scalar

NOISED = "differential privacy"
RUNS: Mapping[str, tuple[Mapping[str, Scalar], Mapping[str, object]]] = {
    "FedAdam": ({"strategy": "fedadam", "server-lr": 0.01}, {}),
    "FedAvgM": ({"strategy": "fedavgm", "server-momentum": 0.9}, {}),
    NOISED: ({}, {"clip-norm": 1.0, "dp-noise-multiplier": 1.0}),
}
"""Run config and settings of each."""
(CASE,) = (one for one in CASES if one.name == "heart_disease")


def main() -> int:
    """The command line."""
    return run(measure, data_parser("Exact differences between models over the models.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """The sizes in each run, and the seconds."""
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    rounds = sized(arguments, smallest=3, quick=10, whole=CASE.rounds)
    with tempfile.TemporaryDirectory() as folder:
        shares = {name: _shares(name, rounds, Path(folder)) for name in RUNS}
        saved, made, applied = _seconds(sized(arguments, smallest=10**5, quick=10**7, whole=10**7), Path(folder))
    without_noise = [share for name in RUNS if name != NOISED for share in shares[name]]
    rows = [(name, *(f"{at(found):.3f}" for at in (min, fmean, max))) for name, found in shares.items()]
    return Report(
        benchmark="downloads",
        figures=(
            Figure(name="difference_over_model", value=fmean(without_noise), aim=0.75),
            Figure(name="seconds_over_saved", value=(made + applied) / saved, aim=1.0),
        ),
        tables=(
            Table(title="exact difference over model", header=("run", "least", "mean", "most"), rows=tuple(rows)),
            Table(
                title="1e7 float32 numbers, ms",
                header=("saved at 200 Mbit/s", "make", "apply"),
                rows=(tuple(f"{1e3 * seconds:.0f}" for seconds in (saved, made, applied)),),
            ),
        ),
        notes=(
            f"{CASE.clients} clients, {rounds} rounds of {CASE.steps} steps",
            "applying includes the SHA-256 of the result",
        ),
    )


@dataclass(slots=True, kw_only=True)
class _Sent(Simulation):
    """A simulation that measures what it sends. folder: for its files."""

    folder: Path
    shares: list[float] = field(default_factory=list, init=False)

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        base, model, difference = (self.folder / name for name in ("base", "model", "difference"))
        if request.model is not None:
            request.model.save(model)
            if base.exists():
                is_there = write_exact_difference(ModelState.open(base), ModelState.open(model), difference)
                self.shares.append(difference.stat().st_size / model.stat().st_size if is_there else 1.0)
            model.replace(base)
        return super(_Sent, self).exchange(request)


def _shares(name: str, rounds: int, folder: Path) -> list[float]:
    """Of each model of a run, the difference over the model."""
    own_config, own_settings = RUNS[name]
    config: dict[str, Scalar] = {"num-server-rounds": rounds, "fraction-evaluate": 0.0, "seed": 0}
    config |= {"min-nodes": CASE.clients, "local-epochs": 0, "local-steps": CASE.steps, "batch-size": CASE.batch}
    client = supervised_app(
        model=partial(initial_model, CASE),
        optimizer=lambda _: OptimizerConfig(lr=CASE.lr, momentum=CASE.momentum),
        data=partial(own_part, CASE),
    )
    with load_app((client, averaging_server(client)), {**config, **own_config}) as app:
        settings = JobSettings.from_mapping({"w-max": most_examples(CASE, 0), **own_settings})
        simulation = _Sent(
            app=app.app, clients=CASE.clients, run_config=app.app.run_config, settings=settings, folder=folder / name
        )
        simulation.folder.mkdir()
        simulation.run()
    say(f"{name}: {fmean(simulation.shares):.3f}")
    return simulation.shares


def _seconds(size: int, folder: Path) -> tuple[float, float, float]:
    """Seconds in which 200 Mbit/s carry what the difference saves, of making it, and of applying it."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal(size)
    for name, step in (("base", 0.0), ("model", 0.01)):
        values = (weights + step * rng.standard_normal(size)).astype(np.float32)
        ModelState.from_arrays({"weight": values}).save(folder / name)
    base, model, difference, made = (folder / name for name in ("base", "model", "difference", "made"))

    def apply() -> None:
        apply_exact_difference(ModelState.open(base), difference, made)
        if sha256_file(made) != sha256:
            raise AssertionError("another model")

    sha256 = sha256_file(model)
    times = shortest(
        {
            "make": lambda: write_exact_difference(ModelState.open(base), ModelState.open(model), difference),
            "apply": apply,
        },
        Patience(seconds=3.0),
        clock=time.process_time,
    )
    saved = model.stat().st_size - difference.stat().st_size
    return saved / CHANGES_BELOW, times["make"], times["apply"]


if __name__ == "__main__":
    raise SystemExit(main())
