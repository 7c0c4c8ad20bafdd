"""Whole exchanges with real sessions: the sum, dropouts at every stage, retries."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.members import Failure, Local, Member, digest_of
from support.messages import model_in
from support.serverside import ScriptedApp, Site, events_of, site, until

from fedcore.errors import StorageUnavailable
from fedcore.federation import FederationFolder
from fedcore.run.plain import APP_RAISED, MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from fedcore.wire.forms import our_version
from fedcore.wire.presence import HeartbeatIn, JoinIn
from fedcore.wire.secagg import SurvivorsOut
from fedcore.wire.uploads import ManifestIn, ReplyError, WithdrawalReason, WithdrawIn
from server_app.runs.app.messages import ExchangeRefused, Nodes, PlainReplies, Replies

ALL = [1, 2, 3, 4]
EXAMPLES = {1: 10, 2: 20, 3: 30, 4: 4}
STEPS = ["advertise", "share", "upload", "sign", "unmask"]


def give_locals(site: Site) -> None:
    """Updates and weights that differ, so that a lost or doubled one shows in the sum."""
    for member in site.members.values():
        member.local = Local(
            by=2.0**-member.id,
            examples=EXAMPLES[member.id],
            metrics={"loss": float(member.id), "pair": [1.0, float(member.id) ** 2]},
        )


def check_mean(reply: Any, model: ModelState, survivors: list[int]) -> None:
    """Exactly these clients are in the sum, each once, with its own weight."""
    total = sum(EXAMPLES[client] for client in survivors)
    assert reply.node == 0
    assert reply.examples == total
    delta = sum(EXAMPLES[client] / total * 2.0**-client for client in survivors)
    mean = reply.model()
    np.testing.assert_allclose(mean["weight"], model["weight"] + delta, atol=1e-5)
    np.testing.assert_allclose(mean["half"].astype(float), model["half"] + delta, atol=2e-3)
    assert mean["counter"] == model["counter"] + 1
    loss = sum(EXAMPLES[client] * client for client in survivors) / total
    square = sum(EXAMPLES[client] * client**2 for client in survivors) / total
    assert reply.metrics["loss"] == pytest.approx(loss)
    assert reply.metrics["pair"] == pytest.approx([1.0, square])


async def together(members: list[Member], until: dict[int, str] | None = None) -> None:
    await asyncio.gather(*(member.secure(until=(until or {}).get(member.id, "")) for member in members))


async def test_secure_exchange_gives_the_weighted_mean(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    assert members[0].task is not None
    assert members[0].task.quorum == 3
    await together(members)
    answer = await asked
    assert isinstance(answer, Replies)
    (reply,) = answer.replies
    check_mean(reply, model, ALL)
    objects = here.services.settings.runs_dir / run / "exchanges" / "1"
    assert [path.name for path in objects.iterdir()] == ["mean"], "vectors and their sum are removed"
    assert list(here.services.settings.spool_dir.iterdir()) == []

    ended = await here.finish(run, app, model)
    (done,) = events_of(ended, "exchange-done")
    assert done["survivors"] == [f"client-{number}" for number in ALL]
    assert events_of(ended, "started")[0]["aggregation"] == "secure"
    size = len(members[0].sent["update/parts/0"])
    for name in done["survivors"]:
        assert size < done["bytes_up"][name] < size + 20_000
        assert done["bytes_down"][name] > members[0].task.model.size  # type: ignore[union-attr]
    assert {*done["stage_seconds"]} == {*["advertise", "share", "input", "consistency", "unmask", "result"]}
    assert ended.status == "finished"
    assert ended.model is not None
    got = await here.operator("GET", f"/v1/runs/{run}/model")
    assert len(got.content) == ended.model.size
    assert app.stopped


async def test_the_answer_to_the_last_manifest_names_the_survivors(here: Site, model: ModelState) -> None:
    give_locals(here)
    _, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await together(members, dict.fromkeys(ALL, "upload"))
    answers = await asyncio.gather(*(member.end_upload(wait=30) for member in members))
    assert {answer.status_code for answer in answers} == {200}
    named = [SurvivorsOut.model_validate_json(answer.content) for answer in answers]
    assert named == [SurvivorsOut.model_validate_json(await member.get("survivors")) for member in members]
    await together_from_sign(members)
    assert isinstance(await asked, Replies)


async def together_from_sign(members: list[Member]) -> None:
    for step in ("sign", "unmask"):
        await asyncio.gather(*(getattr(member, step)() for member in members))


async def test_no_share_comes_while_a_vector_is_left(
    here: Site, model: ModelState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors go while clients sign, and on a slow disk with trouble the shares wait for that."""
    objects = type(here.services.objects)
    remove, goes_on = objects.remove, asyncio.Event()

    async def removes_at_the_second_try(self: Any, prefix: str) -> None:
        if prefix.endswith("/updates") and not goes_on.is_set():
            await goes_on.wait()
            raise StorageUnavailable("the disk has trouble")
        await remove(self, prefix)

    monkeypatch.setattr(objects, "remove", removes_at_the_second_try)
    give_locals(here)
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await together(members, dict.fromkeys(ALL, "unmask"))
    updates = here.services.settings.runs_dir / run / "exchanges" / "1" / "updates"
    assert sorted(path.name for path in updates.iterdir()) == ["1", "2", "3", "4"]
    early = await members[0].ask("GET", members[0].at("consistency"))
    assert early.status_code != 200
    goes_on.set()
    await asyncio.gather(*(member.unmask() for member in members))
    answer = await asked
    assert isinstance(answer, Replies)
    check_mean(answer.replies[0], model, ALL)
    assert not updates.exists()


async def test_later_exchanges_use_narrow_fields(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin()
    for _ in range(2):
        asked = asyncio.create_task(app.exchange(model, ALL))
        await together(await here.enter_all())
        answer = await asked
        assert isinstance(answer, Replies)
    ended = await here.finish(run, app)
    assert [item["field_bits"] for item in events_of(ended, "exchange")] == [32, 16]


async def test_evaluation_sums_metrics_alone(here: Site, model: ModelState) -> None:
    give_locals(here)
    _, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL, message_type="evaluate"))
    await together(await here.enter_all())
    answer = await asked
    assert isinstance(answer, Replies)
    (reply,) = answer.replies
    assert reply.state is None
    assert reply.metrics["loss"] == pytest.approx((10 + 40 + 90 + 16) / 64)


@pytest.mark.parametrize("step", STEPS)
async def test_a_dropout_at_each_step_leaves_the_others_sum(here: Site, model: ModelState, step: str) -> None:
    give_locals(here)
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()

    async def leave() -> None:
        await members[1].secure(until=step)
        await members[1].withdraw(WithdrawalReason.WORKER_DIED)

    others = [member for member in members if member.id != 2]
    await asyncio.gather(leave(), *(member.secure() for member in others))
    answer = await asked
    assert isinstance(answer, Replies)
    gone = step in ("advertise", "share", "upload")
    check_mean(answer.replies[0], model, [1, 3, 4] if gone else ALL)
    ended = await here.finish(run, app)
    (dropped,) = events_of(ended, "dropped")
    assert dropped["client"] == "client-2"
    assert dropped["reason"] == "withdrew: worker-died"


async def waits_only_for(here: Site, client: int, stage: str) -> None:
    """Wait until all others have done their part of a stage."""

    def alone() -> bool:
        exchange = here.application.queue.exchange
        return exchange is not None and exchange.stages.current == stage and exchange.clients.missing == {client}

    await until(alone)


@pytest.mark.parametrize(("step", "stage"), [("share", "share"), ("upload", "input"), ("unmask", "unmask")])
async def test_a_client_that_falls_silent_is_given_up(here: Site, model: ModelState, step: str, stage: str) -> None:
    give_locals(here)
    run, app = await here.begin({"liveness-seconds": 10.0, "step-seconds": 100.0})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    silent = members.pop(2)
    protocol = asyncio.create_task(together(members))
    await silent.secure(until=step)
    await waits_only_for(here, silent.id, stage)
    for _ in range(2):  # the second time is beyond the limit for whoever has not said anything since the first
        here.clock.advance(6.0)
        await asyncio.gather(*(member.ask("GET", "/v1/task") for member in members))
    await protocol
    answer = await asked
    assert isinstance(answer, Replies)
    check_mean(answer.replies[0], model, ALL if step == "unmask" else [1, 2, 4])
    (dropped,) = events_of(await here.finish(run, app), "dropped")
    assert (dropped["client"], dropped["reason"]) == ("client-3", "silent for more than 10 s")


async def test_a_stage_ends_at_its_deadline(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin({"step-seconds": 3.0})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    protocol = asyncio.create_task(together(members, {4: "share"}))
    await waits_only_for(here, 4, "share")
    here.clock.advance(3.0)
    await protocol
    answer = await asked
    assert isinstance(answer, Replies)
    check_mean(answer.replies[0], model, [1, 2, 3])
    (dropped,) = events_of(await here.finish(run, app), "dropped")
    assert dropped["reason"] == "no answer in stage share within 3 s"


async def test_below_the_threshold_the_exchange_is_tried_again(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    await members[0].withdraw()
    await members[1].withdraw()
    again = await here.enter_all()
    assert {member.task.exchange for member in again if member.task} == {2}
    assert {member.task.attempt for member in again if member.task} == {2}
    await together(again)
    answer = await asked
    assert isinstance(answer, Replies)
    check_mean(answer.replies[0], model, ALL)
    ended = await here.finish(run, app)
    (failed,) = events_of(ended, "exchange-failed")
    assert failed["retry"] is True
    assert "2 clients are left at step 'input', 3 are needed" in failed["reason"]
    assert "client-1: withdrew: worker-died" in failed["reason"]
    assert all(failed["bytes_up"][f"client-{number}"] > 0 for number in ALL), "it failed, and its bytes travelled"
    assert all(failed["bytes_down"][f"client-{number}"] > model.layout.nbytes for number in ALL)


async def test_the_run_fails_with_the_reason_of_the_last_attempt(here: Site, model: ModelState) -> None:
    run, app = await here.begin({"max-attempts": 2})
    asked = asyncio.create_task(app.exchange(model, ALL))
    for _ in range(2):
        for member in (await here.enter_all())[:2]:
            await member.withdraw()
    answer = await asked
    assert isinstance(answer, ExchangeRefused)
    app.fail(answer.reason)
    ended = await here.follow(run)
    assert ended.status == "failed"
    assert "3 are needed" in ended.reason
    assert [item["retry"] for item in events_of(ended, "exchange-failed")] == [True, False]


async def test_a_reason_that_all_clients_share_is_not_tried_again(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    async with site(federation, tmp_path, grace_seconds=1.0) as here:
        _, app = await here.begin()
        asked = asyncio.create_task(app.exchange(model, ALL))
        for member in await here.enter_all():
            await member.withdraw(WithdrawalReason.APP_FAILED)
        answer = await asked
        assert isinstance(answer, ExchangeRefused)
        assert answer.reason.startswith("every client withdrew: app-failed")


async def test_the_operator_reads_which_check_refused_and_its_two_numbers(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    said = WithdrawIn(reason=WithdrawalReason.POLICY, check="cohort-below-minimum", asked=2, allowed=3)
    async with site(federation, tmp_path, grace_seconds=1.0) as here:
        run, app = await here.begin()
        asked = asyncio.create_task(app.exchange(model, ALL))
        for member in await here.enter_all():
            await member.leave(said)
        answer = await asked
        assert isinstance(answer, ExchangeRefused)
        assert answer.reason.startswith(
            "every client refused: cohort-below-minimum: a sum is sure to hold the updates of 2 clients that do not "
            "help the server, the clients' policies demand 3 (min-cohort); ask more clients"
        )
        app.fail(answer.reason)
        ended = await here.follow(run)
        dropped = events_of(ended, "dropped")
        assert {item["reason"] for item in dropped} == {"refused: cohort-below-minimum (the run: 2, the policy: 3)"}
        assert ended.reason == answer.reason


async def test_a_message_that_owners_refuse_is_the_strategys_and_not_the_runs(
    federation: FederationFolder, tmp_path: Path, model: ModelState
) -> None:
    said = WithdrawIn(reason=WithdrawalReason.POLICY, check="message-not-allowed", subject="lr=0.5 (run: 1.0)")
    async with site(federation, tmp_path, grace_seconds=1.0) as here:
        _, app = await here.begin({"max-attempts": 1})
        asked = asyncio.create_task(app.exchange(model, ALL))
        for member in await here.enter_all():
            await member.leave(said)
        answer = await asked
    assert isinstance(answer, ExchangeRefused)
    assert answer.reason.startswith(f"every client refused: {said.check} {said.subject}: the strategy's message")
    assert "the run sets it" not in answer.reason


async def test_a_server_app_that_waits_for_more_clients_says_for_whom(here: Site) -> None:
    run, app = await here.begin()
    await here.members[4].ask("POST", "/v1/heartbeat", HeartbeatIn(eligible=False))
    answer = await app.nodes()
    assert isinstance(answer, Nodes)
    assert app.start is not None
    assert (app.start.members, answer.members, answer.nodes) == (4, 4, [1, 2, 3])
    app.waits(4, "min_available_nodes=4")
    app.waits(0, "")
    app.fail("enough")
    lines = [item["line"] for item in events_of(await here.follow(run), "warning")]
    waits, asks = [line for line in lines if "members are there" in line]
    missing = "3 of 4 members are there; missing: client-4 (may not train now)"
    assert waits == f"the strategy waits for 4 clients (min_available_nodes=4): {missing}"
    assert asks.endswith(missing)


async def test_refusals_of_some_stand_beside_what_they_led_to(here: Site, model: ModelState) -> None:
    said = WithdrawIn(reason=WithdrawalReason.POLICY, check="config-not-allowed", subject="lr")
    _, app = await here.begin({"max-attempts": 1})
    asked = asyncio.create_task(app.exchange(model, ALL))
    for member in (await here.enter_all())[:2]:
        await member.leave(said)
    answer = await asked
    assert isinstance(answer, ExchangeRefused)
    assert (
        "; 2 refused (client-1, client-2): config-not-allowed lr: the run sets it otherwise than the app"
        in answer.reason
    )


async def test_plain_exchange_hands_over_every_update(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin({"aggregation": "plain"})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.plain() for member in members))
    answer = await asked
    assert isinstance(answer, PlainReplies)
    assert [reply.node for reply in answer.replies] == ALL
    for reply in answer.replies:
        assert reply.content is not None
        state = model_in(reply.content)
        assert state is not None
        np.testing.assert_array_equal(state["weight"], model["weight"] + np.float32(2.0**-reply.node))
        assert reply.examples == EXAMPLES[reply.node]
        assert reply.metrics["loss"] == reply.node
    ended = await here.finish(run, app)
    assert ended.aggregation == "plain"
    (done,) = events_of(ended, "exchange-done")
    assert events_of(ended, "started")[0]["aggregation"] == "plain"
    assert done["metrics"]["loss"] == pytest.approx((10 + 40 + 90 + 16) / 64)


async def test_whoever_leaves_a_plain_exchange_is_an_error_in_it(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin({"aggregation": "plain"})
    asked = asyncio.create_task(app.exchange(model, [*ALL, 77], message_type="evaluate"))
    members = await here.enter_all()
    for member in members[:2]:
        await member.plain()
    raised = ReplyError(code=APP_RAISED, reason="ValueError: no data")
    await members[2].put("manifest", ManifestIn(digest=digest_of(b""), size=0, error=raised))
    await members[3].withdraw(WithdrawalReason.NOT_ELIGIBLE)
    answer = await asked
    assert isinstance(answer, PlainReplies)
    told = {reply.node: reply.error for reply in answer.replies}
    assert told[1] is None
    assert told[2] is None
    assert told[3] == raised
    assert told[4] == ReplyError(code=NODE_UNAVAILABLE, reason="client-4: withdrew: not-eligible")
    assert told[77] == ReplyError(code=NODE_UNAVAILABLE, reason="node 77 is not connected")
    ended = await here.finish(run, app)
    assert events_of(ended, "exchange-done")[0]["survivors"] == ["client-1", "client-2"]
    assert any("ValueError: no data" in dropped["reason"] for dropped in events_of(ended, "dropped"))


async def test_each_client_of_a_plain_exchange_gets_its_own_message(here: Site, model: ModelState) -> None:
    run, app = await here.begin({"aggregation": "plain"})
    models = {member: ModelState.from_arrays({"weight": np.full(member, member, np.float32)}) for member in ALL}
    asked = asyncio.create_task(app.ask(models))
    members = await here.enter_all()
    assert [member.task.message.message_id for member in members] == [f"message-{number}" for number in ALL]
    assert len({member.task.model.sha256 for member in members}) == len(ALL)
    await asyncio.gather(*(member.plain() for member in members))
    answer = await asked
    assert isinstance(answer, PlainReplies)
    for reply in answer.replies:
        np.testing.assert_array_equal(model_in(reply.content)["weight"], np.full(reply.node, reply.node + 1))
    assert len(events_of(await here.finish(run, app), "exchange")) == 1


@pytest.mark.parametrize("quorum", [0, 3])
async def test_a_quorum_counts_replies_and_without_one_the_app_gets_the_errors(
    here: Site, model: ModelState, quorum: int
) -> None:
    _, app = await here.begin({"aggregation": "plain", "quorum": quorum, "max-attempts": 1})
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await asyncio.gather(*(member.plain() for member in members[:2]))
    raised = ManifestIn(digest=digest_of(b""), size=0, error=ReplyError(code=APP_RAISED, reason="KeyError: 'x'"))
    for member in members[2:]:
        await asyncio.gather(member.put("manifest", raised), return_exceptions=True)
    answer = await asked
    assert isinstance(answer, ExchangeRefused if quorum else PlainReplies)


@pytest.mark.parametrize("wanted_for", [None, 2.0])
async def test_who_is_late_is_an_error_unless_the_app_waits_no_longer(
    here: Site, model: ModelState, wanted_for: float | None
) -> None:
    """Flower's `send_and_receive` returns the replies that came within its timeout."""
    _, app = await here.begin({"aggregation": "plain"})
    asked = asyncio.create_task(app.ask(dict.fromkeys(ALL, model), wanted_for=wanted_for))
    members = await here.enter_all()
    await asyncio.gather(*(member.plain() for member in members[:3]))
    answer = await here.clock.run_until(asked)
    assert isinstance(answer, PlainReplies)
    late = [reply.error for reply in answer.replies if reply.node == 4]
    assert [error.code for error in late if error] == ([] if wanted_for else [MESSAGE_UNAVAILABLE])


async def test_a_plain_run_that_every_owner_refuses_fails_at_once(here: Site, model: ModelState) -> None:
    _, app = await here.begin({"aggregation": "plain"})
    asked = asyncio.create_task(app.exchange(model, ALL))
    refusal = WithdrawIn(reason=WithdrawalReason.POLICY, check="plain-not-allowed")
    for member in await here.enter_all():
        await member.ask("POST", member.at("withdrawal"), refusal)
    answer = await asked
    assert isinstance(answer, ExchangeRefused)
    assert "plain-not-allowed" in answer.reason


async def exchange(here: Site, app: Any, model: ModelState) -> Any:
    asked = asyncio.create_task(app.exchange(model, ALL))
    await asyncio.gather(*(member.secure() for member in await here.enter_all()))
    return await asked


async def test_clients_that_disagree_on_their_metrics_still_give_a_model(here: Site, model: ModelState) -> None:
    """Odd names end no run and blame nobody: there are no metrics, and a line that says why."""
    give_locals(here)
    run, app = await here.begin()
    here.members[3].local.metrics = {"loss": 1.0, "surprise": 2.0}
    first = await exchange(here, app, model)
    here.members[3].local.metrics = {"loss": 3.0, "pair": [1.0, 9.0]}
    second = await exchange(here, app, model)
    assert (first.replies[0].metrics, first.replies[0].examples) == ({}, 64)
    assert second.replies[0].metrics["loss"] == pytest.approx((10 + 40 + 90 + 16) / 64)
    assert [member.task.encoding.metrics for member in here.members.values()] == [None] * 4  # type: ignore[union-attr]
    third = await exchange(here, app, model)
    assert third.replies[0].metrics == second.replies[0].metrics
    assert here.members[1].task.encoding.metrics == (("loss", None), ("pair", 2))  # type: ignore[union-attr]
    done = events_of(await here.finish(run, app), "exchange-done")
    assert [data["metrics_agree"] for data in done] == [False, True, True]


async def test_a_sum_to_which_nobody_contributed_is_not_tried_again(here: Site, model: ModelState) -> None:
    for member in here.members.values():
        member.local.fails = True
    run, app = await here.begin()
    answer = await exchange(here, app, model)
    assert isinstance(answer, ExchangeRefused)
    assert answer.reason.startswith("4 of 4 clients contributed nothing; their own logs say why; ")
    app.fail(answer.reason)
    (failed,) = events_of(await here.follow(run), "exchange-failed")
    assert not failed["retry"]


async def test_who_contributes_nothing_is_counted_and_not_named(here: Site, model: ModelState) -> None:
    give_locals(here)
    here.members[2].local.fails = True
    run, app = await here.begin({"quorum": 4})
    answer = await exchange(here, app, model)
    check_mean(answer.replies[0], model, [1, 3, 4])
    (done,) = events_of(await here.finish(run, app), "exchange-done")
    assert (done["failures"], done["survivors"]) == (1, [f"client-{number}" for number in (1, 2, 3, 4)])


async def test_a_sum_that_stayed_closed_is_asked_for_again_of_all(here: Site, model: ModelState) -> None:
    """With a quorum of three of four no failure is tolerated, with one of four a single one."""
    give_locals(here)
    here.members[2].local.fails = True
    run, app = await here.begin({"quorum": 3})
    asked = asyncio.create_task(app.exchange(model, ALL))
    for _ in range(2):
        await asyncio.gather(*(member.secure() for member in await here.enter_all()))
    check_mean((await asked).replies[0], model, [1, 3, 4])
    events = await here.finish(run, app)
    assert [data["quorum"] for data in events_of(events, "exchange")] == [3, 4]
    (failed,) = events_of(events, "exchange-failed")
    assert failed["retry"]
    assert failed["reason"].startswith(
        "1 of 4 clients contributed nothing; their own logs say why. The sum of the others"
    )


async def test_a_sum_for_which_there_is_no_room_is_not_asked_for_again(here: Site, model: ModelState) -> None:
    give_locals(here)
    here.members[2].local.fails = here.members[3].local.fails = True
    _, app = await here.begin({"quorum": 3})
    answer = await exchange(here, app, model)
    assert isinstance(answer, ExchangeRefused)
    assert answer.reason.startswith("2 of 4 clients contributed nothing; ")
    said = "tolerates 0, since clients refuse a sum of too few; retrying unchanged will fail again"
    assert said in answer.reason
    assert "fedcore check" in answer.reason


async def test_a_client_with_another_app_is_not_asked(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin()
    await here.members[4].join("ab" * 32)
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = [here.members[number] for number in (1, 2, 3)]
    await asyncio.gather(*(member.enter() for member in members))
    await together(members)
    answer = await asked
    assert isinstance(answer, Replies)
    check_mean(answer.replies[0], model, [1, 2, 3])
    (dropped,) = events_of(await here.finish(run, app), "dropped")
    assert dropped["client"] == "client-4"
    assert "another app" in dropped["reason"]


async def test_too_few_clients_fail_the_exchange_in_time(here: Site, model: ModelState) -> None:
    _, app = await here.begin()
    here.clock.advance(31.0)
    answer = await here.clock.run_until(asyncio.create_task(app.exchange(model, ALL)))
    assert isinstance(answer, ExchangeRefused)
    assert "3 clients are needed, 0 are connected after 2 s" in answer.reason


async def test_a_run_waits_for_as_many_clients_as_their_policies_ask_for(here: Site, model: ModelState) -> None:
    """Without min-clients and quorum, as `fedcore run` submits it: it says whom it waits for, and then goes on."""
    give_locals(here)
    run, app = await here.begin({"min-clients": 0})
    hello = JoinIn(app_sha256=here.services.presence.installed[2], version=our_version(), reports_failures=True)
    await here.members[2].ask("POST", "/v1/join", hello)
    for absent in (3, 4):
        await here.members[absent].ask("POST", "/v1/heartbeat", HeartbeatIn(eligible=False))
    asked = asyncio.create_task(app.nodes())
    told = {"online": ["client-1", "client-2"], "reporting": ["client-2"]}
    waiting = {**told, "expected": 3, "absent": ["client-3", "client-4"]}
    while waiting not in events_of(await here.show(run), "clients"):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert not asked.done()
    await here.members[3].ask("POST", "/v1/heartbeat", HeartbeatIn())
    nodes = await asked
    assert isinstance(nodes, Nodes)
    assert nodes.nodes == [1, 2, 3]
    listed = json.loads((await here.operator("GET", "/v1/clients")).content)["clients"]
    assert [client["reports_failures"] for client in listed] == [False, True, False, False]
    exchange = asyncio.create_task(app.exchange(model, nodes.nodes))
    members = [here.members[number] for number in nodes.nodes]
    await asyncio.gather(*(member.enter() for member in members))
    assert members[0].task is not None
    assert members[0].task.quorum == here.services.min_cohort == 3
    await together(members)
    assert isinstance(await exchange, Replies)


async def test_no_more_clients_join_than_are_expected(here: Site) -> None:
    run, app = await here.begin()  # which needs three
    await app.nodes()
    shown = events_of(await here.finish(run, app), "clients")
    assert [(len(item["online"]), item["expected"]) for item in shown] == [(4, 4)]


async def test_a_round_that_asks_some_of_those_who_are_there_is_no_news(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin()
    await app.nodes()
    exchange = asyncio.create_task(app.exchange(model, [1, 2, 3]))
    members = [here.members[number] for number in (1, 2, 3)]
    await asyncio.gather(*(member.enter() for member in members))
    await together(members)
    assert isinstance(await exchange, Replies)
    shown = events_of(await here.finish(run, app), "clients")
    assert [len(item["online"]) for item in shown] == [4]


async def test_a_strategy_that_samples_one_client_is_told_why_not(here: Site, model: ModelState) -> None:
    _, app = await here.begin()
    answer = await app.exchange(model, [1])
    assert isinstance(answer, ExchangeRefused)
    assert answer.reason.startswith(
        "cohort-below-minimum: the strategy asks 1 of 4 clients to train, a sum needs 3 (min-cohort 3"
    )
    assert "min_train_nodes=3" in answer.reason
    assert "fraction_train=0.75" in answer.reason


async def test_an_evaluation_of_too_few_for_a_sum_goes_to_all_who_are_there(here: Site, model: ModelState) -> None:
    give_locals(here)
    run, app = await here.begin()
    await app.nodes()
    exchange = asyncio.create_task(app.exchange(model, [2, 3], message_type="evaluate"))
    members = [here.members[number] for number in ALL]
    await asyncio.gather(*(member.enter() for member in members))
    await together(members)
    assert isinstance(await exchange, Replies)
    (warning,) = events_of(await here.finish(run, app), "warning")
    assert "2 of 4" in warning["line"]


async def test_what_a_strategy_will_ask_later_is_refused_before_anybody_trains(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    answer = await app.exchange(model, ALL, ahead={"train": 2})
    assert isinstance(answer, ExchangeRefused)
    assert answer.reason.startswith("cohort-below-minimum: the strategy asks 2 of 4 clients to train, a sum needs 3")
    assert not events_of(await here.finish(run, app), "exchange")


async def test_an_app_that_dies_ends_its_exchange(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    app.crashed.set()
    ended = await here.follow(run)
    await end(asked)
    assert ended.status == "failed"
    assert ended.reason == "the scripted app crashed"
    with pytest.raises(Failure) as refused:
        await members[0].advertise()
    assert refused.value.problem.kind == "round-failed"


async def test_runs_are_led_in_the_order_of_submission(here: Site) -> None:
    first = await here.begin()
    second = await here.submit()
    assert second.status == "waiting"
    assert len(here.apps) == 1
    await here.finish(*first)
    await until(lambda: len(here.apps) == 2)
    app: ScriptedApp = here.apps[1]
    assert (await here.finish(second.run, app)).status == "finished"


async def test_cancel_ends_a_led_and_a_waiting_run(here: Site, model: ModelState) -> None:
    run, app = await here.begin()
    waiting = (await here.submit()).run
    asked = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    for name in (waiting, run):
        await here.operator("POST", f"/v1/runs/{name}/cancel")
        ended = await here.follow(name)
        assert (ended.status, ended.reason) == ("cancelled", "cancelled by the operator")
        assert events_of(ended, "ended") == [{"status": "cancelled", "reason": ended.reason}]
    await end(asked)
    assert app.stopped
    with pytest.raises(Failure) as refused:
        await members[0].advertise()
    assert refused.value.problem.kind == "round-failed"


async def test_a_client_that_may_not_train_is_not_asked(here: Site, model: ModelState) -> None:
    """It says so when it joins, in a heartbeat, or by leaving; and it stays connected all the time."""
    give_locals(here)
    run, app = await here.begin()
    tired = here.members[2]
    await tired.ask("POST", "/v1/heartbeat", HeartbeatIn(eligible=False))
    first = asyncio.create_task(app.exchange(model, ALL))
    others = [member for member in here.members.values() if member.id != 2]
    await asyncio.gather(*(member.enter() for member in others))
    assert others[0].task is not None
    assert others[0].task.cohort == [1, 3, 4]
    await together(others)
    assert isinstance(await first, Replies)
    assert 2 in here.services.presence.online(30.0)

    await tired.ask("POST", "/v1/heartbeat", HeartbeatIn())
    second = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await tired.withdraw(WithdrawalReason.NOT_ELIGIBLE)
    await together(others)
    assert isinstance(await second, Replies)
    assert tired.task is not None
    assert len(tired.task.cohort) == len(members)
    listed = json.loads((await here.operator("GET", "/v1/clients")).content)["clients"]
    assert [(client["online"], client["eligible"]) for client in listed] == [(True, number != 2) for number in ALL]
    (dropped,) = events_of(await here.finish(run, app), "dropped")
    assert (dropped["client"], dropped["reason"]) == ("client-2", "withdrew: not-eligible")


@pytest.mark.parametrize("idle", [False, True])
async def test_a_client_that_stops_is_not_asked_until_it_joins_again(here: Site, model: ModelState, idle: bool) -> None:
    """It says so when it leaves an exchange, or in its last heartbeat."""
    give_locals(here)
    run, app = await here.begin()
    stopped = here.members[2]
    others = [member for member in here.members.values() if member.id != 2]
    if idle:
        await stopped.ask("POST", "/v1/heartbeat", HeartbeatIn(stopping=True))
    else:
        first = asyncio.create_task(app.exchange(model, ALL))
        await here.enter_all()
        await stopped.withdraw(WithdrawalReason.STOPPED)
        await together(others)
        assert isinstance(await first, Replies)
    await stopped.ask("POST", "/v1/heartbeat", HeartbeatIn())  # one that was on its way
    listed = json.loads((await here.operator("GET", "/v1/clients")).content)["clients"]
    assert [client["online"] for client in listed] == [number != 2 for number in ALL]

    second = asyncio.create_task(app.exchange(model, ALL))
    await asyncio.gather(*(member.enter() for member in others))
    assert others[0].task is not None
    assert others[0].task.cohort == [1, 3, 4]
    await together(others)
    assert isinstance(await second, Replies)

    hello = JoinIn(app_sha256=here.services.presence.installed[1], version=our_version())
    await stopped.ask("POST", "/v1/join", hello)
    third = asyncio.create_task(app.exchange(model, ALL))
    members = await here.enter_all()
    await together(members)
    assert isinstance(await third, Replies)
    await here.finish(run, app)


async def test_who_may_not_train_is_counted_where_too_few_are_left(here: Site, model: ModelState) -> None:
    run, app = await here.begin({"max-attempts": 2})
    installed = here.services.presence.installed[1]
    for number in (1, 2):
        hello = JoinIn(app_sha256=installed, version=our_version(), eligible=False)
        await here.members[number].ask("POST", "/v1/join", hello)
    answer = await here.clock.run_until(asyncio.create_task(app.exchange(model, ALL)))
    assert isinstance(answer, ExchangeRefused)
    assert "3 clients are needed, 2 are connected after 2 s; 2 more may not train now" in answer.reason
    assert events_of(await here.finish(run, app), "dropped") == []
