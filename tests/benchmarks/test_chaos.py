"""What the kill harness finds in what its clients saw."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from benchmarks.chaos_checks import History, Verdict, judge_run, judge_sum, judge_told
from benchmarks.chaos_clients import STEP, Log
from benchmarks.chaos_digits import Reader
from benchmarks.chaos_everything import CLIENTS, ROUNDS, mean_step, other_model
from benchmarks.chaos_runs import STRATEGIES

PLACE = ("run", 1)
NOTHING_DONE = History(strategy="fedavg")


def model(*clients: int, of: int = 4) -> bytes:
    """The model after a mean over `of` clients in whose sum these are."""
    return np.full(3, sum(4 ** (client - 1) for client in clients) * STEP / of, np.float32).tobytes()


def verdict_on(after: bytes) -> Verdict:
    verdict = Verdict()
    judge_sum(verdict, "here", Reader("fedavg", 4).read(1, bytes(12), after, 4), [1, 2, 3, 4])
    return verdict


def state(status: str, *events: dict[str, Any], reason: str = "") -> dict[str, Any]:
    return {"run": "run", "status": status, "reason": reason, "events": [{"event": event} for event in events]}


def done(*survivors: int, exchange: int = 1, **more: Any) -> dict[str, Any]:
    names = [f"client-{one}" for one in survivors]
    return {"kind": "exchange-done", "exchange": exchange, "server_round": exchange, "survivors": names, **more}


def accepted(*clients: int, exchange: int = 1) -> Log:
    """Each of them has trained once, and the server has its update."""
    log = Log()
    for client in clients:
        log.trainings["run", client] += 1
        log.note(client, "PUT", f"/v1/runs/run/exchanges/{exchange}/manifest", b"")
    return log


def test_the_digits_tell_who_is_in_a_sum_and_how_often():
    assert verdict_on(model(1, 2, 3, 4)).clean
    assert verdict_on(model(1, 2, 4)).lost == ["here: client 3 is not in the sum"]
    assert verdict_on(model(1, 2, 2, 3, 4)).doubled == ["here: client 2 is in the sum 2 times, and not 1"]
    torn = np.array([0.0, 1.0, 85.0], np.float32) * np.float32(STEP)
    assert "no whole number of steps" in verdict_on(torn.tobytes()).lost[0]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_shows_the_digits_of_its_sums(strategy: str):
    """An adaptive one takes nearly the same step whatever the mean is; so its `tau` is large here."""
    sums = [(1, 1, 1, 1), (0, 1, 1, 1), (1, 1, 1, 1), (1, 2, 1, 1), (1, 1, 1, 1)]
    leader, reader = (Reader(strategy, 4) for _ in range(2))
    before = np.zeros(5, np.float32)
    for server_round, digits in enumerate(sums, start=1):
        total = sum(digit * 4**place for place, digit in enumerate(digits))
        after = np.repeat(leader.step(server_round, before[:1], np.array([total]), 4), 5).astype(np.float32)
        shown = reader.read(server_round, before.tobytes(), after.tobytes(), 4)
        assert shown.digits == digits
        assert shown.spread < 0.01
        before = after


def test_two_answers_to_one_question_are_an_equivocation():
    log = Log()
    told = {client: json.dumps({"survivors": "Dw=="}).encode() for client in (1, 2)}
    for client, answer in told.items():
        log.note(client, "GET", "/v1/runs/run/exchanges/1/survivors?wait=25", answer)
    judge_told(verdict := Verdict(), log)
    assert verdict.clean
    log.note(2, "GET", "/v1/runs/run/exchanges/1/survivors?wait=25", json.dumps({"survivors": "Bw=="}).encode())
    judge_told(verdict, log)
    assert len(verdict.equivocations) == 1


def test_an_accepted_update_has_to_be_in_the_sum():
    log = accepted(1, 2, 3)
    assert log.accepted == {(PLACE, 1), (PLACE, 2), (PLACE, 3)}
    judge_run(verdict := Verdict(), state("finished", done(1, 2)), log, None, NOTHING_DONE)
    assert verdict.lost == ["('run', 1): the update of client 3 was accepted, and is not in the sum"]


def test_an_update_that_was_accepted_for_a_group_has_to_be_in_the_sum_of_that_group():
    groups = [done(1, 2, exchange=2) | {"kind": "group-ended", "reason": ""}, done(1, 2, 3, exchange=1)]
    judge_run(verdict := Verdict(), state("finished", *groups), accepted(1, 2, 3, exchange=2), None, NOTHING_DONE)
    assert verdict.lost == ["('run', 2): the update of client 3 was accepted, and is not in the sum"]


def test_an_update_is_in_one_sum():
    """In a buffered run it is trained before anybody knows in which."""
    sums = [done(1, 2, exchange=1), done(1, 3, exchange=2)]
    judge_run(verdict := Verdict(), state("finished", *sums), accepted(1, 2, 3), None, NOTHING_DONE)
    assert verdict.doubled == ["run: client 1 is in 2 sums, and has trained 1 times"]


def test_an_exchange_that_fails_has_lost_what_it_accepted():
    failed = {"kind": "exchange-failed", "exchange": 1, "reason": "it does not fit together"}
    judge_run(verdict := Verdict(), state("finished", failed), Log(), None, NOTHING_DONE)
    assert verdict.lost == []
    judge_run(verdict, state("finished", failed), accepted(3), None, NOTHING_DONE)
    assert verdict.lost == ["('run', 1): the updates of [3] were accepted, and it failed: it does not fit together"]


def test_a_run_that_was_interrupted_has_not_ended_well():
    judge_run(verdict := Verdict(), state("interrupted", reason="stopped"), Log(), None, NOTHING_DONE)
    assert verdict.unfinished == ["run: interrupted, stopped"]
    assert not verdict.clean


def test_a_run_is_given_up_where_its_server_was_killed_twice_and_only_there():
    reason = "the server's process was killed 2 times while it led this run, which came no further in between: its app"
    run = state("failed", reason=reason)
    judge_run(verdict := Verdict(), run, Log(), None, History(strategy="fedavg", server_kills=2))
    assert verdict.clean
    assert verdict.given_up == 1
    judge_run(verdict, run, Log(), None, History(strategy="fedavg", server_kills=1))
    assert len(verdict.unfinished) == 1


def test_a_run_over_which_a_backup_was_put_may_fail_by_name_and_may_not_hang():
    history = History(strategy="fedavg", restored=True)
    judge_run(verdict := Verdict(), state("failed", reason="too few"), accepted(1), None, history)
    assert (verdict.clean, verdict.given_up) == (True, 1)
    judge_run(verdict, state("running", reason="not ended"), Log(), None, history)
    assert len(verdict.unfinished) == 1


def test_a_model_of_other_clients_than_the_survivors_shows():
    everybody = list(range(1, CLIENTS + 1))
    sums = [everybody, everybody[1:], everybody[:3], everybody]
    assert len(sums) == ROUNDS
    model = sum(mean_step(survivors) for survivors in sums)
    assert other_model(model, sums) == ""
    assert "after 3 sums" in other_model(model, sums[1:])
    for place, survivors in enumerate(sums):
        for client in survivors:
            said = [*sums[:place], [one for one in survivors if one != client], *sums[place + 1 :]]
            assert other_model(model, said), (place, client)
            doubled = model + STEP * 4 ** (client - 1) / len(survivors)
            assert other_model(doubled, sums), (place, client)


def test_an_honest_client_that_is_blamed_is_a_finding():
    blamed = {"kind": "blamed", "client": "client-2", "exchange": 1}
    judge_run(verdict := Verdict(), state("failed", blamed), Log(), None, NOTHING_DONE)
    assert verdict.wrongly_blamed == ["run: client-2"]


def test_an_update_that_the_disk_changed_costs_one_attempt_and_is_noticed():
    failed = {"kind": "exchange-failed", "exchange": 1, "reason": "it was changed on the server's disk"}
    flipped = History(strategy="fedavg", flips=frozenset({1}))
    for history, lost in ((NOTHING_DONE, 1), (flipped, 0)):
        judge_run(verdict := Verdict(), state("finished", failed), accepted(1), None, history)
        assert (len(verdict.lost), verdict.unnoticed_flips) == (lost, [])
    judge_run(verdict := Verdict(), state("finished", done(1)), accepted(1), None, flipped)
    assert verdict.unnoticed_flips == ["('run', 1): a bit was flipped"]
