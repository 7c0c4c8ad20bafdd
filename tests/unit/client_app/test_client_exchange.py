"""One exchange of a real client against a scripted server: honest, and with each lie against docs/protocol.md."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import Response
from support.hostile import sign_again

from client_app.agent.agent import Agent, Pauses
from client_app.exchange.client import Client
from client_app.exchange.exchange import take_part
from client_app.exchange.models import MODELS_FOLDER, Models
from client_app.exchange.room import check_ranks_memory, check_room, memory_of_ranks, room_of
from client_app.ranks.failures import AppFailed, RankFailed
from client_app.records.result_cache import ANSWER_FOLDER
from fedcore.codec import CodecSettings, first_encoding
from fedcore.errors import AppError, EncodingError, OutOfMemory, ProtocolViolation, Refused, StorageFull
from fedcore.secagg import Agreement, ClientSession, Fault, KeyShares
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.simulation.devices import network
from fedcore.state import ModelState, sha256_file
from fedcore.state.layout import Layout, TensorSpec
from fedcore.wire import secagg_codec
from fedcore.wire.record_file import StoredValues, write_records
from fedcore.wire.secagg import CohortOut, DeliveryOut, SignaturesOut, SurvivorsOut
from fedcore.wire.secagg_codec import pack_members
from fedcore.wire.tasks import ModelRef, Protection, Task
from fedcore.wire.uploads import ManifestIn, ReplyError, WithdrawalReason

Script = Any  # support.scripted.Scripted
COHORT = (1, 2, 3, 4)
PAUSES = Pauses(refusal=0.0, farewell=60.0)
STEPS = ["PUT advertisement", "PUT key-shares", "PUT part 0", "PUT manifest", "PUT consistency", "PUT unmask"]


def answered(script: Script) -> list[str]:
    """The protocol's steps in which the client said something."""
    return [request for request in script.requests if request.startswith("PUT")]


async def take(script: Script, client: Client) -> None:
    async with script.serving():
        await take_part(script.task, client)


async def offer(script: Script, client: Client) -> None:
    """Offer the script's task to an agent and let it end, well or not."""
    agent = Agent(client, PAUSES)
    async with script.serving():
        await agent.take_part(script.task)


def test_a_task_that_the_disk_has_no_room_for_is_refused_before_anything_is_fetched(
    script: Script, client: Client
) -> None:
    models = Models(client.state_dir / MODELS_FOLDER)
    check_room(script.task, models)
    large = script.task.model.model_copy(update={"size": 1 << 60})
    with pytest.raises(StorageFull):
        check_room(script.task.model_copy(update={"model": large}), models)


class Failure(Exception):
    """One that names the frame which it ended."""


def ended(model: ModelState) -> weakref.ref[BaseException]:
    """What ended an exchange that trained from `model`; nobody but itself names it any more."""
    try:
        raise Failure
    except Failure as error:
        failure = error
    assert model.path is not None
    return weakref.ref(failure)


def test_before_a_large_model_comes_those_of_ended_exchanges_are_gone(script: Script, client: Client) -> None:
    large = script.task.model.model_copy(update={"size": 64 << 20})
    gc.disable()
    try:
        left = ended(ModelState.open(script.model))
        assert left() is not None
        check_room(script.task.model_copy(update={"model": large}), Models(client.state_dir / MODELS_FOLDER))
        assert left() is None
    finally:
        gc.enable()


async def test_a_task_that_memory_has_no_room_for_is_refused_before_anything_is_fetched(
    script: Script, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = script.task.model.model_copy(update={"size": 1 << 50})
    task = script.task.model_copy(update={"model": large})
    for free in (1 << 50, None):
        check_ranks_memory(task, lambda free=free: free)
    check_ranks_memory(script.task, lambda: pytest.fail("to ask costs more than a small model's check"))
    with pytest.raises(OutOfMemory):
        check_ranks_memory(task, lambda: (1 << 50) - 1)
    assert memory_of_ranks() is None or memory_of_ranks() > 0
    assert room_of(task, client.state_dir)
    assert not room_of(script.task, client.state_dir)

    monkeypatch.setattr("fedcore.run.room.LEAST_MODEL", 0)  # the task's own model is a small one
    monkeypatch.setattr("client_app.exchange.exchange.memory_of_ranks", lambda: 0)
    await offer(script, client)
    assert [one.check for one in script.withdrawals] == ["out-of-memory"]
    assert not Models(client.state_dir / MODELS_FOLDER).path(script.task.model.sha256).exists()


async def keys_to_leave(script: Script, running: asyncio.Task[None]) -> None:
    """Wait until a client has sent its keys and shares, in an exchange that goes on."""
    while "PUT key-shares" not in script.requests:
        await asyncio.sleep(0.01)
        assert not running.done()


class TestHonest:
    async def test_the_sum_is_the_weighted_mean(self, script: Script, client: Client) -> None:
        await take(script, client)
        base = ModelState.open(script.model)
        assert script.decoded.examples == 40
        assert script.decoded.metrics == {"loss": pytest.approx(0.5)}
        for name, value in script.decoded.state.items():
            np.testing.assert_allclose(value, base[name] + 1.75, atol=1e-5)
        assert answered(script) == STEPS

    async def test_nothing_is_left_behind(self, script: Script, client: Client) -> None:
        await take(script, client)
        assert {path.name for path in client.state_dir.iterdir() if path.is_dir()} == {"models", ANSWER_FOLDER}
        assert client.transport.traffic.up > script.encoding().words * 8
        assert client.transport.traffic.down > script.model.stat().st_size

    async def test_the_model_is_fetched_once(
        self, script: Script, client: Client, make_task: Callable[..., Task]
    ) -> None:
        await take(script, client)
        script.go_on(make_task(exchange=2))
        await take(script, client)
        assert script.requests.count("GET model") == 1
        assert script.decoded is not None

    async def test_evaluation_sends_metrics_alone(
        self, script: Script, client: Client, make_task: Callable[..., Task]
    ) -> None:
        script.task = make_task(message_type="evaluate")
        await take(script, client)
        assert script.decoded.state is None
        assert script.decoded.metrics == {"loss": pytest.approx(0.5)}

    @pytest.mark.parametrize("step", ["key-shares", "delivery", "update", "consistency", "unmask"])
    async def test_a_peer_may_drop_out_at_any_step(self, script: Script, client: Client, step: str) -> None:
        script.drops = {3: step}
        await take(script, client)
        expected = 30 if step in ("key-shares", "delivery", "update") else 40
        assert script.decoded.examples == expected

    async def test_keys_are_exchanged_while_the_worker_trains(self, script: Script, client: Client) -> None:
        client.work.goes_on = asyncio.Event()
        async with script.serving():
            running = asyncio.create_task(take_part(script.task, client))
            await keys_to_leave(script, running)
            assert "PUT part 0" not in script.requests
            client.work.goes_on.set()
            await running

    async def test_keys_are_exchanged_while_the_model_comes(self, script: Script, client: Client) -> None:
        arrived = asyncio.Event()

        async def later(*words: Any, **options: Any) -> bool:
            await arrived.wait()
            return await download(*words, **options)

        download, client.transport.download = client.transport.download, later  # type: ignore[method-assign]
        async with script.serving():
            running = asyncio.create_task(take_part(script.task, client))
            await keys_to_leave(script, running)
            assert "GET model" not in script.requests
            arrived.set()
            await running

    async def test_the_requests_that_wait_for_one_another_are_those_of_the_simulated_clock(
        self, script: Script, client: Client
    ) -> None:
        script.not_yet = 0  # long polls are answered when there is something to say
        await take(script, client)
        beside = [request for request in script.requests if request in ("PUT advertisement", "PUT key-shares")]
        # While it trains, a client asks for the survivors; that poll is given up when it has trained.
        early = script.requests.index("PUT part 0")
        watched = [request for request in script.requests[:early] if request == "GET survivors"]
        assert len(beside) == network.KEY_TRIPS
        # The task is one more, which an agent polls for.
        assert 1 + len(script.requests) - len(beside) - len(watched) == network.SECURE_TRIPS

    async def test_the_update_that_leaves_is_masked(self, script: Script, client: Client) -> None:
        await take(script, client)
        sent = np.frombuffer(script.update(), "<u8")
        plain = script.peer_words()
        tail = script.encoding().sections["metrics"]
        assert not plain[tail][1:].any()  # unused slots of a clear vector are zero
        assert np.count_nonzero(sent[tail]) == len(sent[tail])


def protected(**changes: Any) -> dict[str, Any]:
    """Changes of a task: the exchange is protected in another way."""
    usual = {"degree": 3, "threshold": 3, "corrupt": 0, "agreement": "x25519-mlkem768"}
    return {"protection": Protection(**{**usual, **changes})}


class TestPlain:
    @pytest.fixture
    def plain(self, script: Script, make_task: Callable[..., Task]) -> Script:
        script.task = make_task(aggregation="plain", encoding=None, protection=None, quorum=1)
        return script

    async def test_the_requests_that_wait_for_one_another_are_those_of_the_simulated_clock(
        self, plain: Script, client: Client, allow: Callable[..., Client]
    ) -> None:
        await take(plain, allow(client, allow_plain=True))
        assert 1 + len(plain.requests) == network.PLAIN_TRIPS

    async def test_is_refused_unless_the_owner_allows_it(self, plain: Script, client: Client) -> None:
        with pytest.raises(ProtocolViolation, match="plain-not-allowed"):
            await take(plain, client)
        assert answered(plain) == []

    async def test_sends_the_reply_as_it_is(
        self, plain: Script, client: Client, allow: Callable[..., Client], log: StringIO
    ) -> None:
        await offer(plain, allow(client, allow_plain=True))
        manifest = ManifestIn.model_validate_json(plain.bodies["manifest"])
        assert (manifest.examples, manifest.values) == (10, {"loss": 0.5})
        assert plain.update() == plain.model.read_bytes(), "the file that the app's process left"
        assert all("[plain: the server can read this]" in line for line in log.getvalue().splitlines())

    @pytest.mark.parametrize(
        ("error", "code", "reason"),
        [
            (AppFailed("Traceback\n  ...\nValueError: no data\n"), 2, "ValueError: no data"),
            (
                AppError("the ClientApp returned a dict, not a Message"),
                2,
                "the ClientApp returned a dict, not a Message",
            ),
            (RankFailed("rank 0 was killed by signal 9", "rank-killed"), 8, "rank 0 was killed by signal 9"),
        ],
    )
    async def test_an_app_that_fails_is_an_error_in_the_place_of_a_reply(
        self, plain: Script, client: Client, allow: Callable[..., Client], error: Exception, code: int, reason: str
    ) -> None:
        client.work.error = error
        await take(plain, allow(client, allow_plain=True))
        manifest = ManifestIn.model_validate_json(plain.bodies["manifest"])
        assert manifest.error == ReplyError(code=code, reason=reason)
        assert answered(plain) == ["PUT manifest"]

    async def test_a_message_sets_what_the_owner_allows_and_nothing_else(
        self, plain: Script, client: Client, allow: Callable[..., Client], make_task: Callable[..., Task]
    ) -> None:
        """The same rule as in secure mode, where the configurations are part of the task."""
        values = StoredValues(key="config", kind="config", values={"lr": 0.5})
        write_records(plain.model, [values])
        reference = ModelRef(sha256=sha256_file(plain.model), size=plain.model.stat().st_size)
        run = {"run_config": {"lr": 0.1}, "settings": client.agreed.settings.for_clients()}
        plain.task = plain.task.model_copy(update={**run, "model": reference})
        agreed = replace(client.agreed, run_config={"lr": 0.1})
        strict = replace(allow(client, allow_plain=True, allow_config={"lr": (0.1, 0.2)}), agreed=agreed)
        with pytest.raises(ProtocolViolation) as refused:
            await take(plain, strict)
        assert refused.value.check == "message-not-allowed"
        plain.task = plain.task.model_copy(update={"exchange": 2})
        await take(plain, replace(allow(client, allow_plain=True, allow_config={}), agreed=agreed))

    async def test_a_message_that_is_no_record_file_is_refused(
        self, plain: Script, client: Client, allow: Callable[..., Client]
    ) -> None:
        ModelState.from_arrays({"w": np.ones(3)}).save(plain.model)
        reference = ModelRef(sha256=sha256_file(plain.model), size=plain.model.stat().st_size)
        plain.task = plain.task.model_copy(update={"model": reference})
        with pytest.raises(ProtocolViolation, match="model-malformed"):
            await take(plain, allow(client, allow_plain=True))


# --- lies ---------------------------------------------------------------------------------------------------------


def _member(answer: CohortOut, index: int, **changes: Any) -> CohortOut:
    members = list(answer.members)
    members[index] = members[index].model_copy(update=changes)
    return answer.model_copy(update={"members": members})


def _listed(answer: CohortOut, *ids: int) -> CohortOut:
    members = [member for member in answer.members if member.client_id in ids]
    return CohortOut(advertised=pack_members(ids, COHORT), members=members, proof=[])


def _foreign_key() -> bytes:
    return KeyPair.draw(Agreement.HYBRID, os.urandom).public


def _substitute_peer(answer: CohortOut) -> CohortOut:
    return _member(answer, 2, c_public=_foreign_key())


def _substitute_masks(answer: CohortOut) -> CohortOut:
    return _member(answer, 2, s_public=_foreign_key())


def _alter_own(answer: CohortOut) -> CohortOut:
    return _member(answer, 0, c_public=_foreign_key())


def _leave_out_own(answer: CohortOut) -> CohortOut:
    return _listed(answer, 2, 3, 4)


def _only_two(answer: CohortOut) -> CohortOut:
    return _listed(answer, 1, 2)


def _alone(answer: CohortOut) -> CohortOut:
    return _listed(answer, 1)


def _twice(answer: CohortOut) -> CohortOut:
    return answer.model_copy(update={"members": [*answer.members, answer.members[-1]]})


def _stranger(answer: CohortOut) -> CohortOut:
    return _member(answer, 3, client_id=99)


def _swap_shares(answer: DeliveryOut) -> DeliveryOut:
    shares = dict(answer.shares)
    shares[2], shares[3] = shares[3], shares[2]
    return answer.model_copy(update={"shares": shares})


def _withhold_a_share(answer: DeliveryOut) -> DeliveryOut:
    return answer.model_copy(update={"shares": {k: v for k, v in answer.shares.items() if k != 3}})


def _sharers(*ids: int) -> Callable[[DeliveryOut], DeliveryOut]:
    def lie(answer: DeliveryOut) -> DeliveryOut:
        return DeliveryOut(
            sharers=pack_members(ids, COHORT),
            shares={k: v for k, v in answer.shares.items() if k in ids},
            pair_secrets={k: v for k, v in answer.pair_secrets.items() if k in ids},
        )

    return lie


def _survivors(*ids: int) -> Callable[[SurvivorsOut], SurvivorsOut]:
    return lambda _: SurvivorsOut(survivors=pack_members(ids, COHORT))


def _bits(bits: int, field: str) -> Callable[[Any], Any]:
    """A set that names more clients than the cohort has."""
    return lambda answer: answer.model_copy(update={field: bytes([bits])})


LIES = [
    pytest.param("cohort", _substitute_peer, "key-substitution", 1, id="1-sealing-key-substituted"),
    pytest.param("cohort", _substitute_masks, "key-substitution", 1, id="1-mask-key-substituted"),
    pytest.param("cohort", _alter_own, "own-entry-altered", 1, id="1-own-entry-altered"),
    pytest.param("cohort", _leave_out_own, "own-entry-altered", 1, id="1-own-entry-missing"),
    pytest.param("survivors", _survivors(1, 2, 3), "signer-not-survivor", 5, id="2-different-survivors"),
    pytest.param("cohort", _only_two, "cohort-below-minimum", 1, id="4-two-keys"),
    pytest.param("cohort", _alone, "cohort-below-minimum", 1, id="4-alone"),
    pytest.param("key-shares", _sharers(1, 2), "cohort-below-minimum", 2, id="4-two-sharers"),
    pytest.param("survivors", _survivors(1, 2), "cohort-below-minimum", 4, id="4-two-survivors"),
    pytest.param("key-shares", _swap_shares, "unsigned-dealing", 2, id="6-shares-of-other-pairs"),
    pytest.param("cohort", _stranger, "malformed", 1, id="8-key-of-a-stranger"),
    pytest.param("cohort", _twice, "duplicate-id", 1, id="8-key-twice"),
    pytest.param("key-shares", _bits(0b10111, "sharers"), "malformed", 2, id="8-unknown-sharer"),
    pytest.param("key-shares", _sharers(2, 3, 4), "own-id-missing", 2, id="8-own-share-missing"),
    pytest.param("survivors", _bits(0b10111, "survivors"), "malformed", 4, id="8-unknown-survivor"),
    pytest.param("survivors", _survivors(2, 3, 4), "own-id-missing", 4, id="8-own-upload-missing"),
    pytest.param("key-shares", _withhold_a_share, "wrong-recipients", 2, id="14-share-withheld"),
]


class TestLies:
    @pytest.mark.parametrize(("route", "lie", "check", "steps"), LIES)
    async def test_is_refused_by_name(
        self, script: Script, client: Client, log: StringIO, route: str, lie: Any, check: str, steps: int
    ) -> None:
        script.lies[route] = lie
        await offer(script, client)
        [withdrawal] = script.withdrawals
        assert withdrawal.check == check
        assert answered(script) == STEPS[:steps]
        assert f"refused: {check}" in log.getvalue()

    @pytest.mark.parametrize(
        ("route", "content"),
        [
            *(("cohort", content) for content in (b'{"members": [', b"[]", b"\xff\x00", b"")),
            *((route, b'{"unknown": 1}') for route in ("cohort", "key-shares", "survivors", "consistency")),
        ],
    )
    async def test_malformed_answers_are_refused(
        self, script: Script, client: Client, route: str, content: bytes
    ) -> None:
        script.lies[route] = lambda _: Response(content)
        await offer(script, client)
        [withdrawal] = script.withdrawals
        assert (withdrawal.reason, withdrawal.check) == (WithdrawalReason.PROTOCOL_VIOLATION, "malformed")
        assert "PUT unmask" not in answered(script)

    async def test_a_neighbour_that_seals_garbage_is_accused_with_a_proof(
        self, script: Script, client: Client, log: StringIO
    ) -> None:
        def garbage(peer: ClientSession, honest: KeyShares) -> KeyShares:
            spoilt = {i: parcel[:-1] + bytes([parcel[-1] ^ 1]) for i, parcel in honest.shares.items()}
            return sign_again(peer, replace(honest, shares=spoilt))

        script.cheats[3] = garbage
        script.drops = dict.fromkeys((2, 4), "delivery")
        await offer(script, client)
        [withdrawal] = script.withdrawals
        assert (withdrawal.reason, withdrawal.check) == (WithdrawalReason.PROTOCOL_VIOLATION, "share-unsealing")
        assert withdrawal.complaint is not None
        verdict = script.round.judge(secagg_codec.complaint_from_wire(1, withdrawal.complaint))
        assert (verdict.client_id, verdict.fault) == (3, Fault.SEALED_GARBAGE)
        assert "refused: share-unsealing: what client 3 sealed" in log.getvalue()

    async def test_different_survivors_with_fitting_signers(self, script: Script, client: Client) -> None:
        """The server hides the signature that would give it away; the others still do not match."""
        script.lies["survivors"] = _survivors(1, 2, 3)
        script.lies["consistency"] = lambda answer: SignaturesOut(
            signatures={k: v for k, v in answer.signatures.items() if k != 4}
        )
        await offer(script, client)
        assert script.withdrawals[0].check == "inconsistent-survivors"
        assert "PUT unmask" not in answered(script)

    async def test_a_model_of_its_own_isolates_nobody(
        self, script: Script, client: Client, tmp_path: Path, make_task: Callable[..., Task]
    ) -> None:
        """The peers trained on another model, so their keys were signed for another ctx."""
        script.truth = make_task(model=ModelRef(sha256="0" * 64, size=1))
        await offer(script, client)
        assert script.withdrawals[0].check == "key-substitution"
        assert answered(script) == STEPS[:1]

    async def test_bytes_of_another_model(self, script: Script, client: Client) -> None:
        script.lies["model"] = lambda content: content[:-1] + bytes([content[-1] ^ 1])
        await offer(script, client)
        assert script.withdrawals[0].check == "model-digest"
        assert "PUT part 0" not in script.requests
        assert client.work.calls == 0

    async def test_a_model_with_other_tensors_than_its_encoding(
        self, script: Script, client: Client, make_task: Callable[..., Task]
    ) -> None:
        """It comes while the keys are exchanged, and nothing that depends on data leaves for it."""
        layout = Layout(specs=(TensorSpec(name="other", dtype="F32", shape=(3,)),))
        script.task = make_task(encoding=first_encoding(CodecSettings(w_max=100), layout, 4))
        await offer(script, client)
        assert script.withdrawals[0].check == "layout-mismatch"
        assert "GET model" in script.requests
        assert "PUT part 0" not in script.requests
        assert client.work.calls == 0

    async def test_a_longer_model_is_not_read_to_its_end(self, script: Script, client: Client, log: StringIO) -> None:
        script.lies["model"] = lambda content: content + b"\0" * 5_000_000
        await offer(script, client)
        assert script.withdrawals[0].check == "model-digest"
        assert "longer than announced" in log.getvalue()
        assert client.transport.traffic.down < 3_000_000

    async def test_the_same_exchange_again(self, script: Script, client: Client) -> None:
        await take(script, client)
        before = len(answered(script))
        script.repeat()
        await offer(script, client)
        assert script.withdrawals[0].check == "exchange-reused"
        assert len(answered(script)) == before

    async def test_shares_that_left_before_do_not_leave_again(self, script: Script, client: Client) -> None:
        """The ledger knows it although the session, which is new, does not."""
        client.ledger.unmask(script.task.run, 1)
        await offer(script, client)
        assert script.withdrawals[0].check == "second-unmask"
        assert answered(script) == STEPS[:5]

    async def test_declared_dropped_while_training(self, script: Script, client: Client) -> None:
        original = script.take

        async def stale(route: str, body: bytes) -> Response:
            if route == "part 0":
                return Response(
                    '{"type":"urn:fedcore:problem:stale-step","title":"","status":409,"detail":"too late"}',
                    status_code=409,
                )
            return await original(route, body)

        script.take = stale
        with pytest.raises(Refused, match="stale-step"):
            await take(script, client)

    async def test_nan_never_leaves(self, script: Script, client: Client) -> None:
        client.work.by = math.nan
        with pytest.raises(EncodingError, match="NaN"):
            await take(script, client)
        assert "PUT part 0" not in answered(script)

    @pytest.mark.parametrize("metrics", [{"loss": math.inf}, {"loss": 2.0**21}, {"curve": []}, {"m" * 201: 1.0}])
    async def test_metrics_that_cannot_be_summed_never_leave(
        self, script: Script, client: Client, metrics: dict[str, Any]
    ) -> None:
        client.work.metrics = metrics
        await offer(script, client)
        assert script.withdrawals[0].reason is WithdrawalReason.UPDATE_REFUSED
        assert "PUT part 0" not in answered(script)

    async def test_a_model_is_sent_only_where_one_was_asked_for(self, script: Script, client: Client) -> None:
        client.work.forgets = True
        await offer(script, client)
        assert script.withdrawals[0].reason is WithdrawalReason.WRONG_RECORDS
        assert not {"PUT part 0", "PUT manifest"} & set(answered(script))

    async def test_examples_above_the_bound_never_leave(self, script: Script, client: Client) -> None:
        client.work.examples = 101
        await offer(script, client)
        assert script.withdrawals[0].reason is WithdrawalReason.UPDATE_REFUSED
        assert "PUT part 0" not in answered(script)


class TestTask:
    """What is refused before anything is answered."""

    @pytest.mark.parametrize(
        ("changes", "check", "reason"),
        [
            ({"app_sha256": "cd" * 32}, "app-mismatch", WithdrawalReason.APP_MISMATCH),
            ({"cohort": [2, 3, 4]}, "own-id-missing", WithdrawalReason.PROTOCOL_VIOLATION),
            ({"cohort": [1, 2, 2, 3]}, "duplicate-id", WithdrawalReason.PROTOCOL_VIOLATION),
            ({"cohort": [1, 2, 3, 99]}, "off-roster", WithdrawalReason.PROTOCOL_VIOLATION),
            ({"cohort": [1], "quorum": 1}, "cohort-below-minimum", WithdrawalReason.POLICY),
            ({"cohort": [1, 2], "quorum": 2}, "cohort-below-minimum", WithdrawalReason.POLICY),
            ({"cohort": [1, 2]}, "bad-parameters", WithdrawalReason.PROTOCOL_VIOLATION),
            (protected(threshold=2), "threshold-below-minimum", WithdrawalReason.POLICY),
            (protected(threshold=5), "bad-parameters", WithdrawalReason.PROTOCOL_VIOLATION),
            (protected(degree=2), "bad-parameters", WithdrawalReason.PROTOCOL_VIOLATION),
            (protected(corrupt=2), "cohort-below-minimum", WithdrawalReason.POLICY),
            (protected(agreement="none"), "agreement-not-allowed", WithdrawalReason.POLICY),
            (protected(agreement="x25519"), "agreement-not-allowed", WithdrawalReason.POLICY),
            ({"protection": None}, "bad-parameters", WithdrawalReason.PROTOCOL_VIOLATION),
            ({"quorum": 2}, "cohort-below-minimum", WithdrawalReason.POLICY),
            ({"quorum": 5}, "bad-parameters", WithdrawalReason.PROTOCOL_VIOLATION),
            ({"model": None}, "model-missing", WithdrawalReason.PROTOCOL_VIOLATION),
            ({"encoding": None}, "encoding-refused", WithdrawalReason.PROTOCOL_VIOLATION),
            ({"encoding": {"n_max": "x"}}, "encoding-refused", WithdrawalReason.PROTOCOL_VIOLATION),
            (
                {"encoding": first_encoding(CodecSettings(w_max=100), None, 4)},
                "layout-mismatch",
                WithdrawalReason.PROTOCOL_VIOLATION,
            ),
        ],
    )
    async def test_is_refused(
        self,
        script: Script,
        client: Client,
        make_task: Callable[..., Task],
        changes: dict[str, Any],
        check: str,
        reason: WithdrawalReason,
    ) -> None:
        script.task = make_task(**changes)
        await offer(script, client)
        [withdrawal] = script.withdrawals
        assert (withdrawal.check, withdrawal.reason) == (check, reason)
        assert answered(script) == []
        assert client.work.calls == 0
        # What a task says of itself is judged before the model is fetched.
        assert "GET model" not in script.requests

    async def test_an_unsorted_cohort_is_refused(
        self, script: Script, client: Client, make_task: Callable[..., Task]
    ) -> None:
        script.task = make_task(cohort=[2, 1, 3, 4])
        await offer(script, client)
        assert script.withdrawals[0].check == "bad-parameters"
        assert answered(script) == []

    async def test_a_cached_model_that_was_altered_is_fetched_again(
        self, script: Script, client: Client, make_task: Callable[..., Task]
    ) -> None:
        await take(script, client)
        [cached] = (client.state_dir / "models").iterdir()
        cached.write_bytes(cached.read_bytes()[:-1] + b"x")
        script.go_on(make_task(exchange=2))
        await take(script, client)
        assert script.requests.count("GET model") == 2

    async def test_a_threshold_of_half_is_refused(
        self, script: Script, client: Client, allow: Callable[..., Client], make_task: Callable[..., Task]
    ) -> None:
        script.task = make_task(**protected(threshold=2))
        await offer(script, allow(client, min_cohort=2, min_threshold=2))
        assert script.withdrawals[0].check == "bad-parameters"
        assert "GET model" not in script.requests

    @pytest.mark.parametrize(("field", "value"), [("n_max", 3), ("layout", [["weight", "F32", [20, 50]]])])
    async def test_an_encoding_that_does_not_fit_is_refused(
        self, script: Script, client: Client, make_task: Callable[..., Task], field: str, value: Any
    ) -> None:
        encoding = {**script.task.model_dump(mode="json")["encoding"], field: value}
        if field == "layout":
            encoding["scales"] = encoding["scales"][:1]
        script.task = make_task(encoding=encoding)
        await offer(script, client)
        assert script.withdrawals[0].check == {"n_max": "encoding-refused", "layout": "layout-mismatch"}[field]

    async def test_a_model_that_is_none_is_refused(
        self, script: Script, client: Client, make_task: Callable[..., Task]
    ) -> None:
        import hashlib

        content = b"not a model, but what was announced"
        digest = hashlib.sha256(content).hexdigest()
        script.task = make_task(model=ModelRef(sha256=digest, size=len(content)))
        script.lies["model"] = lambda _: content
        await offer(script, client)
        assert script.withdrawals[0].check == "model-malformed"


class TestLocalFailures:
    """The server learns a fixed reason and never the text."""

    @pytest.mark.parametrize(
        ("error", "reason", "check"),
        [
            (AppFailed("...\nValueError: patient 4711 has no age"), WithdrawalReason.APP_FAILED, "rank-exception"),
            (AppError("a reply needs exactly one MetricRecord"), WithdrawalReason.WRONG_RECORDS, ""),
            (RankFailed("rank 1 ended", "rank-killed"), WithdrawalReason.WORKER_DIED, "rank-killed"),
        ],
    )
    async def test_withdraws_with_a_coded_reason(
        self, script: Script, client: Client, log: StringIO, error: Exception, reason: WithdrawalReason, check: str
    ) -> None:
        client.work.error = error
        client.work.goes_on = asyncio.Event()
        script.survivors_or_not_yet = client.work.goes_on.set  # the keys are exchanged; not yet
        await offer(script, client)
        [withdrawal] = script.withdrawals
        assert (withdrawal.reason, withdrawal.check) == (reason, check)
        assert b"patient" not in b"".join(script.bodies.values())
        assert str(error) in log.getvalue()

    async def test_the_work_is_stopped_when_the_exchange_ends(self, script: Script, client: Client) -> None:
        client.work.goes_on = asyncio.Event()
        script.lies["cohort"] = _substitute_peer
        await offer(script, client)
        assert client.work.cancelled

    async def test_training_ends_when_the_exchange_does(self, script: Script, client: Client, log: StringIO) -> None:
        """The others dropped out: nobody waits for an update any more."""
        client.work.goes_on = asyncio.Event()
        async with script.serving():
            running = asyncio.create_task(Agent(client, PAUSES).take_part(script.task))
            while "GET survivors" not in script.requests:  # noqa: ASYNC110 - the script has no events
                await asyncio.sleep(0.01)
            script.failed = "too few clients are left"
            await running
        assert client.work.cancelled
        assert script.withdrawals == []
        assert "too few clients are left" in log.getvalue()

    async def test_survivors_before_the_upload_are_a_lie(self, script: Script, client: Client) -> None:
        client.work.goes_on = asyncio.Event()
        script.survivors_or_not_yet = lambda: SurvivorsOut(survivors=pack_members((2, 3, 4), COHORT))
        await offer(script, client)
        assert script.withdrawals[0].check == "own-id-missing"
        assert client.work.cancelled

    async def test_a_server_that_never_ends_the_exchange(
        self, script: Script, client: Client, make_task: Callable[..., Task]
    ) -> None:
        script.task = make_task(seconds=0.1)
        script.not_yet = 10**9
        await offer(script, replace(client, others_seconds=0.1))
        assert script.withdrawals[0].check == "timeout"
