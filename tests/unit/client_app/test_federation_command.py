"""The commands of an authority and of a client that joins, as their people type them."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from client_app.main import app as client_app
from client_app.operator.federation_command import app
from fedcore.errors import KitError
from fedcore.federation import ClientKit, ServerKit
from fedcore.federation.authority import Authority


def said(*words: str | Path, answer: str = "", of: Any = app) -> Result:
    return CliRunner().invoke(of, [str(word) for word in words], input=answer)


def told(*words: str | Path, answer: str = "", of: Any = app) -> dict[str, Any]:
    done = said(*words, "--json", answer=answer, of=of)
    assert done.exit_code == 0, done.output
    content: dict[str, Any] = json.loads(done.stdout)
    return content


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    told("create", tmp_path / "fed", "--name", "pilot", "--host", "localhost")
    return tmp_path / "fed"


def test_each_part_of_a_new_federation_has_one_line(tmp_path: Path) -> None:
    done = said("create", tmp_path / "fed", "--name", "pilot", "--host", "localhost")
    firsts = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert firsts == ["authority", "fingerprint", "server", "operator", "apps", "clients"]


def enrolled(fed: Path, kit: Path, name: str) -> dict[str, Any]:
    asked = told("enroll", kit, "--name", name, of=client_app)
    approved = told("approve", asked["request"], "--federation", fed, "--fingerprint", asked["fingerprint"])
    authority = told("show", "--federation", fed)["authority_fingerprint"]
    admission = approved["granted"][0]["admission"]
    return told("enroll", kit, "--accept", admission, "--authority-fingerprint", authority, of=client_app)


def test_a_client_joins_replaces_its_key_and_leaves(fed: Path, tmp_path: Path) -> None:
    joined = enrolled(fed, tmp_path / "kit", "north")
    assert (joined["client"], joined["name"], joined["roster"]) == (1, "north", 2)
    asked = told("enroll", tmp_path / "kit", "--rotate", of=client_app)
    approved = told("approve", asked["request"], "--federation", fed, "--fingerprint", asked["fingerprint"])
    assert approved == {"roster": 3, "granted": [{"name": "north", "id": 1, "admission": None}]}
    shown = told("show", "--federation", fed)
    assert shown["members"] == [{"id": 1, "name": "north", "fingerprint": asked["fingerprint"]}]
    assert shown["good_until"].keys() == {"ca", "server"}
    assert told("revoke", "north", "--federation", fed, "--yes") == {"roster": 4, "revoked": ["north"], "members": 0}
    assert told("show", "--federation", fed)["revoked"] == [{"id": 1, "name": "north"}]
    text = said("show", "--federation", fed).output
    assert "roster 4" in text
    assert "revoked" in text


def test_a_server_that_starts_after_the_approvals_knows_whom_they_admitted(fed: Path, tmp_path: Path) -> None:
    for name in ("north", "south"):
        enrolled(fed, tmp_path / name, name)
    assert list(ServerKit.load(fed).roster.names.values()) == ["north", "south"]
    said("revoke", "south", "--federation", fed, "--yes")
    assert [member.name for member in ServerKit.load(fed).roster.members] == ["north"]


def test_the_server_of_another_federation_is_left_alone(fed: Path, tmp_path: Path) -> None:
    told("create", tmp_path / "other", "--name", "pilot", "--host", "localhost")
    shutil.rmtree(fed / "server")
    shutil.copytree(tmp_path / "other" / "server", fed / "server")
    before = (fed / "server" / "rosters.json").read_bytes()
    enrolled(fed, tmp_path / "north", "north")
    assert (fed / "server" / "rosters.json").read_bytes() == before


def test_what_one_is_to_do_next_is_said(fed: Path, tmp_path: Path) -> None:
    asked = said("enroll", tmp_path / "kit", "--name", "north", of=client_app).output
    fingerprint = told("enroll", tmp_path / "other", "--name", "south", of=client_app)["fingerprint"]
    assert "send it to the federation's authority" in asked
    approved = said("approve", tmp_path / "other" / "south.request.json", "--federation", fed, answer="y\n")
    assert fingerprint in approved.output
    assert "fedcore federation publish" in approved.output
    assert f"send back {tmp_path / 'other' / 'south.admission.json'}" in approved.output


def test_nobody_is_admitted_or_revoked_without_a_yes(fed: Path, tmp_path: Path) -> None:
    asked = told("enroll", tmp_path / "kit", "--name", "north", of=client_app)
    for answer in ("n\n", "\n", ""):
        assert said("approve", asked["request"], "--federation", fed, answer=answer).exit_code == 1
    wrong = said("approve", asked["request"], "--federation", fed, "--fingerprint", "00" * 32)
    assert isinstance(wrong.exception, KitError)
    assert wrong.exception.check == "other-fingerprint"
    assert told("show", "--federation", fed)["roster"] == 1
    enrolled(fed, tmp_path / "south", "south")
    assert said("revoke", "south", "--federation", fed, answer="n\n").exit_code == 1
    assert told("show", "--federation", fed)["roster"] == 2


def test_a_new_key_can_be_asked_for_again(fed: Path, tmp_path: Path) -> None:
    enrolled(fed, tmp_path / "kit", "north")
    first, again = (told("enroll", tmp_path / "kit", "--rotate", of=client_app) for _ in range(2))
    assert first == again
    assert ClientKit.load(tmp_path / "kit").roster.version == 2


@pytest.mark.parametrize(
    "words", [[], ["--name", "a", "--rotate"], ["--accept", "x"], ["--authority-fingerprint", "x", "--rotate"]]
)
def test_options_that_contradict_each_other_are_refused(words: list[str], tmp_path: Path) -> None:
    done = said("enroll", tmp_path / "kit", *words, of=client_app)
    assert done.exit_code == 2
    assert not (tmp_path / "kit").exists()


def test_a_certificate_is_renewed_by_one_command(fed: Path) -> None:
    before = (fed / "server" / "server.crt").read_bytes()
    renewed = told("renew", "--federation", fed)
    assert (fed / "server" / "server.crt").read_bytes() != before
    assert renewed["good_until"] == told("show", "--federation", fed)["good_until"]["server"]
    assert "SIGHUP" in said("renew", "--federation", fed).output


def test_ready_kits_are_added_and_one_name_that_is_taken_adds_none(fed: Path) -> None:
    added = told("add", "north", "south", "--federation", fed)
    assert added["roster"] == 2
    for number, name in enumerate(["north", "south"], start=1):
        kit = ClientKit.load(fed / "clients" / name)
        assert (kit.client_id, kit.name, kit.roster.version) == (number, name, 2)
    for names in (["west", "south"], ["west", "west"]):
        failed = said("add", *names, "--federation", fed)
        assert isinstance(failed.exception, KitError)
        assert failed.exception.check == "name-taken"
    assert not (fed / "clients" / "west").exists()
    assert told("show", "--federation", fed)["roster"] == 2
    said("revoke", "south", "--federation", fed, "--yes")
    assert said("add", "south", "--federation", fed).exception.check == "name-taken"


def test_the_end_of_a_certificate_is_shown_ahead(fed: Path) -> None:
    assert told("show", "--federation", fed)["warnings"] == []
    authority = Authority.load(fed)
    authority.renew(fed / "server" / "server.crt", [], now=datetime.now(UTC) - timedelta(days=340))
    assert "warning: the certificate of the server expires in 2" in said("show", "--federation", fed).output


@pytest.mark.parametrize("command", ["", "create", "add", "approve", "revoke", "publish", "show", "renew"])
def test_every_command_shows_an_example(command: str) -> None:
    shown = " ".join(said(*command.split(), "--help").output.split())
    assert f"Example: fedcore federation {command}".strip() in shown
