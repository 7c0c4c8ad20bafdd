"""Runs with differential privacy at the server: epsilon after every exchange, and the budget that ends a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.members import Failure, Local, withdraw_all
from support.serverside import Site, events_of, site, until

from fedcore.codec import release_of
from fedcore.codec.privacy import Accountant
from fedcore.federation import FederationFolder
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from server_app.runs.app.messages import BudgetReached, ExchangeRefused, Replies
from tests.support.raising import raises

ALL = [1, 2, 3, 4]
PRIVATE = {"clip-norm": 1.0, "dp-noise-multiplier": 2.0}


@pytest.fixture
def model() -> ModelState:
    return ModelState.from_arrays({"weight": np.zeros(2500, np.float32)})


def give_locals(site: Site) -> None:
    for member in site.members.values():
        member.local = Local(by=0.0, examples=10 * member.id, metrics={"acc": 0.5})


async def exchange(here: Site, app: Any, model: ModelState, **options: Any) -> Any:
    asked = asyncio.create_task(app.exchange(model, ALL, **options))
    await asyncio.gather(*(member.secure() for member in await here.enter_all()))
    return await asked


async def test_epsilon_is_in_the_record_after_every_exchange(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin({**PRIVATE, "dp-metric-bound": 1.0, "evaluate-metrics": ["acc"]})
    trained = await exchange(here, app, model)
    release = release_of(here.members[1].task.encoding)  # type: ignore[union-attr]
    assert release is not None
    assert release.shares == 2, (
        "the smallest cohort, less the one that may collude with the server, not the present one"
    )
    (reply,) = trained.replies
    assert (reply.examples, reply.metrics) == (4, {}), "every client weighs the same, and sends no metrics"
    noise = reply.model()["weight"].std()
    # Seven standard deviations of the estimate.
    assert noise == pytest.approx(2 / np.sqrt(2 * 4), rel=0.1), "four shares, each for one of two"
    evaluated = await exchange(here, app, model, message_type="evaluate")
    assert set(evaluated.replies[0].metrics) == {"acc"}
    ended = await here.finish(run, app, model)
    done = events_of(ended, "exchange-done")
    metrics = release_of(here.members[1].task.encoding)  # type: ignore[union-attr]
    assert metrics is not None
    assert [data["epsilon_spent"] for data in done] == [
        Accountant((release,)).epsilon(1e-5),
        Accountant((release, metrics)).epsilon(1e-5),
    ]
    assert (done[0]["examples"], done[0]["metrics"]) == (4, {})
    assert events_of(ended, "started")[0]["privacy"]["noise_multiplier"] == 2.0


async def test_the_budget_ends_the_run_with_its_last_model(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin({"clip-norm": 1.0, "dp-epsilon": 8.0, "dp-rounds": 2})
    for _ in range(2):
        assert isinstance(await exchange(here, app, model), Replies)
    answer = await app.exchange(model, ALL)
    assert isinstance(answer, BudgetReached)
    assert answer.reason.startswith("privacy-budget: epsilon 7.99")
    ended = await here.finish(run, app, model)
    assert (ended.status, ended.reason) == ("finished", answer.reason)
    assert ended.model is not None
    assert len(events_of(ended, "exchange")) == 2, "no client was asked for the third"


async def _leave(here: Site, step: str) -> None:
    await asyncio.gather(*(member.secure(until=step) for member in await here.enter_all()))
    await withdraw_all(here.members.values())


@pytest.mark.parametrize(("step", "counts"), [("upload", 0), ("sign", 0), ("unmask", 1)])
async def test_a_failed_exchange_counts_once_shares_were_asked_for(
    here: Site, model: ModelState, step: str, counts: int
) -> None:
    give_locals(here)
    run, app = await here.begin({**PRIVATE, "max-attempts": 1})
    asked = asyncio.create_task(app.exchange(model, ALL))
    await _leave(here, step)
    assert isinstance(await asked, ExchangeRefused)
    await exchange(here, app, model)
    release = release_of(here.members[1].task.encoding)  # type: ignore[union-attr]
    ended = await here.finish(run, app, model)
    (done,) = events_of(ended, "exchange-done")
    assert done["epsilon_spent"] == Accountant([release] * (counts + 1)).epsilon(1e-5)  # type: ignore[list-item]


async def test_a_budget_that_pays_for_nothing_is_refused_at_once(here: Site) -> None:
    with raises(Failure, kind="bad-configuration", match="dp-noise-multiplier.*dp-epsilon"):
        await here.submit({**PRIVATE, "dp-noise-multiplier": 0.5, "dp-epsilon": 1.0})


async def test_a_model_with_integer_tensors_fails_before_anybody_trains(here: Site) -> None:
    run, app = await here.begin(PRIVATE)
    counted = ModelState.from_arrays({"weight": np.zeros(3, np.float32), "batches": np.array(0, np.int64)})
    asked = asyncio.create_task(app.exchange(counted, ALL))
    ended = await here.follow(run)
    await end(asked)
    assert ended.status == "failed"
    assert "integer tensor 'batches' cannot be trained with differential privacy" in ended.reason


async def test_a_restart_gives_nothing_of_the_budget_back(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    """Neither for an exchange that has ended, nor for one that was asked for shares and lost."""
    settings = {"clip-norm": 1.0, "dp-epsilon": 8.0, "dp-rounds": 3, "max-attempts": 2, "min-clients": 4}
    async with site(federation, tmp_path) as first:
        give_locals(first)
        run, app = await first.begin(settings)
        app_sha256 = (await first.show(run)).app_sha256
        await exchange(first, app, model)
        asked = asyncio.create_task(app.exchange(model, ALL))
        await asyncio.gather(*(member.secure(until="unmask") for member in await first.enter_all()))
        (done,) = events_of(await first.show(run), "exchange-done")
        await end(asked)
    async with site(federation, tmp_path) as second:
        give_locals(second)
        await until(lambda: bool(second.apps) and second.apps[0].start is not None)
        again = second.apps[0]
        assert isinstance(await again.exchange(model, ALL), Replies)
        for member in second.members.values():
            await member.join(app_sha256)
        asked = asyncio.create_task(again.exchange(model, ALL))
        await until(lambda: second.application.queue.exchange is not None)
        second.clock.advance(100_000)  # nobody comes back to the exchange that had asked for shares
        while not events_of(await second.show(run), "exchange-failed"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for member in second.members.values():
            await member.join(app_sha256)
        await asyncio.gather(*(member.secure() for member in await second.enter_all()))
        assert isinstance(await asked, Replies)
        answer = await again.exchange(model, ALL)
        assert isinstance(answer, BudgetReached), "three were paid for, and the lost one was the second"
        ended = await second.finish(run, again, model)
    release = release_of(second.members[1].task.encoding)  # type: ignore[union-attr]
    spent = [data["epsilon_spent"] for data in events_of(ended, "exchange-done")]
    assert spent == [done["epsilon_spent"], Accountant([release] * 3).epsilon(1e-5)]  # type: ignore[list-item]
    assert spent[0] == Accountant([release]).epsilon(1e-5)  # type: ignore[list-item]
