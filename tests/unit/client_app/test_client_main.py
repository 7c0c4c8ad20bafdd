"""What `fedcore client` says about bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tiny import TINY
from typer.testing import CliRunner

from client_app.records.ledger import lock_folder
from fedcore.cli.main import app
from fedcore.flower.app import AppBundle
from fedcore.system.sandbox import namespaces


@pytest.fixture
def app_dir() -> Path:
    """An app that any client could run."""
    return TINY


def fails(kit: Path, app_dir: Path, *more: str) -> tuple[int, str]:
    """Run the command in this process; returns the exit status and the one line on standard error."""
    result = CliRunner().invoke(app, ["client", "--kit", str(kit), "--app", str(app_dir), *more])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr.strip()


class TestBadInput:
    def test_a_kit_that_is_not_there(self, app_dir: Path, tmp_path: Path) -> None:
        status, message = fails(tmp_path / "nowhere", app_dir)
        assert status == 2
        assert "nowhere" in message
        assert len(message.splitlines()) == 1

    def test_an_identity_that_others_can_read(self, kit: Path, app_dir: Path) -> None:
        (kit / "identity.key").chmod(0o644)
        status, message = fails(kit, app_dir)
        assert status == 2
        assert "identity.key" in message

    def test_an_unknown_key_in_the_policy(self, kit: Path, app_dir: Path) -> None:
        with (kit / "policy.toml").open("a") as file:
            file.write("min-cohrt = 1\n")
        status, message = fails(kit, app_dir)
        assert status == 2
        assert "did you mean 'min-cohort'" in message

    def test_another_app_than_the_agreed_one(self, kit: Path, app_dir: Path) -> None:
        text = (kit / "policy.toml").read_text().replace('app-sha256 = ""', f'app-sha256 = "{"0" * 64}"')
        (kit / "policy.toml").write_text(text)
        status, message = fails(kit, app_dir)
        assert status == 2
        assert "agrees to the app 000000000000" in message
        assert AppBundle.from_folder(app_dir).sha256 in message

    def test_a_folder_that_is_no_app(self, kit: Path, tmp_path: Path) -> None:
        status, message = fails(kit, tmp_path)
        assert status == 2
        assert "not a Flower app" in message

    @pytest.mark.parametrize("text", ["site='north", "nonsense", "site=[1]"])
    def test_a_node_config_that_is_none(self, kit: Path, app_dir: Path, text: str) -> None:
        assert fails(kit, app_dir, "--node-config", text)[0] == 2

    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (["--nproc-per-node", "0"], "--nproc-per-node must be at least 1"),
            (["--nnodes", "2"], "--nnodes needs --rdzv-endpoint HOST:PORT"),
            (["--engine-set", "presicion=bf16"], "did you mean 'precision'"),
            (["--engine", "dpp"], "--engine-set must be one of single, ddp"),
            (["--engine", "single", "--nproc-per-node", "2"], "engine single is for one rank, not 2"),
            (["--engine-set", "hook=[1]"], "--engine-set: hook must be a number, a string, true or false"),
        ],
    )
    def test_ranks_that_cannot_be(self, kit: Path, app_dir: Path, options: list[str], text: str) -> None:
        status, message = fails(kit, app_dir, *options)
        assert status == 2
        assert text in message

    def test_only_machine_0_needs_a_kit(self, app_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(namespaces, "kind_of", lambda need: "")  # it asks a process
        result = CliRunner().invoke(app, ["client", "--app", str(app_dir)])
        assert result.exit_code == 2
        assert "'--kit'" in result.stderr
        nodes = ["--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "nowhere.invalid:1"]
        result = CliRunner().invoke(app, ["client", "--app", str(app_dir), *nodes])
        assert result.exit_code == 2
        assert "nowhere.invalid cannot be reached" in result.stderr

    def test_a_data_folder_that_is_not_there(self, kit: Path, app_dir: Path, tmp_path: Path) -> None:
        status, message = fails(kit, app_dir, "--data-dir", str(tmp_path / "no-data"))
        assert status == 2
        assert "no-data" in message

    def test_two_agents_with_one_kit(self, kit: Path, app_dir: Path, tmp_path: Path) -> None:
        with lock_folder(kit):
            status, message = fails(kit, app_dir, "--state-dir", str(tmp_path / "other"))
        assert status == 2
        assert "another agent uses" in message

    def test_a_state_folder_that_cannot_be_made(self, kit: Path, app_dir: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        status, message = fails(kit, app_dir, "--state-dir", str(tmp_path / "file" / "state"))
        assert status == 4
        assert "--state-dir" in message

    def test_help_shows_an_example(self) -> None:
        result = CliRunner().invoke(app, ["client", "--help"])
        assert result.exit_code == 0
        assert "Example: fedcore client --kit" in result.stdout.replace("\n", " ")
