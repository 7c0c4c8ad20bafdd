"""The spent privacy budget as its owner sees it, from the records of real exchanges."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from support.privacy import CODEC, plan
from typer.testing import CliRunner

from client_app.exchange.client import Client
from client_app.exchange.exchange import take_part
from client_app.records.spending import spending_of
from fedcore.cli.main import app
from fedcore.codec import private_encoding
from fedcore.codec.privacy import Accountant
from fedcore.monitoring.promise import MASKS_ONLY
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.wire.tasks import Task

Script = Any  # support.scripted.Scripted
UNBOUNDED = "no noise was added"
LEFT = {"without": ("without",), "with": ("with",), "both": ("without", "with"), "readable": ("readable",)}


@pytest.fixture
def settings() -> dict[str, Any]:
    return JobSettings(clip_norm=1.0, dp_noise_multiplier=2.0).for_clients()


@pytest.fixture
def spend(
    script: Script,
    client: Client,
    allow: Callable[..., Client],
    make_task: Callable[..., Task],
    settings: dict[str, Any],
) -> Callable[[str], Any]:
    """Take part in a run of this kind; gives the epsilon of its one sum."""
    allowing = allow(client, allow_plain=True)
    layout = ModelState.open(script.model).layout
    encoding = private_encoding(CODEC, layout, 4, plan=plan(dp_noise_multiplier=2.0), noise_clients=2)
    kinds: dict[str, dict[str, Any]] = {
        "without": {},
        "with": {"encoding": encoding, "settings": settings},
        "readable": {"aggregation": "plain", "encoding": None},
    }

    async def spent(kind: str) -> float:
        script.go_on(make_task(run=kind, **kinds[kind]))
        async with script.serving():
            await take_part(script.task, allowing)
        return Accountant([encoding.release]).epsilon(1e-5)

    return spent


def said(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


@pytest.mark.parametrize("left", LEFT)
async def test_all_places_say_alike_what_was_spent(
    kit: Path, spend: Callable[[str], Any], tmp_path: Path, left: str
) -> None:
    """The document, `client status`, `client audit` and their JSON."""
    epsilons = [await spend(kind) for kind in LEFT[left]]
    here = ("--kit", kit, "--state-dir", tmp_path / "state")
    html, markdown = tmp_path / "it.html", tmp_path / "it.md"
    for out in (html, markdown):
        said("client", "status", *here, "--export", out)
    texts = [html.read_text(), markdown.read_text(), said("client", "status", *here), said("client", "audit", *here)]
    found = [json.loads(said("client", what, *here, "--json")) for what in ("status", "audit")]
    for text in texts:
        assert "epsilon 0" not in text
        assert (UNBOUNDED in text) == (left != "with")
        assert (MASKS_ONLY in unescape(text)) == (left != "with")
        assert (f"epsilon {epsilons[-1]:.4g}" in text) == (left in ("with", "both"))
    for document in found:
        assert document["spending"]["epsilon"] == (epsilons[-1] if left == "with" else None)
    runs = {run["run"]: run["spending"]["epsilon"] for run in found[0]["runs"]}
    assert runs == {kind: epsilons[-1] if kind == "with" else None for kind in LEFT[left]}


async def test_a_client_of_which_nothing_was_released(kit: Path, tmp_path: Path) -> None:
    here = ("--kit", kit, "--state-dir", tmp_path)
    text = said("client", "status", *here)
    assert "nothing was released" in text
    assert "epsilon 0" not in text
    assert json.loads(said("client", "status", *here, "--json"))["spending"]["epsilon"] == 0


async def test_an_attempt_that_was_refused_released_nothing(
    kit: Path, script: Script, client: Client, make_task: Callable[..., Task], tmp_path: Path
) -> None:
    client.ledger.ask("run", 1, attempt=1, message_type="train", aggregation="secure", app_sha256="", model="",
                      cohort=4, changed={})  # fmt: skip
    client.ledger.refuse("run", 1, "differencing")
    assert "nothing was released" in said("client", "audit", "--kit", kit, "--state-dir", tmp_path / "state")


@pytest.mark.parametrize("left", ["without", "with", "both"])
async def test_the_transcript_says_it_too(kit: Path, spend: Callable[[str], Any], tmp_path: Path, left: str) -> None:
    epsilons = [await spend(kind) for kind in LEFT[left]]
    copy = ("transcript", "show", tmp_path / "state", "--authority", kit / "authority.pub")
    assert (UNBOUNDED in said(*copy)) == (left != "with")
    assert json.loads(said(*copy, "--json"))["epsilon"] == (epsilons[-1] if left == "with" else None)


def test_noise_for_rows_bounds_rows_alone() -> None:
    """Noise for the client counts for its rows as well, and not the other way round."""
    release = private_encoding(CODEC, None, 4, plan=plan(dp_noise_multiplier=9.0), noise_clients=2).release
    one = Accountant([release]).epsilon(1e-5)
    both = spending_of([release], 0, delta=1e-5, rows=[release, release], allowed_rows=10 * one)
    assert both.rows is not None
    assert (both.epsilon, both.noised_epsilon, both.rows.sums) == (None, pytest.approx(one), 2)
    assert both.rows.epsilon == pytest.approx(Accountant([release] * 3).epsilon(1e-5))
    assert f"{10 * one - both.rows.epsilon:.4g}" in str(both.rows)
    assert spending_of([release], 0, delta=1e-5).rows is None
