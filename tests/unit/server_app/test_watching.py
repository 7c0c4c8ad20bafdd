"""What people see of a run: its rounds, a mark for each client, what the server saw; and the same run again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.members import Failure, Member
from support.serverside import Site, site, until

from fedcore.federation import FederationFolder
from fedcore.monitoring.promise import MASKS_ONLY, masks_and_noise
from fedcore.state import ModelState, sha256_file
from fedcore.system.concurrency import end
from fedcore.wire.events import (
    ClientBlamed,
    ClientDropped,
    ExchangeDone,
    ExchangeStarted,
    FiguresFound,
    PrivacyTerms,
    Recorded,
    RunEvent,
    RunStarted,
    stamp,
)
from fedcore.wire.operator import RunIn
from fedcore.wire.watch import MOST_MARKS, MarksOut, RoundsOut, ServerViewOut
from server_app.operation.server_view import fields
from server_app.views import run_views
from server_app.views.participation_timeline import ParticipationTimeline
from server_app.views.round_charts import RoundCharts

ALL = [1, 2, 3, 4]
NOW = datetime(2026, 1, 2, tzinfo=UTC)
NAMES = ["a", "b", "c"]


async def rounds_of(here: Site, run: str) -> RoundsOut:
    return RoundsOut.model_validate_json((await here.operator("GET", f"/v1/runs/{run}/rounds")).content)


async def marks_of(here: Site, run: str, last: int = 60) -> dict[str, str]:
    found = MarksOut.model_validate_json((await here.operator("GET", f"/v1/runs/{run}/marks?last={last}")).content)
    return {client.name: client.marks for client in found.clients}


async def one_exchange(here: Site, app: Any, model: ModelState | None, kind: str = "train", **options: Any) -> None:
    asked = asyncio.create_task(app.exchange(model, ALL, message_type=kind, **options))
    await here.enter_all()
    await asyncio.gather(*(member.secure() for member in here.members.values()))
    await asked


def numbered(events: list[RunEvent]) -> Iterator[Recorded]:
    return (stamp(seq, float(seq), NOW, event) for seq, event in enumerate(events, 1))


def started(exchange: int, server_round: int, kind: str = "train", cohort: list[str] = NAMES) -> ExchangeStarted:
    return ExchangeStarted(
        exchange=exchange, server_round=server_round, message_type=kind, attempt=1, cohort=cohort, quorum=2,
        field_bits=16, aggregation="secure", model=None,
    )  # fmt: skip


def done(exchange: int, server_round: int, kind: str = "train", **facts: Any) -> ExchangeDone:
    made: dict[str, Any] = {
        "survivors": NAMES, "examples": 10, "metrics": {"loss": 0.5}, "seconds": 1.5,
        "bytes_up": {"a": 10, "b": 20}, "bytes_down": {"a": 1, "b": 2}, **facts,
    }  # fmt: skip
    return ExchangeDone(exchange=exchange, server_round=server_round, message_type=kind, aggregation="secure", **made)


# --- rounds -----------------------------------------------------------------------------------------------------


async def test_rounds_as_they_happen_and_after_a_restart(federation: FederationFolder, tmp_path: Path) -> None:
    model = ModelState.from_arrays({"weight": np.ones(5, np.float32)})
    async with site(federation, tmp_path) as here:
        run, app = await here.begin()
        assert (await rounds_of(here, run)).rounds == []
        await one_exchange(here, app, model)
        await until(lambda: here.application.queue.exchange is not None)
        first = await rounds_of(here, run)
        while not first.rounds:
            first = await rounds_of(here, run)
        (one,) = first.rounds
        assert (one.round, one.cohort, one.survivors, one.dropped) == (1, 4, 4, 0)
        assert one.train["loss"] == pytest.approx(0.5, abs=1e-3)
        assert (one.evaluate, one.epsilon) == ({}, None)
        assert min(one.up, one.down) > 1000
        await here.finish(run, app, model)
        before = await rounds_of(here, run)
        assert before.seq == (await here.show(run)).events[-1].seq
    async with site(federation, tmp_path) as here:
        assert await rounds_of(here, run) == before


def test_a_round_is_its_training_and_its_evaluation() -> None:
    book = RoundCharts()
    events: list[RunEvent] = [
        RunStarted(app="tiny", aggregation="secure", rounds=9),
        started(1, 1), done(1, 1, survivors=["a", "b"], epsilon_spent=1.0, metrics={"loss": math.nan}),
        started(2, 1, "evaluate", ["a"]), done(2, 1, "evaluate", survivors=["a"], metrics={"acc": 0.75}),
        started(3, 2, "query.sum"), done(3, 2, "query.sum"),
    ]  # fmt: skip
    for item in numbered(events):
        book.take(item)
    shown = book.describe(7)
    assert (shown.planned, shown.seq, shown.promise) == (9, 7, MASKS_ONLY)
    assert (shown.up, shown.down) == (90, 9), "the question counts, too"
    (one,) = shown.rounds
    assert (one.train, one.evaluate) == ({"loss": None}, {"acc": 0.75})
    assert (one.cohort, one.survivors, one.dropped) == (3, 2, 1), "of the training"
    assert (one.seconds, one.up, one.down, one.epsilon) == (3.0, 60, 6, 1.0)


def test_a_run_of_queries_alone_has_rounds_once_its_server_app_has_figures() -> None:
    book = RoundCharts()
    events: list[RunEvent] = [
        started(1, 1, "query.tree_sums"), done(1, 1, "query.tree_sums"),
        started(2, 2, "query.tree_sums"), done(2, 2, "query.tree_sums"), done(3, 2, "query.tree_sums"),
    ]  # fmt: skip
    for item in numbered(events):
        book.take(item)
    assert book.describe(5).rounds == []
    figures = FiguresFound(server_round=2, source="evaluate", metrics={"auc": 0.75})
    book.take(stamp(6, 6.0, NOW, figures))
    first, second = book.describe(6).rounds
    assert (first.seconds, first.evaluate, first.train) == (1.5, {}, {})
    assert (second.seconds, second.up, second.evaluate) == (3.0, 60, {"auc": 0.75})


def test_the_promise_of_a_run_is_its_epsilon_if_it_has_one() -> None:
    terms = PrivacyTerms(
        mechanism="skellam", noise_multiplier=1.0, clip_norm=1.0, metric_bound=0.0, epsilon_budget=8.0, delta=1e-5
    )
    unlimited = terms.model_copy(update={"epsilon_budget": None})
    promises: dict[str, RunEvent] = {
        masks_and_noise(8.0, 1e-5): RunStarted(app="tiny", aggregation="secure", privacy=terms),
        masks_and_noise(math.inf, 1e-5): RunStarted(app="tiny", aggregation="secure", privacy=unlimited),
        MASKS_ONLY: RunStarted(app="tiny", aggregation="secure"),
        "": RunStarted(app="tiny", aggregation="plain"),
    }
    for promise, event in promises.items():
        charts = RoundCharts()
        for item in numbered([event]):
            charts.take(item)
        assert charts.describe(1).promise == promise


async def test_a_round_that_is_known_is_not_read_again(
    here: Site, model: ModelState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, app = await here.begin()
    await one_exchange(here, app, model)
    await here.finish(run, app, model)
    await rounds_of(here, run)

    async def fail(*arguments: Any) -> Any:
        raise AssertionError("read again")

    monkeypatch.setattr(here.services.store, "events", fail)
    assert len((await rounds_of(here, run)).rounds) == 1


async def test_a_long_record_is_read_in_pages(here: Site, model: ModelState, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_views, "EVENTS_A_PAGE", 2)
    run, app = await here.begin()
    await one_exchange(here, app, model)
    await here.finish(run, app, model)
    assert (await rounds_of(here, run)).seq == (await here.show(run)).events[-1].seq


def test_hundreds_of_rounds_of_a_thousand_clients_are_one_small_answer() -> None:
    names = [f"site-{number:04}" for number in range(1000)]
    book = RoundCharts()
    opening, end = started(1, 1, "train", names), done(1, 1, survivors=names, bytes_up=dict.fromkeys(names, 1000))
    for number in range(1, 501):
        where = {"exchange": number, "server_round": number}
        book.take(stamp(2 * number, 1.0, NOW, opening.model_copy(update=where)))
        book.take(stamp(2 * number + 1, 1.0, NOW, end.model_copy(update=where)))
    assert len(book.describe(1001).model_dump_json()) < 250 * 500


# --- marks ------------------------------------------------------------------------------------------------------


async def test_where_everybody_stands_in_each_exchange(here: Site, model: ModelState) -> None:
    run, app = await here.begin({"quorum": 3})
    await one_exchange(here, app, model)
    asked = asyncio.create_task(app.exchange(model, ALL))
    members: list[Member] = await here.enter_all()
    names = [member.kit.name for member in members]
    assert set((await marks_of(here, run)).values()) == {"dj"}
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    await members[0].upload()
    await members[2].withdraw()
    assert await marks_of(here, run) == dict(zip(names, ["du", "dt", "dx", "dt"], strict=True))
    assert await marks_of(here, run, last=1) == dict(zip(names, ["u", "t", "x", "t"], strict=True))
    await end(asked)
    await here.operator("POST", f"/v1/runs/{run}/cancel")


def test_blame_outlasts_what_follows_from_it_and_old_exchanges_go() -> None:
    book = ParticipationTimeline()
    events: list[RunEvent] = [
        started(1, 1),
        ClientBlamed(exchange=1, client="a", stage="share", reason="malformed-message"),
        ClientDropped(exchange=1, client="a", stage="share", reason="malformed-message"),
        ClientDropped(exchange=1, client="b", stage="input", reason="silent"),
        done(1, 1, survivors=["c"]),
        ClientDropped(exchange=99, client="a", stage="input", reason="of no exchange that is known"),
        *(started(number, number, "evaluate", ["b"]) for number in range(2, MOST_MARKS + 1)),
    ]
    for item in numbered(events):
        book.take(item)
    shown = book.describe(2, ["d"], {}, 0)
    assert (shown.exchanges, shown.kinds) == ([MOST_MARKS - 1, MOST_MARKS], ["evaluate", "evaluate"])
    assert {client.name: client.marks for client in shown.clients} == {"b": "jj", "d": ".."}
    whole = {client.name: client.marks[0] for client in book.describe(MOST_MARKS, NAMES, {}, 0).clients}
    assert whole == {"a": "!", "b": "x", "c": "d"}
    book.take(stamp(999, 1.0, NOW, started(MOST_MARKS + 1, 1)))
    assert book.describe(MOST_MARKS, [], {}, 0).exchanges[0] == 2


# --- what the server saw ----------------------------------------------------------------------------------------


async def test_a_masked_update_a_masked_sum_and_a_mean(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    with pytest.raises(Failure, match="404"):
        await here.operator("GET", f"/v1/runs/{run}/saw")
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    vectors = {}
    for member in members:
        vectors[member.kit.name], manifest = member.vector()
        await member.send(vectors[member.kit.name])
        await member.put("manifest", manifest)
    await asyncio.gather(*(member.sign() for member in members))
    await asyncio.gather(*(member.unmask() for member in members))
    await asked
    saw = ServerViewOut.model_validate_json((await here.operator("GET", f"/v1/runs/{run}/saw")).content)
    assert (saw.exchange, len(saw.words), len(saw.sum)) == (1, 32, 32)
    words = {name: np.frombuffer(body, "<u8") for name, body in vectors.items()}
    assert saw.words == fields(words[saw.client][:32], saw.bits)[1]
    total = np.sum(list(words.values()), axis=0, dtype=np.uint64)
    assert saw.sum == fields(total[:32], saw.bits)[1]
    assert saw.mean == pytest.approx([float(value) + 1 for value in model["weight"].reshape(-1)[:32]], abs=1e-3)
    await one_exchange(here, app, None, "evaluate")
    assert ServerViewOut.model_validate_json((await here.operator("GET", f"/v1/runs/{run}/saw")).content) == saw
    await here.finish(run, app, model)
    other, app = await here.begin()
    with pytest.raises(Failure, match="404"):
        await here.operator("GET", f"/v1/runs/{other}/saw")
    app.fail("enough")


def test_fields_are_exact_in_a_browser() -> None:
    words = np.array([0x0123_4567_89AB_CDEF, 2**64 - 1], np.uint64)
    assert fields(words, 16) == (16, [0xCDEF, 0x89AB, 0x4567, 0x0123, *[0xFFFF] * 4])
    assert fields(words, 21) == (
        21,
        [(0x0123_4567_89AB_CDEF >> shift) & (2**21 - 1) for shift in (0, 21, 42)] + [2**21 - 1] * 3,
    )
    assert fields(words, 64) == (32, [0x89AB_CDEF, 0x0123_4567, 2**32 - 1, 2**32 - 1])
    assert len(fields(np.zeros(32, np.uint64), 16)[1]) == 32


# --- again ------------------------------------------------------------------------------------------------------


async def test_a_run_is_submitted_again_as_it_was(here: Site, model: ModelState, tmp_path: Path) -> None:
    path = tmp_path / "initial.safetensors"
    model.save(path)
    sha256 = sha256_file(path)
    headers = {"Authorization": f"Bearer {here.operator_kit.token}"}
    await here.http.put(f"/v1/models/{sha256}", content=path.read_bytes(), headers=headers)
    first = await here.submit({"quorum": 3}, {"min-nodes": 4}, initial_model=sha256)
    await until(lambda: bool(here.apps) and here.apps[-1].start is not None)
    ended = await here.finish(first.run, here.apps[-1], model)
    operator = await here.sign_in()
    answer = await here.signed_in(operator, "POST", f"/v1/runs/{first.run}/again")
    assert answer.status_code == 201
    await until(lambda: len(here.apps) == 2 and here.apps[-1].start is not None)
    start = here.apps[-1].start
    assert start is not None
    assert start.initial is not None
    assert sha256_file(Path(start.initial)) == sha256
    again = await here.show(answer.json()["run"])
    assert again.run != first.run
    assert (again.app_sha256, again.settings, again.run_config) == (
        ended.app_sha256, ended.settings, ended.run_config,
    )  # fmt: skip
    here.apps[-1].fail("enough")


async def test_what_is_gone_cannot_be_submitted_again(here: Site) -> None:
    run = (await here.submit()).run
    await here.operator("POST", f"/v1/runs/{run}/cancel")
    await here.services.objects.remove(f"runs/{run}")
    for path in (f"/v1/runs/{run}/again", "/v1/runs/unknown/again"):
        with pytest.raises(Failure) as refused:
            await here.operator("POST", path)
        assert refused.value.problem.kind == "not-found"


async def test_a_model_comes_with_a_good_name(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    await here.finish(run, app, model)
    answer = await here.signed_in(await here.sign_in(), "GET", f"/v1/runs/{run}/model", own=False)
    assert answer.headers["content-disposition"] == f'attachment; filename="tiny-{run}-model.safetensors"'


def test_a_submission_is_what_a_run_keeps() -> None:
    """Whatever a submission has, `again` hands in too: a field that is added here is to be added there."""
    assert set(RunIn.model_fields) == {
        "app_sha256", "files", "run_config", "settings", "statistics", "initial_model", "statistics_from",
    }  # fmt: skip
