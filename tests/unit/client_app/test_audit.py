"""`fedcore client audit`: what the ledger says, for the owner."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from client_app.records.audit import audit, audit_json, print_audit
from client_app.records.ledger import Ledger
from client_app.records.ledger_entries import LEDGER_FILE
from fedcore.codec.privacy import Accountant, Release
from fedcore.errors import ConfigurationError
from fedcore.federation.admission.owner import AgreedSum
from fedcore.federation.transcript import NoisedSum
from fedcore.monitoring.promise import masks_and_noise

RELEASE = Release(mechanism="skellam", variance=1e6, shares=3, scale=1024, dimension=100)


def asked(ledger: Ledger, run: str, exchange: int, **changes: object) -> None:
    values = {"message_type": "train", "aggregation": "secure", "app_sha256": "ab" * 32, "model": "11", "cohort": 4}
    ledger.ask(run, exchange, **{**values, "attempt": 1, "changed": {}, **changes})


@pytest.fixture
def busy(kit: Path) -> Path:
    """A kit whose client released one sum, refused two questions, and is in the middle of a third exchange."""
    state = kit / "state"
    state.mkdir()
    text = (kit / "policy.toml").read_text().replace("max-epsilon = 0.0", "max-epsilon = 8.0")
    (kit / "policy.toml").write_text(text)
    now = iter(range(1_700_000_000, 1_800_000_000, 3600))
    with Ledger(state, wall=lambda: float(next(now))) as ledger:
        asked(ledger, "first", 1)
        ledger.enter("first", 1)
        who = {"cohort": [1, 2, 3, 4], "quorum": 3, "corrupt": 0, "threshold": 3, "full_graph": True}
        attempt = NoisedSum.model_validate({"run": "first", "exchange": 1, "release": RELEASE, "previous": "", **who})
        ledger.spend(attempt)
        sum_of = {"purpose": "train", "model": "11", "survivors": "1-2,4", "bounds": "22"}
        ledger.release(AgreedSum(run="first", exchange=1, scales=(1.0,), **sum_of))
        ledger.unmask("first", 1)
        ledger.leave("first", 1)
        for exchange in (1, 2):
            asked(ledger, "[red]nosy", exchange, model="", changed={"fedcore.w-max": "50"})
            ledger.enter("[red]nosy", exchange)
            ledger.refuse("[red]nosy", exchange, "config-not-allowed", "fedcore.w-max")
            ledger.leave("[red]nosy", exchange)
        asked(ledger, "open", 1, aggregation="plain")
        ledger.enter("open", 1)
    with (state / LEDGER_FILE).open("ab") as file:
        file.write(b'{"event": "left", "run": "op')  # the agent runs, and is in the middle of a line
    return kit


def test_the_ledger_as_json(busy: Path) -> None:
    with Ledger(busy / "state"):  # the agent holds it
        found = json.loads(audit_json(audit(busy)))
    one, two, three, four = found["exchanges"]
    assert (one["outcome"], one["others"], one["model"], one["cohort"]) == ("released", 2, "11", 4)
    for refused in (two, three):
        assert (refused["outcome"], refused["check"], refused["subject"]) == (
            "refused",
            "config-not-allowed",
            "fedcore.w-max",
        )
        assert refused["changed"] == {"fedcore.w-max": "50"}
    assert four["outcome"] == "readable"
    spent = Accountant((RELEASE,)).epsilon(1e-5)
    assert found["spending"] == {
        "noised": 1,
        "noiseless": 0,
        "epsilon": spent,
        "noised_epsilon": spent,
        "delta": 1e-5,
        "allowed": 8.0,
        "left": 8.0 - spent,
        "rows": None,
    }
    assert found["promise"] == masks_and_noise(spent, 1e-5)


def test_the_ledger_as_tables(busy: Path) -> None:
    console = Console(width=160, file=StringIO())
    print_audit(audit(busy), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "asked 4 times" in shown
    assert "[red]nosy" in shown, "what the server named is no markup"
    assert "fedcore.w-max=50" in shown
    assert "config-not-allowed" in shown
    assert "spent: epsilon 2.414" in shown


def test_an_exchange_that_was_repeated(kit: Path) -> None:
    state = kit / "state"
    state.mkdir()
    with Ledger(state) as ledger:
        for exchange, attempt in ((1, 1), (2, 2), (3, 1)):
            asked(ledger, "run", exchange, attempt=attempt)
            ledger.enter("run", exchange)
            sum_of = {"purpose": "train", "model": "11", "survivors": "1-4", "bounds": "22"}
            ledger.release(AgreedSum(run="run", exchange=exchange, scales=(2.0**exchange,), **sum_of))
    console = Console(width=160, file=StringIO())
    print_audit(audit(kit), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3 train, 1 again" in shown
    assert [exchange["attempt"] for exchange in json.loads(audit_json(audit(kit)))["exchanges"]] == [1, 2, 1]


def test_a_client_that_was_never_asked(kit: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ledger\.jsonl"):
        audit(kit)
