"""The result of the local work is cached while the exchange may be repeated, and no longer."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.agent.agent import Agent, Pauses
from client_app.exchange.client import Client
from client_app.exchange.exchange import take_part
from client_app.exchange.models import prepare_state_dir
from client_app.ranks.failures import OUT_OF_MEMORY, RankFailed
from client_app.ranks.messages import LocalAnswer
from client_app.records.result_cache import ResultCache, task_digest
from fedcore.codec import CodecSettings, first_encoding
from fedcore.state import ModelState, sha256_file
from fedcore.wire.tasks import ModelRef, Task

Script = Any  # support.scripted.Scripted
Make = Callable[..., Task]


async def take(script: Script, client: Client) -> None:
    async with script.serving():
        await take_part(script.task, client)


async def asked_again(script: Script, client: Client, task: Task) -> None:
    """What the script's task asks, and then `task`."""
    await take(script, client)
    script.go_on(task)
    await take(script, client)


class TestQuestion:
    def test_a_repeat_asks_the_same(self, make_task: Make) -> None:
        first = make_task()
        layout = first.encoding.layout  # type: ignore[union-attr]
        again = make_task(
            exchange=2,
            attempt=2,
            cohort=[1, 2, 3],
            quorum=2,
            encoding=first_encoding(CodecSettings(w_max=100), layout, 3),
            roster=4,
            previous="ab" * 32,
            seconds=1.0,
        )
        assert task_digest(again) == task_digest(first)

    @pytest.mark.parametrize(
        "change",
        [
            {"run": "another"},
            {"exchange": 2},
            {"exchange": 3, "attempt": 2},
            {"server_round": 2},
            {"message_type": "evaluate"},
            {"aggregation": "plain"},
            {"run_config": {"lr": 0.5}},
            {"configs": {"config": {"epochs": 2}}},
            {"settings": {}},
            {"app_sha256": "cd" * 32},
            {"weight_key": "rows"},
            {"arrays_key": "weights"},
            {"model": ModelRef(sha256="1" * 64, size=1)},
        ],
        ids=lambda change: ", ".join(f"{key}" for key in change),
    )
    def test_anything_else_is_another(self, make_task: Make, change: dict[str, Any]) -> None:
        assert task_digest(make_task().model_copy(update=change)) != task_digest(make_task())


class TestExchange:
    async def test_the_app_is_not_run_again(
        self, script: Script, client: Client, make_task: Make, log: StringIO
    ) -> None:
        await take(script, client)
        once = script.decoded
        client.work.by = 3.0  # what a second run would give
        script.go_on(make_task(exchange=2, attempt=2))
        await take(script, client)
        assert client.work.calls == 1
        assert script.decoded.examples == once.examples
        for name, value in once.state.items():
            np.testing.assert_allclose(script.decoded.state[name], value, atol=1e-5)
        assert "a repeated exchange; the app does not run again" in log.getvalue()

    @pytest.mark.parametrize(
        "other",
        [{"run": "another"}, {"exchange": 2}, {"exchange": 2, "attempt": 2, "server_round": 2}],
        ids=["run", "exchange", "round"],
    )
    async def test_another_question_is_another_run(
        self, script: Script, client: Client, make_task: Make, other: dict[str, Any]
    ) -> None:
        await asked_again(script, client, make_task(**other))
        assert client.work.calls == 2

    async def test_another_model_takes_its_place(self, script: Script, client: Client, make_task: Make) -> None:
        await take(script, client)
        state = ModelState.open(script.model)
        ModelState.from_arrays({name: value + np.float32(1) for name, value in state.items()}).save(script.model)
        made = make_task(exchange=2, attempt=2)  # writes the model of before
        other = script.model.with_name("other.safetensors")
        ModelState.from_arrays({name: value + np.float32(1) for name, value in state.items()}).save(other)
        script.model = other
        script.go_on(made.model_copy(update={"model": ModelRef(sha256=sha256_file(other), size=other.stat().st_size)}))
        await take(script, client)
        assert client.work.calls == 2
        assert [path.name for path in client.results.model.parent.iterdir()] == ["local.safetensors"]
        assert ModelState.open(client.results.model)["bias"][0] == pytest.approx(state["bias"][0] + 2)

    async def test_one_that_the_disk_has_changed_is_not_sent(
        self, script: Script, client: Client, make_task: Make, log: StringIO
    ) -> None:
        await take(script, client)
        once = script.decoded
        content = bytearray(client.results.model.read_bytes())
        content[-1] ^= 0x40  # an exponent
        client.results.model.write_bytes(content)
        script.go_on(make_task(exchange=2, attempt=2))
        await take(script, client)
        assert client.work.calls == 2
        for name, value in once.state.items():
            np.testing.assert_allclose(script.decoded.state[name], value, atol=1e-5)
        assert "the app does not run again" not in log.getvalue()

    async def test_a_plain_exchange_too(
        self, script: Script, client: Client, allow: Callable[..., Client], make_task: Make
    ) -> None:
        client = allow(client, allow_plain=True)
        plain = {"aggregation": "plain", "encoding": None, "protection": None}
        script.task = make_task(**plain)
        await asked_again(script, client, make_task(exchange=2, attempt=2, **plain))
        assert client.work.calls == 1
        script.go_on(make_task(exchange=3, attempt=1, **plain))
        await take(script, client)
        assert client.work.calls == 2

    async def test_a_failure_that_nobody_is_told_of_fails_again(
        self, script: Script, client: Client, allow: Callable[..., Client], make_task: Make
    ) -> None:
        """Were it tried again, two sums of one task would differ by this client's update."""
        client = allow(client, report_failures=False)
        task = make_task()
        script.task = task.model_copy(update={"encoding": replace(task.encoding, failures=1)})
        client.work.error = RankFailed("rank 0 is out of memory", OUT_OF_MEMORY)
        await take(script, client)
        client.work.error = None
        script.go_on(script.task.model_copy(update={"exchange": 2, "attempt": 2}))
        await take(script, client)
        assert client.work.calls == 1
        assert script.decoded.failures == 1

    async def test_a_failure_that_is_told_is_tried_anew(self, script: Script, client: Client, make_task: Make) -> None:
        client.work.error = RankFailed("rank 0 is out of memory", OUT_OF_MEMORY)
        agent = Agent(client, Pauses(refusal=0.0, farewell=60.0))
        async with script.serving():
            await agent.take_part(script.task)
            client.work.error = None
            script.go_on(make_task(exchange=2, attempt=2))
            await agent.take_part(script.task)
        assert client.work.calls == 2
        assert script.decoded.failures == 0


class TestFolder:
    async def answered(self, cache: ResultCache, task: Task) -> LocalAnswer:
        async def work() -> LocalAnswer:
            cache.model.write_bytes(b"a model")
            return LocalAnswer(examples=1, metrics={}, trained=True)

        return await cache.get_or_run(task, work, keep_failure=True)

    async def test_it_is_private_and_ends_with_the_agent(self, tmp_path: Path, make_task: Make) -> None:
        with ResultCache(prepare_state_dir(tmp_path / "state")) as cache:
            await self.answered(cache, make_task())
            assert stat.S_IMODE(cache.model.parent.stat().st_mode) == 0o700
            assert cache.has(make_task(exchange=2, attempt=2))
        assert not cache.model.parent.exists()

    async def test_a_result_that_the_disk_has_changed_is_made_again(self, tmp_path: Path, make_task: Make) -> None:
        warnings: list[str] = []
        with ResultCache(prepare_state_dir(tmp_path / "state"), warnings.append) as cache:
            await self.answered(cache, make_task())
            cache.model.write_bytes(b"a muddle")
            await self.answered(cache, make_task(exchange=2, attempt=2))
            assert cache.model.read_bytes() == b"a model"
            assert len(warnings) == 1
            cache.model.unlink()
            await self.answered(cache, make_task(exchange=3, attempt=3))
            assert len(warnings) == 2
            await self.answered(cache, make_task(exchange=4, attempt=4))
            assert len(warnings) == 2

    async def test_a_restart_knows_nothing(self, tmp_path: Path, make_task: Make) -> None:
        folder = prepare_state_dir(tmp_path / "state")
        killed = ResultCache(folder)
        await self.answered(killed, make_task())
        with ResultCache(folder) as cache:
            assert not cache.model.exists()
            assert not cache.has(make_task())
