"""A federation as the README starts it, of real processes that train a real example: the one that `make test` runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from support.deployment import Deployment
from typer.testing import CliRunner

from fedcore.cli.main import app

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
CLIENTS = ["client-1", "client-2", "client-3"]


def test_three_clients_train_digits_together(tmp_path: Path) -> None:
    with Deployment.open(tmp_path, clients=len(CLIENTS), forked=False) as federation:
        federation.app = DIGITS
        federation.start()
        done = federation.submit(settings={"min-clients": len(CLIENTS)}, num_server_rounds=3).finish()
        checked = CliRunner().invoke(
            app, ["transcript", "verify", "--operator", str(federation.federation.operator), "--json"]
        )
        kept = CliRunner().invoke(app, ["transcript", "verify", "--kit", str(federation.kit("client-2")), "--json"])
    assert done.status == 0, done.stderr
    assert done.summary["aggregation"] == "secure"
    assert done.trained() == [CLIENTS] * 3
    accuracies = [event["metrics"]["eval_acc"] for event in done.of("exchange-done") if "eval_acc" in event["metrics"]]
    assert len(accuracies) == 3
    assert accuracies[-1] > 0.8
    assert not checked.exception, repr(checked.exception) + checked.output
    told, own = json.loads(checked.output), json.loads(kept.output)
    assert (checked.exit_code, told["holds"]) == (0, True)
    assert [line["survivors"] for line in told["exchanges"]] == [3] * 6, "three of training, three of evaluation"
    assert (kept.exit_code, own["exchanges"]) == (0, told["exchanges"]), "a client's own copy says the same"
    assert all(np.isfinite(array).all() for array in done.arrays().values())
