"""Every kind of problem reached through a client, and that the exchange goes on as if nothing was."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import APIRouter
from support.members import Failure, Member, digest_of
from support.serverside import TINY, ScriptedApp, Site, as_json

from fedcore.errors import ConfigurationError, StorageFull, UsageError
from fedcore.flower.app import AppBundle
from fedcore.run.quorum import quorum_for
from fedcore.run.requirements import least_clients
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from fedcore.wire.operator import RunIn
from fedcore.wire.problems import ProblemKind
from fedcore.wire.uploads import ReplyError, WithdrawIn
from server_app.exchanges.sums import sum_file
from server_app.exchanges.sums.sum_file import fold_file
from server_app.http.audience import Audiences
from server_app.http.problems import rejection_for
from server_app.rejection import STATUS, Rejection
from server_app.runs.app.messages import PlainReplies, Replies
from server_app.runs.plan import RunPlan
from server_app.storage import blobs
from server_app.views.members import members_out
from tests.support.raising import raises

ALL = [1, 2, 3, 4]


@dataclass
class Open:
    """An open exchange that everybody has entered."""

    site: Site
    run: str
    app: ScriptedApp
    members: list[Member]
    asked: asyncio.Task[Any]

    async def until(self, step: str) -> Member:
        """Everybody stands before `step`; the first member."""
        await asyncio.gather(*(member.secure(until=step) for member in self.members))
        return self.members[0]

    async def complete(self, *steps: str) -> Replies:
        """Everybody does the steps that are left; the honest continuation works."""
        for step in steps:
            await asyncio.gather(*(getattr(member, step)() for member in self.members))
        answer = await self.asked
        assert isinstance(answer, Replies)
        return answer


@pytest.fixture
async def opened(here: Site, model: ModelState) -> AsyncIterator[Open]:
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    yield Open(here, run, app, members, asked)
    await end(asked)


async def problem(work: Any, kind: str, match: str | None = None, numbers: Sequence[int] = ()) -> Failure:
    """The refusal, of this kind."""
    with raises(Failure, match=match, numbers=numbers) as refused:
        await work
    assert refused.value.problem.kind == kind, str(refused.value)
    assert refused.value.response.headers["content-type"] == "application/problem+json"
    assert refused.value.problem.status == refused.value.response.status_code
    return refused.value


# --- identity -----------------------------------------------------------------------------------


async def test_unsigned_foreign_and_altered_requests_are_refused(here: Site) -> None:
    member = here.members[1]
    plain = await here.http.get("/v1/task")
    assert (plain.status_code, as_json(plain)["type"]) == (401, "urn:fedcore:problem:unauthorized")
    stranger = Ed25519PrivateKey.generate()
    for options in (
        {"key": stranger},
        {"key_id": "client-9"},
        {"key_id": "client-2"},
        {"key_id": "operator"},
    ):
        await problem(member.ask("GET", "/v1/task", **options), "unauthorized")  # type: ignore[arg-type]
    for seconds, off in ((-4000, {}), (4000, {"client-1": pytest.approx(4000, abs=5)})):
        await problem(member.ask("GET", "/v1/task", now=time.time() + seconds), "wrong-clock")
        named = {one.name: one.clock_seconds for one in members_out(here.services).clients if one.clock_seconds}
        assert named == off, "a request from the past may have waited"
    await member.ask("GET", "/v1/task")
    assert "clock_seconds" not in members_out(here.services).model_dump_json()
    headers = member.signed("GET", "/v1/task")
    for path, method in (("/v1/task?after=3", "GET"), ("/v1/heartbeat", "POST")):
        moved = await here.http.request(method, path, headers=headers)
        assert moved.status_code == 401


async def test_a_replayed_request_is_refused(here: Site) -> None:
    headers = here.members[1].signed("GET", "/v1/task")
    first = await here.http.get("/v1/task", headers=headers)
    again = await here.http.get("/v1/task", headers=headers)
    assert (first.status_code, again.status_code) == (204, 401)
    assert as_json(again)["type"] == "urn:fedcore:problem:unauthorized"


async def test_an_unsigned_request_is_no_sign_of_life(here: Site) -> None:
    await here.http.get("/v1/task", headers={"Signature-Input": 'fedcore=();keyid="client-1"'})
    assert here.services.presence.online(60.0) == frozenset()
    await here.members[1].ask("GET", "/v1/task")
    assert here.services.presence.online(60.0) == {1}


async def test_operators_need_the_token_and_clients_cannot_use_their_address(here: Site) -> None:
    token = here.operator_kit.token
    for value in ("", "Bearer", "Bearer wrong", f"Basic {token}", f"Bearer {token}x"):
        answer = await here.http.get("/v1/clients", headers={"Authorization": value})
        assert answer.status_code == 401
    signed = here.members[1].signed("GET", "/v1/clients")
    assert (await here.http.get("/v1/clients", headers=signed)).status_code == 401
    bearer = {"Authorization": f"Bearer {token}"}
    assert (await here.http.get("/v1/task", headers=bearer)).status_code == 401
    assert (await here.http.get("/v1/clients", headers=bearer)).status_code == 200


async def test_a_route_that_does_not_say_who_may_call_it_is_closed(here: Site) -> None:
    called = []

    async def hidden() -> None:
        called.append(True)

    router = APIRouter(prefix="/v1")
    router.add_api_route("/hidden", hidden)
    with pytest.raises(UsageError, match="/v1/hidden"):
        Audiences(router.routes)
    for path in ("/hidden", "/v1/runs/hidden/x"):
        here.application.fastapi.add_api_route(path, hidden, methods=["POST"])
        bearer = {"Authorization": f"Bearer {here.operator_kit.token}"}
        for headers in ({}, bearer, here.members[1].signed("POST", path, b"")):
            answer = await here.http.post(path, headers=headers)
            assert (answer.status_code, as_json(answer)["type"]) == (404, "urn:fedcore:problem:not-found")
    assert not called


def test_what_viewers_are_to_see_is_there() -> None:
    with pytest.raises(UsageError, match="'/v1/live'"):
        Audiences([]).check_viewers()


async def test_the_health_and_the_schema_are_open(here: Site) -> None:
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
        assert (await here.http.get(path)).status_code == 200


async def test_the_page_of_the_schema_names_no_other_host(here: Site) -> None:
    page = await here.http.get("/docs")
    named = re.findall(r'(?:src|href)="([^"]*)"', page.text)
    assert len(named) == 4
    for name in named:
        answer = await here.http.get(f"/{name}")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy == page.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "http" not in policy
    assert "//" not in page.text + (await here.http.get("/docs/start.js")).text
    assert (await here.http.get("/docs/redoc.standalone.js")).status_code == 422


async def test_who_is_there_is_shown_to_the_operator(here: Site) -> None:
    await here.members[2].join("ab" * 32)
    clients = as_json(await here.operator("GET", "/v1/clients"))["clients"]
    assert [client["online"] for client in clients] == [False, True, False, False]
    assert clients[1]["app_sha256"] == "ab" * 32


# --- form ---------------------------------------------------------------------------------------


async def test_a_malformed_body_is_not_echoed(opened: Open) -> None:
    member = opened.members[0]
    path = member.at("advertisement")
    secret = "c2VjcmV0LXRleHQ="
    for body in (
        b"{",
        b"[]",
        b'{"c_public": "' + secret.encode() + b'"}',
        json.dumps({secret: 1, "c_public": secret}).encode(),
        json.dumps({"c_public": "not base64 secret-text"}).encode(),
    ):
        refused = await problem(member.ask("PUT", path, body), "malformed")
        assert "secret" not in refused.response.text
        assert secret not in refused.response.text
    await opened.complete("secure")


async def test_a_digest_that_is_not_the_bodys_is_refused(opened: Open) -> None:
    member = opened.members[0]
    body = b'{"run": "", "exchange": 0}'
    wrong = hashlib.sha256(b"other").digest()
    await problem(member.ask("POST", "/v1/heartbeat", body, digest=wrong), "digest-mismatch")
    await member.ask("POST", "/v1/heartbeat", body)


async def test_a_control_message_has_a_size_limit(here: Site) -> None:
    member = here.members[1]
    refused = await problem(member.ask("POST", "/v1/heartbeat", b" " * 100_000), "too-large")
    assert refused.response.status_code == 413
    assert "connection" not in refused.response.headers, "what is left of it is short, and was read"

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 10_000

    body = b" " * 1_000_000
    headers = member.signed("POST", "/v1/heartbeat", body)
    answer = await here.http.post("/v1/heartbeat", content=endless(), headers=headers)
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")


async def test_addresses_that_do_not_exist(opened: Open) -> None:
    member = opened.members[0]
    await problem(member.ask("GET", "/v1/nowhere"), "not-found")
    base = f"/v1/runs/{opened.run}/exchanges"
    await problem(member.ask("GET", f"{base}/7/cohort"), "not-found")
    await problem(member.ask("GET", f"{base}/0/cohort"), "malformed")
    await problem(opened.site.operator("GET", "/v1/runs/none"), "not-found")
    await problem(opened.site.operator("GET", f"/v1/runs/{opened.run}/model"), "not-found")
    await problem(member.ask("DELETE", f"{base}/1/cohort"), "not-found")


async def test_plain_exchanges_have_no_protocol_steps(here: Site, model: ModelState) -> None:
    _, app = await here.begin({"aggregation": "plain"})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await problem(members[0].get("cohort"), "not-found")
    await asyncio.gather(*(member.plain() for member in members))
    await asked


# --- repetition and order -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "left"),
    [
        ("advertisement", ["share", "receive", "upload", "sign", "unmask"]),
        ("key-shares", ["receive", "upload", "sign", "unmask"]),
        ("update/parts/0", ["sign", "unmask"]),
        ("manifest", ["sign", "unmask"]),
        ("consistency", ["unmask"]),
        ("unmask", []),
    ],
)
async def test_the_same_bytes_again_get_the_same_answer_and_others_a_conflict(
    opened: Open, step: str, left: list[str]
) -> None:
    member = opened.members[0]
    before = {"advertisement": "share", "key-shares": "receive", "consistency": "unmask"}
    stop = before.get(step, "sign" if step in ("update/parts/0", "manifest") else "")
    await asyncio.gather(*(other.secure(until=stop) for other in opened.members))
    for _ in range(2):
        await member.ask("PUT", member.at(step), member.sent[step])
    other = opened.members[1].sent[step]
    await problem(member.ask("PUT", member.at(step), other), "conflict")
    (reply,) = (await opened.complete(*left)).replies
    assert reply.examples == 40


async def test_two_uploads_at_once_count_once(opened: Open) -> None:
    member = await opened.until("upload")
    body, manifest = member.vector()
    await asyncio.gather(*(member.put("update/parts/0", body) for _ in range(4)))
    await asyncio.gather(*(member.put("manifest", manifest) for _ in range(4)))
    opened.members.remove(member)
    await asyncio.gather(*(other.upload() for other in opened.members))
    opened.members.append(member)
    (reply,) = (await opened.complete("sign", "unmask")).replies
    assert reply.examples == 40


async def test_a_step_before_its_time_is_a_violation(opened: Open) -> None:
    member = opened.members[0]
    await member.advertise()
    body = b'{"signature": "' + b"A" * 86 + b'=="}'
    refused = await problem(member.ask("PUT", member.at("consistency"), body), "protocol-violation", "out-of-order")
    assert refused.problem.model_extra == {"check": "out-of-order"}
    await opened.complete("advertise", "share", "receive", "upload", "sign", "unmask")


async def test_a_message_that_fails_a_check_names_it(opened: Open) -> None:
    first, second = opened.members[:2]
    await second.advertise()
    refused = await problem(
        first.ask("PUT", first.at("advertisement"), second.sent["advertisement"]),
        "protocol-violation",
    )
    assert refused.problem.model_extra is not None
    assert refused.problem.model_extra["check"]
    await opened.complete("secure")


# --- uploads ------------------------------------------------------------------------------------


async def test_uploads_that_do_not_fit_are_refused_whole(opened: Open) -> None:
    member = await opened.until("upload")
    body, manifest = member.vector()
    path = member.at("update/parts/0")
    await problem(member.ask("PUT", member.at("manifest"), manifest), "parts-missing", numbers=(0,))
    right = hashlib.sha256(body).digest()
    await problem(member.ask("PUT", path, body[:-8]), "malformed", numbers=(0, len(body)))
    await problem(member.ask("PUT", path, body + b"x"), "too-large", numbers=(0, len(body)))
    flipped = bytes([body[0] ^ 1]) + body[1:]
    await problem(member.ask("PUT", path, flipped, digest=right), "digest-mismatch", "SHA-256")
    settings = opened.site.services.settings
    assert list(settings.spool_dir.iterdir()) == []
    await member.send(body)
    for change in ({"size": 8}, {"examples": 10}, {"values": {"loss": 1.0}}, {"error": ReplyError(code=2, reason="x")}):
        await problem(member.ask("PUT", member.at("manifest"), manifest.model_copy(update=change)), "malformed")
    wrong = manifest.model_copy(update={"digest": "ab" * 32})
    await problem(member.ask("PUT", member.at("manifest"), wrong), "digest-mismatch", "manifest")
    await member.put("manifest", manifest)
    opened.members.remove(member)
    await asyncio.gather(*(other.upload() for other in opened.members))
    opened.members.append(member)
    (reply,) = (await opened.complete("sign", "unmask")).replies
    assert reply.examples == 40


async def test_an_upload_after_its_client_was_dropped_is_stale(opened: Open) -> None:
    """Also where the upload began before: the vector must not reach the sum."""
    member = await opened.until("upload")
    body, manifest = member.vector()
    half, dropped = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield body[: len(body) // 2]
        half.set()
        await dropped.wait()
        yield body[len(body) // 2 :]

    path = member.at("update/parts/0")
    headers = {**member.signed("PUT", path, body), "Content-Length": str(len(body))}
    sending = asyncio.create_task(opened.site.http.put(path, content=slowly(), headers=headers))
    await half.wait()
    exchange = opened.site.application.queue.exchange
    assert exchange is not None
    exchange.give_up(member.id, "taken for dead")
    dropped.set()
    late = await sending
    assert (late.status_code, as_json(late)["type"]) == (409, "urn:fedcore:problem:stale-step")
    await problem(member.ask("GET", member.at("survivors")), "stale-step")
    await problem(member.put("manifest", manifest), "stale-step")
    assert list(opened.site.services.settings.spool_dir.iterdir()) == []
    opened.members.remove(member)
    (reply,) = (await opened.complete("upload", "sign", "unmask")).replies
    assert reply.examples == 30
    mean = reply.model()["half"]
    np.testing.assert_allclose(mean.astype(float), [1.5, -1.0], atol=2e-3)


async def test_a_client_that_leaves_while_its_vector_is_added_is_a_survivor(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = await opened.until("upload")
    begun, left = threading.Event(), threading.Event()

    def slowly(*arguments: Any, **options: Any) -> None:
        begun.set()
        left.wait()
        fold_file(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(sum_file, "fold_file", slowly)
        uploading = asyncio.create_task(member.upload())
        await asyncio.to_thread(begun.wait)
        await member.withdraw()
        left.set()
        await uploading
    opened.members.remove(member)
    (reply,) = (await opened.complete("upload", "sign", "unmask")).replies
    assert reply.examples == 40


async def test_a_full_disk_takes_nothing_and_the_upload_can_come_again(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = await opened.until("upload")
    body, manifest = member.vector()

    def full(descriptor: int, data: Any, offset: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(blobs, "write_all", full)
        refused = await problem(member.send(body), "storage-full")
    assert refused.response.status_code == 507
    assert list(opened.site.services.settings.spool_dir.iterdir()) == []
    await member.send(body)
    await member.put("manifest", manifest)
    opened.members.remove(member)
    await asyncio.gather(*(other.upload() for other in opened.members))
    opened.members.append(member)
    (reply,) = (await opened.complete("sign", "unmask")).replies
    assert reply.examples == 40


async def test_plain_replies_are_files_or_errors(here: Site, model: ModelState) -> None:
    """What is in a file is for the ServerApp's process to judge: the server passes it on unread."""
    run, app = await here.begin({"aggregation": "plain"})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    first = members[0]
    _, manifest = first.plain_manifest()
    huge = manifest.model_copy(update={"size": (1 << 40) + 1})
    await problem(first.ask("PUT", first.at("manifest"), huge), "too-large")
    empty = manifest.model_copy(update={"size": 0, "digest": digest_of(b"")})
    await problem(first.ask("PUT", first.at("manifest"), empty), "malformed")
    both = manifest.model_copy(update={"error": ReplyError(code=2, reason="x")})
    await problem(first.ask("PUT", first.at("manifest"), both), "malformed")
    await asyncio.gather(*(member.plain() for member in members))
    answer = await asked
    assert isinstance(answer, PlainReplies)
    assert [reply.node for reply in answer.replies] == ALL
    folder = here.services.settings.runs_dir / run / "exchanges" / "1" / "replies"
    assert sorted(item.name for item in folder.iterdir()) == [f"{number}" for number in ALL]


# --- who belongs to an exchange -----------------------------------------------------------------


async def test_clients_outside_the_cohort_and_after_the_end(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    for number in (1, 2):
        asked = asyncio.create_task(app.exchange(model, [1, 2, 3]))
        members = [here.members[client] for client in (1, 2, 3)]
        await asyncio.gather(*(member.enter() for member in members))
        outsider = here.members[4]
        outsider.task = members[0].task
        await problem(outsider.get("cohort"), "not-in-cohort")
        await asyncio.gather(*(member.secure() for member in members))
        await asked
        await problem(members[0].get("cohort"), "round-failed", numbers=(number,))
    members[0].task = members[0].task.model_copy(update={"exchange": 1})  # type: ignore[union-attr]
    outsider.task = members[0].task
    await problem(members[0].get("cohort"), "round-failed", numbers=(1,))
    await problem(outsider.get("cohort"), "not-in-cohort")
    await members[0].ask("PUT", f"/v1/runs/{run}/exchanges/2/unmask", members[0].sent["unmask"])


async def test_a_task_is_given_once_and_not_to_those_who_left(opened: Open) -> None:
    member = opened.members[0]
    exchange = opened.members[0].task
    assert exchange is not None
    again = await member.ask("GET", "/v1/task")
    assert as_json(again)["exchange"] == exchange.exchange, "the answer may have been lost"
    known = await member.ask("GET", f"/v1/task?run={opened.run}&after={exchange.exchange}")
    assert known.status_code == 204
    await member.withdraw()
    await member.withdraw()
    assert (await member.ask("GET", "/v1/task")).status_code == 204
    await problem(member.ask("GET", member.at("model")), "stale-step")
    opened.members.remove(member)
    (reply,) = (await opened.complete("secure")).replies
    assert reply.examples == 30


async def test_who_was_given_up_meanwhile_may_still_leave(opened: Open) -> None:
    member = opened.members[0]
    exchange = opened.site.application.queue.exchange
    assert exchange is not None
    exchange.give_up(member.id, "silent")
    await member.withdraw()
    assert exchange.clients.reasons[member.id] == "silent"


async def test_a_withdrawal_holds_no_free_text(opened: Open) -> None:
    member = opened.members[0]
    body = b'{"reason": "stopped", "check": "Patient 17"}'
    await problem(member.ask("POST", member.at("withdrawal"), body), "malformed")
    body = b'{"reason": "patient 17"}'
    await problem(member.ask("POST", member.at("withdrawal"), body), "malformed")
    for numbers in (
        b'"check": "app-mismatch", "asked": 17, "allowed": 3',
        b'"check": "exception-keyerror", "asked": 17, "allowed": 3',
        b'"check": "too-long", "asked": 17',
        b'"check": "too-long", "asked": -1, "allowed": 3',
        b'"check": "too-long", "asked": NaN, "allowed": 3',
        b'"check": "too-long", "asked": 1e300, "allowed": 3',
    ):
        body = b'{"reason": "policy", ' + numbers + b"}"
        await problem(member.ask("POST", member.at("withdrawal"), body), "malformed")
    await member.ask("POST", member.at("withdrawal"), WithdrawIn.model_validate_json('{"reason": "stopped"}'))


# --- the operator -------------------------------------------------------------------------------


def run_in(**changes: Any) -> RunIn:
    bundle = AppBundle.from_folder(TINY)
    values = {"app_sha256": bundle.sha256, "files": dict(bundle.files), **changes}
    return RunIn(**values)


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"app_sha256": "ab" * 32}, "digest-mismatch", "hash"),
        ({"files": {"pyproject.toml": b"", "../evil.py": b""}}, "bad-configuration", "path"),
        ({"files": {"main.py": b""}}, "bad-configuration", "pyproject.toml"),
        ({"run_config": {"num-server-round": 3}}, "bad-configuration", "num-server-rounds"),
        ({"run_config": {"num-server-rounds": "three"}}, "bad-configuration", "num-server-rounds"),
        ({"settings": {"agregation": "plain"}}, "bad-configuration", "aggregation"),
        ({"settings": {"aggregation": "none"}}, "bad-configuration", "secure, plain"),
        ({"settings": {"min-clients": 5}}, "bad-configuration", r"\b5\b.*\b4\b"),
        ({"settings": {"min-clients": 2}}, "bad-configuration", r"min-clients.*\b2\b.*\b3\b"),
        ({"settings": {"quorum": 2}}, "bad-configuration", r"quorum.*\b2\b.*\b3\b"),
        ({"settings": {"w-max": 2**60}}, "bad-configuration", "w-max"),
    ],
)
async def test_a_run_that_cannot_work_is_refused(here: Site, changes: dict[str, Any], kind: str, match: str) -> None:
    await problem(here.operator("POST", "/v1/runs", run_in(**changes)), kind, match)
    assert not here.services.settings.runs_dir.exists() or not any(here.services.settings.runs_dir.iterdir())


def test_what_a_plan_needs_follows_the_clients_policies() -> None:
    def plan(**settings: Any) -> RunPlan:
        given = {"run": "run", "app": "app", "app_sha256": "0", "run_config": {}}
        return RunPlan(**given, settings=JobSettings(**settings))

    with pytest.raises(ConfigurationError, match=r"quorum.*min-clients.*\b6\b"):
        plan(quorum=3, min_clients=6).check(8, 3)
    with raises(ConfigurationError, numbers=(5, 4)):
        plan().check(4, 5)
    plan(quorum=5, min_clients=5).check(8, 5)
    plan().check(5, 5)
    with raises(ConfigurationError, match="min-clients", numbers=(7, 8)):
        plan(min_clients=7).check(100, 3)
    with pytest.raises(ConfigurationError, match=r"quorum.*min-clients.*\b16\b"):
        plan(quorum=10, min_clients=16).check(100, 3)
    plan(quorum=11, min_clients=16).check(100, 3)
    plan(aggregation="plain", min_clients=1).check(4, 3)
    assert [least_clients(JobSettings(), members, 3) for members in (4, 20, 100)] == [3, 4, 8]
    assert [least_clients(JobSettings(), 8, 5), least_clients(JobSettings(min_clients=6), 8, 5)] == [5, 6]
    assert least_clients(JobSettings(aggregation="plain"), 8, 5) == 2
    assert [quorum_for(JobSettings(), n, 5) for n in (5, 6, 7, 9)] == [5, 5, 5, 7]


async def test_a_full_queue_is_busy(here: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await here.begin()
    for _ in range(here.services.settings.waiting_runs):
        await here.services.store.add_run(
            run=f"filler-{_}", aggregation="secure", app="x", app_sha256="0", run_config={}, settings={}
        )
    refused = await problem(here.operator("POST", "/v1/runs", run_in()), "busy")
    assert refused.response.status_code == 429
    assert "retry-after" in refused.response.headers


async def test_an_unexpected_error_says_nothing_about_itself(
    here: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(client: int) -> None:
        raise ZeroDivisionError("private detail")

    monkeypatch.setattr(type(here.services.presence), "touch", lambda _, client: broken(client))
    refused = await problem(here.members[1].ask("GET", "/v1/task"), "internal")
    assert "private" not in refused.response.text
    assert "private detail" in caplog.text


async def test_health(here: Site) -> None:
    assert as_json(await here.http.get("/healthz")) == {"status": "ok"}
    assert as_json(await here.http.get("/readyz")) == {"status": "ready", "warnings": []}
    await here.application.queue.stop()
    assert (await here.http.get("/readyz")).status_code == 503


# --- documents ----------------------------------------------------------------------------------


def test_every_kind_has_a_status_and_every_error_a_kind() -> None:
    assert set(STATUS) == set(ProblemKind)
    assert rejection_for(StorageFull("x")).kind is ProblemKind.STORAGE_FULL
    assert rejection_for(RuntimeError("x")).detail == "the server failed; its log says more"
    assert rejection_for(Rejection(ProblemKind.BUSY, "x")).status == 429


async def test_the_schema_tells_the_truth(here: Site) -> None:
    schema = as_json(await here.http.get("/openapi.json"))
    paths = schema["paths"]
    base = "/v1/runs/{run}/exchanges/{exchange}"
    put = paths[f"{base}/update/parts/{{index}}"]["put"]
    assert "application/octet-stream" in put["requestBody"]["content"]
    assert "application/octet-stream" in paths[f"{base}/model"]["get"]["responses"]["200"]["content"]
    assert paths[f"{base}/cohort"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith(
        "/CohortOut"
    )
    assert "204" in paths[f"{base}/cohort"]["get"]["responses"]
    body = paths[f"{base}/manifest"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["$ref"].endswith("/ManifestIn")
    for path, operations in paths.items():
        for method, operation in operations.items():
            for status, answer in operation["responses"].items():
                if int(status) >= 400:
                    assert list(answer["content"]) == ["application/problem+json"], (path, method)
