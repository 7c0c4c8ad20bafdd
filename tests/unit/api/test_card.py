"""A model card says what the file and the record say, and that the rest is unknown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from support.events import event
from support.raising import raises
from typer.testing import CliRunner

from fedcore.api.card import Sources, make_card, read_record
from fedcore.cli.card import write_card_next_to
from fedcore.cli.main import app
from fedcore.errors import ConfigurationError
from fedcore.monitoring.run_record import RunRecord
from fedcore.run.settings import JobSettings
from fedcore.state import ModelFacts, ModelState, read_facts, write_model
from fedcore.wire.events import FiguresFound, stamp

EVENTS = (
    event("started"),
    event("exchange-done", survivors=["mercy", "st-anna"], examples=120, bytes_up={"mercy": 10}),
    event("exchange-done", message_type="evaluate", metrics={"eval_acc": 0.75, "eval_loss": 0.5}),
    event("exchange-done", message_type="evaluate", server_round=2, metrics={"eval_acc": 0.5, "eval_loss": 0.25}),
    event("dropped"),
    event("ended"),
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    facts = ModelFacts(
        app="digits", app_sha256="ab" * 32, rounds=2, run="1f2e", federation="hospitals", epsilon=1.5, delta=1e-5,
        time="2026-01-02T03:04:05+00:00", run_config={"lr": 0.5},
    )  # fmt: skip
    write_model(ModelState.from_arrays({"weight": np.zeros(6, np.float32)}), path, facts)
    return path


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    now = datetime.now(UTC)
    lines = (stamp(number, number, now, one).model_dump_json() for number, one in enumerate(EVENTS, 1))
    path.write_text('{"run": "1f2e"}\n' + "\n".join(lines))
    return path


def test_what_is_known_is_said(model: Path, record: Path) -> None:
    text = make_card(Sources.read(model, record, None, names=False)).markdown()
    assert text.startswith('---\nlibrary_name: "fedcore"\ntags: ["federated-learning", "secure-aggregation", "diff')
    for said in (
        "| sites | 2 |", "no update of a single site", "epsilon 1.500, delta 1e-05", "run 1f2e", "| lr | 0.5 |",
        "| largest eval_acc | round 1: eval_acc 0.7500", "| smallest eval_loss | round 2:",
        "| last evaluation | round 2:",
        "120 in the largest round", "| values | 6 |",
    ):  # fmt: skip
        assert said in text, said
    assert "mercy" not in text
    assert "mercy, st-anna" in make_card(Sources.read(model, record, None, names=True)).markdown()


def test_what_is_not_known_is_called_unknown(model: Path) -> None:
    sections = make_card(Sources.read(model, None, None, names=False)).json()["sections"]
    assert sections["Training"]["sites"] == sections["Training"]["aggregation"] == "unknown"
    assert sections["Results"] == {"metrics": "unknown"}
    ModelState.open(model).save(model.with_name("bare"))
    sections = make_card(Sources.read(model.with_name("bare"), None, None, names=False)).json()["sections"]
    assert sections["Privacy"] == {"differential privacy": "unknown"}
    assert sections["Run config and settings"] == {"run config": "unknown", "settings": "unknown"}


def test_the_command_writes_both_forms(model: Path, record: Path, tmp_path: Path) -> None:
    for name, first in (("card.md", "---\n"), ("card.html", "<!doctype html>")):
        words = ["card", str(model), "--record", str(record), "--out", str(tmp_path / name)]
        assert CliRunner().invoke(app, words).exit_code == 0
        assert (tmp_path / name).read_text().startswith(first)
        assert CliRunner().invoke(app, words).exit_code == 2
    assert "http" not in (tmp_path / "card.html").read_text()
    done = CliRunner().invoke(app, ["card", str(model), "--json"])
    assert json.loads(done.stdout)["sections"]["Training"]["rounds"] == "2"


def test_a_run_leaves_one_beside_its_model(model: Path) -> None:
    kept = RunRecord()
    for seconds, one in enumerate(EVENTS):
        kept.add(one, seconds)
    settings = {"max-dropout": JobSettings().max_dropout, "clip-norm": 2.5}
    assert write_card_next_to(model, kept, settings).name == "model.card.md"
    text = model.with_name("model.card.md").read_text()
    assert "| sites | 2 |" in text
    assert "| setting clip-norm | 2.5 |" in text
    assert "max-dropout" not in text


def test_of_a_plain_run_there_is_no_transcript(model: Path) -> None:
    kept = RunRecord(aggregation="plain")
    text = make_card(Sources(model=model, facts=read_facts(model), record=kept, settings={})).markdown()
    assert "not in the transcript" in text
    assert "signed by the sites that took part" not in text
    assert "all as by default" in text


def test_the_sources_are_named_in_whole(model: Path, record: Path) -> None:
    for words in (
        ["--run", "last"],
        ["--operator", "kit"],
        ["--run", "last", "--operator", "k", "--record", str(record)],
    ):
        assert CliRunner().invoke(app, ["card", str(model), *words]).exit_code == 2


def test_fairness_comes_from_a_comparison(model: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"fairness": [{"name": "Test examples", "status": "holds", "detail": "by site"}]}))
    assert "| Test examples | holds: by site |" in make_card(Sources.read(model, None, report, names=False)).markdown()


def test_files_of_something_else_are_refused(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("{}\n")
    with raises(ConfigurationError, check="no-exchange"):
        read_record(other)
    with pytest.raises(ConfigurationError, match=r"--compare.*report\.json"):
        Sources.read(model, None, other, names=False)
    with raises(ConfigurationError, check="no-model"):
        Sources.read(other, None, None, names=False)


def test_results_that_lie_next_to_a_model_are_read(model: Path) -> None:
    rounds = {str(number): {"eval_acc": 0.5, "auc": auc, "majority": 0.85} for number, auc in ((1, 0.7), (2, 0.6))}
    model.with_name("model.results.json").write_text(json.dumps({"train": {}, "evaluate": rounds, "server": {}}))
    section = make_card(Sources.read(model, None, None, names=False)).json()["sections"]["Results"]
    assert section["last evaluation"] == "round 2: eval_acc 0.5000  auc 0.6000  majority 0.8500"
    assert section["largest auc"].startswith("round 1:")
    assert "0.8500" in section["text"][1]
    model.with_name("model.results.json").write_text("[]")
    with raises(ConfigurationError, check="no-results"):
        Sources.read(model, None, None, names=False)


def test_figures_that_the_strategy_made_are_among_the_results(model: Path) -> None:
    record = RunRecord()
    for one in (
        event("started"),
        event("exchange-done", message_type="evaluate", metrics={"eval_acc": 0.75}),
        FiguresFound(server_round=1, source="evaluate", metrics={"auc": 0.625}),
    ):
        record.add(one, 1.0)
    sources = Sources(model=model, facts=read_facts(model), record=record)
    assert make_card(sources).json()["sections"]["Results"]["largest auc"] == "round 1: eval_acc 0.7500  auc 0.6250"
