"""The best model by a metric is that which was evaluated, and survives what the run survives."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
from support.members import Failure, Local
from support.serverside import ScriptedApp, Site, events_of, site, until

from fedcore.federation import FederationFolder
from fedcore.state import ModelState, read_facts
from tests.support.raising import raises

ALL = [1, 2, 3, 4]


def model_of(number: float) -> ModelState:
    return ModelState.from_arrays({"weight": np.full(3, number, np.float32)})


async def started(here: Site) -> ScriptedApp:
    await until(lambda: bool(here.apps) and here.apps[0].start is not None)
    return here.apps[0]


async def evaluate(here: Site, app: ScriptedApp, model: ModelState, metrics: dict[str, float]) -> None:
    asked = asyncio.create_task(app.exchange(model, ALL, message_type="evaluate"))
    members = await here.enter_all()
    for member in members:
        member.local = Local(metrics=metrics)
    await asyncio.gather(*(member.secure() for member in members))
    await asked


async def best(here: Site, run: str, folder: Path) -> tuple[float, str]:
    path = folder / "best.safetensors"
    path.write_bytes((await here.operator("GET", f"/v1/runs/{run}/model?which=best")).content)
    facts = read_facts(path)
    assert facts is not None
    assert facts.kind == "best"
    return float(ModelState.open(path)["weight"][0]), facts.best


async def test_the_model_that_was_evaluated_best_is_kept_over_a_restart(
    federation: FederationFolder, tmp_path: Path
) -> None:
    async with site(federation, tmp_path) as first:
        run, app = await first.begin({"best-model": "acc:max"})
        with raises(Failure, kind="not-found"):
            await best(first, run, tmp_path)
        await evaluate(first, app, model_of(1), {"acc": 0.5})
        await evaluate(first, app, model_of(2), {"acc": 0.75})
        assert await best(first, run, tmp_path) == (2.0, "acc = 0.75, the largest")
    async with site(federation, tmp_path) as second:
        app = await started(second)
        for number in (1, 2):  # the app hears the same again
            await app.exchange(model_of(number), ALL, message_type="evaluate")
        app_sha256 = (await second.show(run)).app_sha256
        await asyncio.gather(*(member.join(app_sha256) for member in second.members.values()))
        await evaluate(second, app, model_of(3), {"acc": 0.625})
        ended = await second.finish(run, app, model_of(3))
        assert ended.status == "finished"
        assert await best(second, run, tmp_path) == (2.0, "acc = 0.75, the largest")


async def test_what_the_strategy_reads_off_sums_may_tell_the_best(federation: FederationFolder, tmp_path: Path) -> None:
    """It comes after the answer to the exchange; the model that it is about is still there then."""

    async def judge(here: Site, app: ScriptedApp, number: int, auc: float) -> None:
        await evaluate(here, app, model_of(number), {"auc/sums": 0.5})
        app.report_figures(number, "evaluate", auc=auc)

    async with site(federation, tmp_path) as first:
        run, app = await first.begin({"best-model": "auc:max"})
        await judge(first, app, 1, 0.625)
        await judge(first, app, 2, 0.75)
        await app.nodes()
        assert await best(first, run, tmp_path) == (2.0, "auc = 0.75, the largest")
    async with site(federation, tmp_path) as second:
        app = await started(second)
        for number, auc in ((1, 0.625), (2, 0.75)):
            await app.exchange(model_of(number), ALL, message_type="evaluate")
            app.report_figures(number, "evaluate", auc=auc)
        await app.nodes()
        app_sha256 = (await second.show(run)).app_sha256
        await asyncio.gather(*(member.join(app_sha256) for member in second.members.values()))
        await judge(second, app, 3, 0.6875)
        app.report_figures(3, "train", auc=0.99)
        app.report_figures(2, "evaluate", auc=0.98)
        ended = await second.finish(run, app, model_of(3))
        assert await best(second, run, tmp_path) == (2.0, "auc = 0.75, the largest")
    told = [(one["server_round"], one["source"], one["metrics"]["auc"]) for one in events_of(ended, "figures")]
    assert told == [(1, "evaluate", 0.625), (2, "evaluate", 0.75), (3, "evaluate", 0.6875), (3, "train", 0.99)]
    assert not [one for one in events_of(ended, "warning") if "best-model" in one["line"]]
