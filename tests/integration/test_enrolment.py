"""A federation whose members change while a run goes on, in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.deployment import PATIENCE, Deployment

from client_app.operator.client import OperatorClient
from fedcore.errors import Refused
from fedcore.federation import OperatorKit, Policy
from fedcore.federation.authority import Authority
from fedcore.federation.enrolment import accept, ask, rotate
from fedcore.federation.fingerprint import fingerprint
from fedcore.federation.kits.policy_text import policy_text
from fedcore.federation.requests import JoinRequest

NEW = ["north", "south"]


def enrol(federation: Deployment) -> None:
    """Two join, client-2 replaces its key, client-3 is revoked: four rosters, as four commands would sign them."""
    kits = {name: federation.kit(name) for name in NEW}
    for name, kit in kits.items():
        request, _ = ask(kit, name)
        (kit / "policy.toml").write_text(policy_text(Policy.own(4)), encoding="utf-8")
        authority = Authority.load(federation.federation.folder).approve([JoinRequest.load(request)])
        admission = kit / "admission.json"
        admission.write_text(authority.admission(max(authority.roster.keys)).to_json(), encoding="utf-8")
        accept(kit, admission, fingerprint(authority.public_key))
    request, _ = rotate(federation.kit("client-2"))
    Authority.load(federation.federation.folder).approve([JoinRequest.load(request)]).revoke(["client-3"])


def test_two_join_one_is_revoked_and_one_key_is_replaced_while_a_run_goes_on(tmp_path: Path) -> None:
    with Deployment.open(tmp_path, clients=3) as federation:
        federation.start()
        run = federation.submit(gated=True, settings={"min-clients": 3}, num_server_rounds=2)
        run.wait_for_training()
        enrol(federation)
        rosters = Authority.load(federation.federation.folder).rosters
        with OperatorClient(OperatorKit.load(federation.federation.operator), connect_seconds=PATIENCE) as operator:
            answer = operator.publish(rosters)
            assert (answer.roster, answer.newest) == (1, 5), "not within an exchange"
            for number, name in enumerate(NEW, start=3):
                place = f"partition-id={number} num-partitions=5"
                federation.start_client(name, "--node-config", place)
            run.go_on()
            changed = run.finish()
            with pytest.raises(Refused, match=r"roster-rollback.*\b1\b.*\b5\b"):
                operator.publish(rosters[:1])
        assert changed.status == 0, changed.stderr
        assert changed.of("exchange-failed") == []
        assert changed.trained()[0] == ["client-1", "client-2", "client-3"], "an open exchange keeps its roster"
        assert "client-3" not in changed.trained()[1]

        assert federation.process("client-3").wait(PATIENCE) == 3
        assert "client-3 was revoked from the federation comparison, by its authority" in federation.log("client-3")
        for name in ("client-1", "client-2", *NEW):
            federation.wait_for_log(name, "roster 5: 4 members")
        assert "this client's new key is in use" in federation.log("client-2")
        after = federation.submit(settings={"min-clients": 4}, num_server_rounds=1).finish()
    assert after.status == 0, after.stderr
    assert after.trained() == [["client-1", "client-2", "north", "south"]]
