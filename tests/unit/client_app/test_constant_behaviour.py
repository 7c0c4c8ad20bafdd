"""What a server sees of a client whose local work fails is what it sees of one whose work succeeds (docs/protocol.md).

Each kind of failure is carried out with the same randomness as a success, against the same server; both tell what they
were sent, byte for byte but for the masked words.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import pytest
from fastapi import Request, Response
from support.privacy import CODEC, plan
from support.scripted import PROTECTION, Scripted, Shift

from client_app.agent.agent import Agent, Pauses
from client_app.exchange.client import Client
from client_app.exchange.contribution import seconds_to_pad
from client_app.exchange.eligibility import Eligibility, Reading
from client_app.exchange.models import prepare_state_dir
from client_app.output import Output
from client_app.ranks.failures import OUT_OF_MEMORY, RANK_HUNG, RANK_KILLED, AppFailed, RankFailed
from client_app.records.ledger import Ledger
from client_app.records.pending_update import PendingUpdate
from client_app.records.result_cache import ResultCache
from client_app.records.transcript import ClientTranscript
from fedcore.codec import Encoding, private_encoding
from fedcore.errors import AppError, StorageFull
from fedcore.federation.eligibility import EligibilityRules
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import WithdrawalReason

PAUSES = Pauses(refusal=0.0, farewell=60.0)
STEPS = ["PUT advertisement", "PUT key-shares", "PUT part 0", "PUT manifest", "PUT consistency", "PUT unmask"]
NOBODY_IS_TOLD = "sending an empty update; the reason stays on this machine"
FAILURES: dict[str, dict[str, Any]] = {
    "the app raises": {"error": AppFailed("...\nValueError: patient 4711 has no age")},
    "rank killed": {"error": RankFailed("rank 1 ended by SIGKILL", RANK_KILLED)},
    "rank hung": {"error": RankFailed("rank 0 gave no answer within 600 s", RANK_HUNG)},
    "out of memory": {"error": RankFailed("rank 0 is out of memory", OUT_OF_MEMORY)},
    "wrong records": {"error": AppError("a reply needs exactly one MetricRecord")},
    "no model": {"forgets": True},
    "disk full": {"error": StorageFull("no space is left for the new model")},
    "no file": {"error": FileNotFoundError(2, "No such file", "patients.csv")},
    "an error nobody foresaw": {"error": ZeroDivisionError("division by zero")},
    "examples over w-max": {"examples": 101},
    "metric over metric-max": {"metrics": {"loss": 2.0**21}},
    "metric that is no number": {"metrics": {"loss": math.nan}},
    "other metrics": {"metrics": {"curve": []}},
    "update that is no number": {"by": math.nan},
}


@dataclass
class Watched(Scripted):
    """Holds the poll of a client that trains, as a real server does, so that no run has one more of them."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def get(self, route: str, request: Request) -> Response:
        if route == "survivors" and "manifest" not in self.bodies:
            self.asked.set()
            while not await request.is_disconnected():  # noqa: ASYNC110 - starlette has no event
                await asyncio.sleep(0.001)
            return Response(status_code=204)  # to nobody, and before or after the next poll
        return await super().get(route, request)


@dataclass
class Seen:
    """One exchange from the server's side, and the owner's log of it."""

    server: Watched
    log: str

    def requests(self) -> list[tuple[str, str, int, object]]:
        """Method, target, length of the body, and what of the body is not masked.

        The model comes while the keys are exchanged, before any work, so chance decides which of them is first.
        """
        heard = sorted(self.server.heard, key=lambda one: not one[1].endswith("/model"))
        return [(method, path, len(body), _unmasked(path, body)) for method, path, body in heard]


def _unmasked(path: str, body: bytes) -> object:
    if "/update/parts/" in path:
        return None
    if path.partition("?")[0].endswith("/manifest"):
        return {key: value for key, value in json.loads(body).items() if key != "digest"}
    return body


Carry = Callable[..., Coroutine[Any, Any, Seen]]


@pytest.fixture
def carry_out(script: Scripted, client: Client, allow: Callable[..., Client], tmp_path: Path) -> Carry:
    """One exchange of a client that reports no failures; its work ends once the keys are exchanged."""
    numbers = itertools.count()

    async def run(task: Task, **changes: Any) -> Seen:
        server = Watched(
            federation=script.federation,
            kits=script.kits,
            model=script.model,
            task=task,
            randomness=random.Random(1).randbytes,
            asked=changes.pop("asked", asyncio.Event()),
        )
        work = Shift(**{"goes_on": server.asked, **changes.pop("work", {})})
        log = StringIO()
        folder = prepare_state_dir(tmp_path / f"state-{next(numbers)}")
        with closing(Ledger(folder)) as ledger, closing(ClientTranscript(folder, client.kit.roster)) as transcript:
            one = replace(
                allow(client, **{"report_failures": False, "allow_x25519": True, **changes.pop("policy", {})}),
                ledger=ledger,
                transcript=transcript,
                state_dir=folder,
                results=ResultCache(folder),
                pending=PendingUpdate(folder),
                work=work,
                output=Output(name="client-1", stream=log),
                randomness=random.Random(2).randbytes,
                **changes,
            )
            async with server.serving():
                await Agent(one, PAUSES).take_part(task)
        return Seen(server, log.getvalue())

    return run


@pytest.fixture
def make(make_task: Callable[..., Task]) -> Callable[..., Task]:
    """Keys of ML-KEM cannot be drawn twice; those of X25519 can."""
    protection = PROTECTION.model_copy(update={"agreement": "x25519"})

    def made(**changes: Any) -> Task:
        task = make_task(protection=protection, **changes)
        if not isinstance(task.encoding, Encoding):
            return task
        return task.model_copy(update={"encoding": replace(task.encoding, failures=1)})

    return made


SUCCESS: list[Seen] = []


@pytest.fixture
async def success(carry_out: Carry, make: Callable[..., Task]) -> Seen:
    """What every failure is compared with; it is the same in each test, so it is carried out once."""
    if not SUCCESS:
        SUCCESS.append(await carry_out(make()))
    return SUCCESS[0]


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_failure_sends_what_a_success_sends(
    carry_out: Carry, make: Callable[..., Task], success: Seen, failure: str
) -> None:
    failed = await carry_out(make(), work=FAILURES[failure])
    assert failed.requests() == success.requests()
    assert failed.server.withdrawals == []
    assert failed.server.update() != success.server.update()
    assert (success.server.decoded.examples, success.server.decoded.failures) == (40, 0)
    assert (failed.server.decoded.examples, failed.server.decoded.failures) == (30, 1)
    assert failed.server.decoded.metrics == {"loss": pytest.approx(0.5)}
    assert NOBODY_IS_TOLD in failed.log


@pytest.mark.parametrize("kind", ["evaluate", "noised"])
async def test_so_it_does_in_other_exchanges(
    carry_out: Carry, make: Callable[..., Task], script: Scripted, kind: str
) -> None:
    layout = ModelState.open(script.model).layout
    noised = private_encoding(CODEC, layout, 4, plan=plan(dp_noise_multiplier=2.0), noise_clients=2)
    settings = JobSettings(clip_norm=1.0, dp_noise_multiplier=2.0).for_clients()
    task = make(message_type="evaluate") if kind == "evaluate" else make(encoding=noised, settings=settings)
    success, failed = await carry_out(task), await carry_out(task, work=FAILURES["the app raises"])
    assert failed.requests() == success.requests()
    assert failed.server.update() != success.server.update()
    assert NOBODY_IS_TOLD in failed.log


async def test_a_machine_that_may_not_train_any_more_sends_the_same(
    carry_out: Carry, make: Callable[..., Task], success: Seen
) -> None:
    battery = Eligibility(rules=EligibilityRules(on_power_only=True), read=lambda: Reading(minute=0, on_power=False))

    class UntilUnplugged(asyncio.Event):
        async def wait(self) -> Literal[True]:
            await asked.wait()
            await battery.update()
            return await super().wait()

    asked = asyncio.Event()
    shift = {"goes_on": UntilUnplugged()}
    failed = await carry_out(make(), work=shift, eligibility=battery, asked=asked)
    assert failed.requests() == success.requests()
    assert "not eligible: on battery; sending an empty update" in failed.log


async def test_a_failure_waits_for_the_keys(carry_out: Carry, make: Callable[..., Task]) -> None:
    """Without anything to wait for, the work of both has ended long before R1."""
    for work in ({}, FAILURES["rank killed"]):
        seen = await carry_out(make(), work={"goes_on": None, **work})
        assert [request for request in seen.server.requests if request.startswith("PUT")] == STEPS
        # The upload is due once the keys are: nothing is left to watch.
        assert "GET survivors" not in seen.server.requests[: seen.server.requests.index("PUT part 0")]


async def test_who_may_be_told_is_told(carry_out: Carry, make: Callable[..., Task]) -> None:
    failed = await carry_out(make(), work=FAILURES["the app raises"], policy={"report_failures": True})
    assert [withdrawal.reason for withdrawal in failed.server.withdrawals] == [WithdrawalReason.APP_FAILED]
    assert "PUT part 0" not in failed.server.requests


@pytest.mark.parametrize(
    ("elapsed", "pad", "limit", "wait"),
    [
        (3.0, 0.0, 60.0, 0.0),
        (3.0, 10.0, 60.0, 7.0),
        (10.0, 10.0, 60.0, 0.0),
        (10.5, 10.0, 60.0, 9.5),
        (52.0, 50.0, 60.0, 8.0),  # not longer than the task allows
        (61.0, 50.0, 60.0, 0.0),
    ],
)
def test_uploads_begin_at_whole_multiples(elapsed: float, pad: float, limit: float, wait: float) -> None:
    assert seconds_to_pad(elapsed, pad=pad, limit=limit) == wait


@pytest.mark.parametrize("failure", [{}, FAILURES["out of memory"]])
async def test_a_padded_upload_waits_while_the_exchange_is_watched(
    carry_out: Carry, make: Callable[..., Task], failure: dict[str, Any]
) -> None:
    now, slept = [100.0], []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    class Hours(asyncio.Event):
        """Three hours pass while it trains."""

        async def wait(self) -> Literal[True]:
            now[0] += 3 * 3600.0
            return True

    policy = {"pad_seconds": 3600.0 * 2}
    work = {"goes_on": Hours(), **failure}
    await carry_out(make(seconds=86400.0), work=work, policy=policy, clock=lambda: now[0], sleep=sleep)
    assert slept == [3600.0]
