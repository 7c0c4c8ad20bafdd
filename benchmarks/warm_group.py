"""How long a group of ranks takes to start, and what a round costs without its training once it is warm."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from client_app.output import Output
from client_app.ranks.group import GroupSettings
from client_app.ranks.supervisor import LocalGroup
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.run.engine_config import EngineConfig
from fedcore.run.exchange import ExchangeRequest, make_task
from fedcore.run.settings import JobSettings
from fedcore.simulation import model_ref
from fedcore.state import ModelState
from fedcore.training.models import mlp
from fedcore.wire.tasks import Task

APP = Path(__file__).parent / "apps" / "idle"
COHORT = (1, 2, 3, 4)
"""Of a secure task: its words are the agent's own work, and none of the ranks'."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """In seconds. cold: from nothing to the answer of the first task. warm: a later round without its training."""

    cold: float
    warm: float
    parameters: int


def measure_group(ranks: int, *, starts: int, rounds: int) -> Costs:
    """Medians over `starts` groups of `ranks` DDP ranks, and over `rounds` rounds of each."""
    return asyncio.run(_measure(ranks, starts, rounds))


async def _measure(ranks: int, starts: int, rounds: int) -> Costs:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = _write_model(folder / "model.safetensors")
        task = _task(model)
        cold, warm = [], []
        for _ in range(starts):
            group = LocalGroup(_settings(ranks, folder), Output(name="benchmark", stream=(folder / "log").open("w")))
            try:
                cold.append(await _round(group, task, folder))
                warm += [await _round(group, task, folder) for _ in range(rounds)]
            finally:
                await group.stop()
                group.output.stream.close()
    return Costs(cold=median(cold), warm=median(warm), parameters=sum(spec.size for spec in model.layout.specs))


async def _round(group: LocalGroup, task: Task, folder: Path) -> float:
    """Seconds of one task without its training; the first one starts the group."""
    started = time.perf_counter()
    answer = await group.run(task, folder / "model.safetensors", folder / "out.safetensors")
    trained = answer.metrics["seconds"]
    assert isinstance(trained, float)
    return time.perf_counter() - started - trained


def _settings(ranks: int, folder: Path) -> GroupSettings:
    bundle = AppBundle.from_folder(APP)
    return GroupSettings(
        app=bundle.install(folder / "apps"),
        app_sha256=bundle.sha256,
        data_dir=folder,
        client_id=1,
        node_config={},
        engine=EngineConfig.from_mapping({}, ranks=ranks).to_mapping(),
        ranks=ranks,
    )


def _write_model(path: Path) -> ModelState:
    """A model of the app, whatever its weights."""
    width = int(FlowerApp.load(APP).run_config["width"])
    weights = mlp(512, (width,) * 3, 10).state_dict()
    ModelState.from_arrays({name: tensor.numpy() for name, tensor in weights.items()}).save(path)
    return ModelState.open(path)


def _task(model: ModelState) -> Task:
    request = ExchangeRequest(
        message_type="train",
        nodes=COHORT,
        server_round=1,
        model=model,
        arrays_key="arrays",
        configs={"config": {"server-round": 1}},
        weight_key="num-examples",
    )
    return make_task(
        request,
        settings=JobSettings(),
        run="benchmark",
        exchange=1,
        attempt=1,
        cohort=COHORT,
        app_sha256=AppBundle.from_folder(APP).sha256,
        run_config=FlowerApp.load(APP).run_config,
        model=model_ref(model),
        encoding=None,
    )
