"""Processes that are killed, frozen and started again, at every interesting moment: the sum stays right."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support.client_on_battery import UNPLUGGED
from support.deployment import LIVENESS_SECONDS, PATIENCE, Deployment, Ended, wait_until
from support.tiny import NAMES, TINY, load_problem, step_of

from fedcore.codec.scaling.error_bound import error_bound
from fedcore.flower.app import FlowerApp
from fedcore.run.encoding_plan import EncodingPlan
from fedcore.state import ModelState

problem = load_problem()
ALL_FOUR = {"min-clients": 4}


def assert_sum_is_of(done: Ended, names: Sequence[str]) -> None:
    """After a run of one round the model is the mean over exactly these clients, within the codec's bound."""
    start = ModelState.from_arrays(problem.initial())
    encoding = EncodingPlan(FlowerApp.load(TINY).settings).encoding("train", start.layout, len(NAMES))
    examples = sum(len(problem.part(NAMES.index(name), len(NAMES))[0]) for name in names)
    bound = error_bound(encoding, survivors=len(names), examples=examples, base=start, largest=1.0)["weight"] + 4e-7
    expected = step_of(names, start["weight"])
    assert np.abs(done.arrays()["weight"] - expected).max() <= bound
    for other in NAMES:
        changed = [name for name in NAMES if (name in names) != (name == other)]
        far = np.abs(step_of(changed, start["weight"]) - expected).max()
        assert far > 100 * bound, "one client more or less must show"


def test_a_round_of_all_four_is_the_pooled_step(federation: Deployment) -> None:
    done = federation.submit().finish()
    assert done.status == 0, done.stderr
    assert done.trained() == [list(NAMES)]
    assert_sum_is_of(done, NAMES)


def test_a_client_killed_while_it_trains_is_left_out_of_the_sum(federation: Deployment) -> None:
    run = federation.submit(gated=True)
    run.wait_for_training()
    federation.kill("client-2")
    run.go_on()
    run.wait_for("dropped", client="client-2", stage="input")
    done = run.finish()
    assert done.status == 0, done.stderr
    survivors = ["client-1", "client-3", "client-4"]
    assert done.trained() == [survivors]
    assert_sum_is_of(done, survivors)
    assert done.of("exchange-failed") == []


def test_a_client_killed_before_the_end_of_its_upload_is_left_out_of_the_sum(federation: Deployment) -> None:
    """All of its vector is on the server's disk, but not the word that this was all."""
    federation.stop("client-3")
    said = len(federation.log("client-3"))
    doomed = federation.start_client("client-3", dies_after="update/parts/0")
    federation.wait_for_log("client-3", "connected", after=said)
    done = federation.submit().finish()
    assert done.status == 0, done.stderr
    assert doomed.wait(PATIENCE) == -signal.SIGKILL
    survivors = ["client-1", "client-2", "client-4"]
    assert done.trained() == [survivors]
    assert next((data["client"], data["stage"]) for data in done.of("dropped")) == ("client-3", "input")
    assert_sum_is_of(done, survivors)
    assert list((federation.federation.folder / "server" / "data" / "spool").iterdir()) == []


@pytest.mark.parametrize("last_request", ["manifest", "consistency"])
def test_a_client_killed_after_its_upload_stays_in_the_sum(federation: Deployment, last_request: str) -> None:
    federation.stop("client-3")
    said = len(federation.log("client-3"))
    doomed = federation.start_client("client-3", dies_after=last_request)
    federation.wait_for_log("client-3", "connected", after=said)
    done = federation.submit().finish()
    assert done.status == 0, done.stderr
    assert doomed.wait(PATIENCE) == -signal.SIGKILL
    assert done.trained() == [list(NAMES)]
    assert [data["client"] for data in done.of("dropped") if data["stage"] in ("consistency", "unmask")] == ["client-3"]
    assert_sum_is_of(done, NAMES)


def test_below_the_threshold_the_exchange_fails_and_is_tried_again(federation: Deployment) -> None:
    run = federation.submit(gated=True, settings=ALL_FOUR)
    run.wait_for_training()
    federation.kill("client-1", "client-4")
    failed = run.wait_for("exchange-failed")
    assert failed["retry"] is True
    assert re.search(r"\b2\b.*'input'.*\b3\b.*client-1: silent", failed["reason"])
    federation.start_clients("client-1", "client-4")
    run.go_on()
    done = run.finish()
    assert done.status == 0, done.stderr
    assert done.trained() == [list(NAMES)]
    assert_sum_is_of(done, NAMES)


def test_the_run_fails_when_they_do_not_come_back(federation: Deployment) -> None:
    run = federation.submit(gated=True, settings={"min-clients": 3, "join-seconds": 1.0})
    run.wait_for_training()
    federation.kill("client-1", "client-4")
    done = run.finish()
    assert done.status == 5
    assert re.search(r"\b3\b.*\b2\b.* 1 s", done.stderr)
    assert done.of("ended")[0]["status"] == "failed"
    assert not done.model.exists()


def test_the_last_attempt_gives_its_reason(federation: Deployment) -> None:
    run = federation.submit(gated=True, settings={"max-attempts": 1})
    run.wait_for_training()
    federation.kill("client-1", "client-2")
    done = run.finish()
    assert done.status == 5
    assert [data["retry"] for data in done.of("exchange-failed")] == [False]
    assert re.search(r"\b2\b.*'input'.*\b3\b", done.stderr)


def test_a_killed_rank_costs_its_client_one_exchange(federation: Deployment) -> None:
    run = federation.submit(gated=True, num_server_rounds=2)
    run.wait_for_training()
    federation.ranks("client-4")[0].kill()
    dropped = run.wait_for("dropped", client="client-4")
    assert dropped["reason"] == "withdrew: worker-died, rank-killed"
    run.go_on()
    done = run.finish()
    assert done.status == 0, done.stderr
    assert done.trained() == [["client-1", "client-2", "client-3"], list(NAMES)]
    expected = step_of(NAMES, step_of(NAMES[:3], problem.initial()["weight"]))
    np.testing.assert_allclose(done.arrays()["weight"], expected, rtol=0, atol=1e-5)
    assert re.search("rank 0.*SIGKILL", federation.log("client-4"))
    assert federation.process("client-4").poll() is None, "the agent lives"


def test_an_unplugged_client_sits_out_until_it_is_plugged_in(federation: Deployment) -> None:
    policy, battery = federation.kit("client-3") / "policy.toml", federation.folder / "battery"
    before = policy.read_text()
    federation.stop("client-3")
    said = len(federation.log("client-3"))
    try:
        policy.write_text(before.replace("on-power-only = false", "on-power-only = true"))
        battery.write_text(UNPLUGGED)
        federation.start_client("client-3", battery=battery)
        federation.wait_for_log("client-3", "connected", after=said)
        others = ["client-1", "client-2", "client-4"]
        without = federation.submit().finish()
        assert without.trained() == [others]
        assert_sum_is_of(without, others)
        battery.write_text("plugged in")
        federation.wait_for_log("client-3", "eligible again", after=said)
        run = federation.submit(gated=True, num_server_rounds=2, settings=ALL_FOUR)
        run.wait_for_training()
        battery.write_text(UNPLUGGED)
        dropped = run.wait_for("dropped", client="client-3")
        assert dropped["reason"] == "withdrew: not-eligible"
        battery.write_text("plugged in")
        run.go_on()
        done = run.finish()
        assert done.status == 0, done.stderr
        assert done.trained() == [others, list(NAMES)]
        assert "left the exchange, not eligible: on battery" in federation.log("client-3")
    finally:
        policy.write_text(before)
        federation.stop("client-3")


def test_a_frozen_agent_is_dropped_and_comes_back(federation: Deployment) -> None:
    said = len(federation.log("client-2"))
    run = federation.submit(gated=True, num_server_rounds=1)
    run.wait_for_training()
    federation.process("client-2").send_signal(signal.SIGSTOP)
    try:
        dropped = run.wait_for("dropped", client="client-2")
        run.go_on()
        assert dropped["reason"] == f"silent for more than {LIVENESS_SECONDS:g} s"
        done = run.finish()
    finally:
        federation.process("client-2").send_signal(signal.SIGCONT)
    assert done.status == 0, done.stderr
    assert_sum_is_of(done, ["client-1", "client-3", "client-4"])
    federation.wait_for_log("client-2", "the exchange ended for this client", after=said)
    again = federation.submit().finish()
    assert again.status == 0, again.stderr
    assert_sum_is_of(again, NAMES)


def test_a_run_goes_on_in_the_round_in_which_its_server_was_stopped(federation: Deployment) -> None:
    processes = [federation.process(name) for name in NAMES]
    run = federation.submit(gated=True)
    run.wait_for_training()
    assert federation.stop("server") == 0
    federation.start_server()
    run.go_on()
    done = run.finish()
    assert done.status == 0, done.stderr
    assert [process.poll() for process in processes] == [None] * len(NAMES)
    assert_sum_is_of(done, NAMES)
    assert done.trained() == [list(NAMES)]
    assert [data["why"] for data in done.of("resumed")] == ["the server was started again"]


def test_a_run_goes_on_in_the_round_in_which_its_server_was_killed(federation: Deployment) -> None:
    run = federation.submit(gated=True)
    run.wait_for_training()
    federation.kill("server")
    wait_until("the ServerApp to end with its server", lambda: not federation.server_apps())
    federation.start_server()
    run.go_on()
    done = run.finish()
    assert done.status == 0, done.stderr
    assert_sum_is_of(done, NAMES)
    assert list((federation.federation.folder / "server" / "data" / "spool").iterdir()) == []


def test_a_run_goes_on_in_the_round_in_which_its_app_was_killed_and_the_next_begins(federation: Deployment) -> None:
    run = federation.submit(gated=True)
    run.wait_for_training()
    (app,) = federation.server_apps()
    app.kill()
    run.wait_until_resumed(1)
    waiting = federation.submit()
    run.go_on()
    done = run.finish()
    assert done.status == 0, done.stderr
    assert_sum_is_of(done, NAMES)
    assert waiting.finish().status == 0


def test_two_bits_of_an_update_that_the_disk_changes_cost_one_attempt_and_no_client_is_blamed(
    federation: Deployment,
) -> None:
    run = federation.submit(gated=True, gated_partition=3, settings={"max-attempts": 1})
    data = federation.federation.folder / "server" / "data"

    def accepted() -> list[Path]:
        return sorted(data.glob("runs/*/exchanges/1/updates/*"))

    run.wait_for_training()
    run.wait_for("stage", exchange=1, stage="input", done=3)  # and are written down as taken
    federation.kill("server")
    wait_until("the ServerApp to end with its server", lambda: not federation.server_apps())
    damaged = accepted()[0]
    content = bytearray(damaged.read_bytes())
    content[1] ^= 4
    content[20] ^= 64
    damaged.write_bytes(content)
    federation.start_server()
    run.go_on()
    done = run.finish()
    assert done.status == 0, done.stderr
    assert_sum_is_of(done, NAMES)
    (failed,) = done.of("exchange-failed")
    assert (failed["retry"], done.of("blamed"), done.of("dropped")) == (True, [], [])
    assert "the update of client-1 in exchange 1 was changed on the server's disk" in federation.log("server")


def kill_server(federation: Deployment) -> None:
    """The server's process, as an app does that fills the machine's memory; then it is started again."""
    federation.kill("server")
    wait_until("the ServerApp to end with its server", lambda: not federation.server_apps())
    federation.start_server()


def test_a_run_whose_server_is_killed_twice_in_the_same_place_ends_and_the_next_goes_on(
    federation: Deployment,
) -> None:
    run = federation.submit(gated=True)
    run.wait_for_training()
    waiting = federation.submit()
    kill_server(federation)
    run.wait_until_resumed(1)
    for times in (2, 3):  # a stop on purpose is no death
        assert federation.stop("server") == 0
        federation.start_server()
        run.wait_until_resumed(times)
    kill_server(federation)
    ended = run.finish()
    assert ended.status == 5
    assert "killed 2 times while it led this run" in ended.stderr
    run.go_on()
    assert waiting.finish().status == 0


def test_a_run_that_comes_further_between_two_deaths_of_its_server_goes_on(federation: Deployment) -> None:
    run = federation.submit(gated=True, num_server_rounds=2)
    run.wait_for_training()
    kill_server(federation)
    run.wait_until_resumed(1)
    run.go_on()
    run.wait_for("exchange", server_round=2)
    kill_server(federation)
    done = run.finish()
    assert done.status == 0, done.stderr
    assert done.trained() == [list(NAMES)] * 2
