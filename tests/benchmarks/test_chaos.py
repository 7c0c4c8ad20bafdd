"""What the kill harness finds in what its clients saw."""

from __future__ import annotations

import json

import numpy as np

from benchmarks.chaos_checks import Verdict, judge_digits, judge_run, judge_told
from benchmarks.chaos_clients import STEP, Log
from benchmarks.chaos_everything import CLIENTS, ROUNDS, mean_step, other_model

PLACE = ("run", 1)


def model(*clients: int, of: int = 4) -> bytes:
    """The model after a mean over `of` clients in whose sum these are."""
    return np.full(3, sum(4 ** (client - 1) for client in clients) * STEP / of, np.float32).tobytes()


def verdict_on(after: bytes) -> Verdict:
    verdict = Verdict()
    judge_digits(verdict, "here", bytes(12), after, [1, 2, 3, 4])
    return verdict


def test_the_digits_tell_who_is_in_a_sum_and_how_often():
    assert verdict_on(model(1, 2, 3, 4)).clean
    assert verdict_on(model(1, 2, 4)).lost == ["here: client 3 is not in the sum"]
    assert verdict_on(model(1, 2, 2, 3, 4)).doubled == ["here: client 2 is in the sum 2 times, and not 1"]
    torn = np.array([0.0, 1.0, 85.0], np.float32) * np.float32(STEP)
    assert "no whole number of steps" in verdict_on(torn.tobytes()).lost[0]


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
    log = Log()
    log.note(3, "PUT", "/v1/runs/run/exchanges/1/manifest", b"")
    assert log.accepted == {(PLACE, 3)}
    done = {"kind": "exchange-done", "exchange": 1, "survivors": ["client-1", "client-2"]}
    run = {"run": "run", "status": "finished", "reason": "", "events": [{"event": done}]}
    judge_run(verdict := Verdict(), run, log, None, digits=True)
    assert verdict.lost == ["('run', 1): the update of client 3 was accepted, and is not in the sum"]


def test_an_exchange_that_fails_has_lost_what_it_accepted():
    log = Log()
    events = [{"event": {"kind": "exchange-failed", "exchange": 1, "reason": "it does not fit together"}}]
    run = {"run": "run", "status": "finished", "reason": "", "events": events}
    judge_run(verdict := Verdict(), run, log, None, digits=True)
    assert verdict.lost == []
    log.note(3, "PUT", "/v1/runs/run/exchanges/1/manifest", b"")
    judge_run(verdict, run, log, None, digits=True)
    assert verdict.lost == ["('run', 1): the updates of [3] were accepted, and it failed: it does not fit together"]


def test_a_run_that_was_interrupted_has_not_ended_well():
    run = {"run": "run", "status": "interrupted", "reason": "stopped", "events": []}
    judge_run(verdict := Verdict(), run, Log(), None, digits=True)
    assert verdict.unfinished == ["run: interrupted, stopped"]
    assert not verdict.clean


def test_a_run_is_given_up_where_its_server_was_killed_twice_and_only_there():
    reason = "the server's process was killed 2 times while it led this run, which came no further in between: its app"
    run = {"run": "run", "status": "failed", "reason": reason, "events": []}
    judge_run(verdict := Verdict(), run, Log(), None, digits=True, server_kills=2)
    assert verdict.clean
    assert verdict.given_up == 1
    judge_run(verdict, run, Log(), None, digits=True, server_kills=1)
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
    run = {"run": "run", "status": "failed", "reason": "", "events": [{"event": blamed}]}
    judge_run(verdict := Verdict(), run, Log(), None, digits=True)
    assert verdict.wrongly_blamed == ["run: client-2"]


def test_an_update_that_the_disk_changed_may_cost_one_attempt():
    failed = {"kind": "exchange-failed", "exchange": 1, "reason": "the disk"}
    run = {"run": "run", "status": "cancelled", "reason": "", "events": [{"event": failed}]}
    for damages, lost in ((0, 1), (1, 0)):
        judge_run(verdict := Verdict(), run, Log(accepted={(PLACE, 1)}), None, digits=True, damages=damages)
        assert len(verdict.lost) == lost
