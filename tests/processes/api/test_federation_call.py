"""`fedcore.Federation`: real processes from a few lines of Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.raising import raises
from support.tiny import TINY

import fedcore
from fedcore.api.card import Sources, make_card
from fedcore.cli.card import from_server
from fedcore.errors import AppError, ConfigurationError, KitError, RunFailed, UsageError
from fedcore.state import ModelState, read_facts, write_model
from fedcore.wire.events import RunEvent

QUICK = {"join-seconds": 240, "train-seconds": 240, "step-seconds": 240}


def test_a_local_federation_runs_and_ends_with_its_block(tmp_path: Path):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    federation = fedcore.Federation.local(TINY, clients=2)
    with pytest.raises(UsageError, match=r"Federation\.local"):
        federation.clients()
    with federation:
        run = federation.run(rounds=2, settings=QUICK, progress=False)
        assert list(run.history.index) == [1, 2]
        assert run.record.aggregation == "secure"
        assert federation.clients().online.tolist() == [True, True]
        assert federation.runs().status.tolist() == ["finished"]
        connected = fedcore.Federation.connect(federation.kit)
        assert connected.result(run.id[:6]).metrics == run.metrics
        model = connected.model()
        assert run.model is not None
        assert (model["weight"] == run.model["weight"]).all()
        check_card(run.save(tmp_path / "first") / "model.safetensors", run.id, federation.kit)
        with raises(ConfigurationError, check="other-app"):
            federation.run(TINY.parent / "steady")
        with pytest.raises(RunFailed, match=r"client-1.*app-failed"):
            federation.run(
                run_config={"fault": "raise", "faulty-partition": 0},
                settings={**QUICK, "max-attempts": 1},
                progress=False,
            )
        interrupt(federation)
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    assert (run.save(tmp_path / "kept") / "model.safetensors").is_file()


def check_card(model: Path, run: str, kit: Path) -> None:
    """What the card says of sites and settings comes from the run's server."""
    card = make_card(from_server(Sources.read(model, None, None, names=False), run[:6], kit)).json()
    assert card["sections"]["Training"]["sites"] == "2"
    assert card["sections"]["Run config and settings"]["setting join-seconds"] == "240.0"
    facts = read_facts(model)
    assert facts is not None
    other = model.with_name("other.safetensors")
    write_model(ModelState.open(model), other, replace(facts, run="another"))
    with raises(ConfigurationError, check="other-run", match="another"):
        from_server(Sources.read(other, None, None, names=False), run, kit)


def interrupt(federation: fedcore.Federation) -> None:
    """Ctrl-C cancels the run."""

    def stop(event: RunEvent) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federation.run(rounds=50, settings=QUICK, progress=stop)
    assert federation.runs().status.iloc[0] == "cancelled"


def test_what_cannot_work_is_refused_before_anything_starts(tmp_path: Path):
    with raises(AppError, check="app-in-memory"):
        fedcore.Federation.local(lambda: 3)
    with raises(ConfigurationError, check="too-few-clients"):
        fedcore.Federation.local(TINY, clients=1)
    with pytest.raises(KitError):
        fedcore.Federation.connect(tmp_path)
