"""What holds for every command: a result for programs, and completion that says what the code says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import typer

from client_app.operator import completion as run_completion
from fedcore.cli import completion
from fedcore.cli.main import app
from fedcore.comparison.modes import MODES
from fedcore.comparison.plan import ALL_MODES
from fedcore.data.partition import partition
from fedcore.errors import ConfigurationError
from fedcore.flower.strategies.registry import STRATEGIES
from fedcore.monitoring.trackers import TRACKERS
from fedcore.wire.operator import RunStatus

WITHOUT_JSON = {
    "server": "serves until it is stopped and has no result; its log is JSON with --log-json",
    "logout": "ends a session and has no result",
}


def commands(command: click.Command, path: str = "", context: click.Context | None = None) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its words."""
    context = click.Context(command, parent=context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}".strip(), context)
        if not command.invoke_without_command:
            return
    if path:
        yield path, command


def test_every_command_has_its_result_for_programs() -> None:
    without = {
        path
        for path, command in commands(typer.main.get_command(app))
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == set(WITHOUT_JSON)


def test_every_argument_has_its_help() -> None:
    without = [
        (path, argument.name)
        for path, command in commands(typer.main.get_command(app))
        for argument in command.params
        if argument.param_type_name == "argument" and not argument.help
    ]
    assert without == []


def test_the_words_of_completion_are_those_of_the_code() -> None:
    assert {ALL_MODES: completion.MODES[ALL_MODES]} | {name: mode.title for name, mode in MODES.items()} == dict(
        completion.MODES
    )
    assert set(completion.STATUSES) == set(RunStatus)
    assert set(completion.STRATEGIES) == set(STRATEGIES)
    assert set(completion.TRACKERS) == set(TRACKERS)
    for word in completion.PARTITIONS:
        with pytest.raises((ConfigurationError, AttributeError)) as caught:
            partition(word, SimpleNamespace(), clients=0, seed=0)  # type: ignore[arg-type]
        assert "unknown" not in str(caught.value)
    assert ("fsdp", "") in completion.engines("f")


class TestWords:
    def test_the_last_of_several(self) -> None:
        assert completion.modes("federated,cen") == [("federated,centralized", "all data in one place")]
        offered = [word for word, _ in completion.settings("clip-norm=1.0 clipping=w")]
        assert offered == ["clip-norm=1.0 clipping=warn"]

    def test_run_config_of_the_app_that_is_named(self, tmp_path: Path) -> None:
        text = "[tool.flwr.app.config]\nlr = 0.1\n[tool.flwr.app.config.model]\nwidth = 3\n"
        (tmp_path / "pyproject.toml").write_text(text)
        context = SimpleNamespace(params={"app": tmp_path}, args=[])
        offered = [word for word, _ in completion.run_config(context, "")]  # type: ignore[arg-type]
        assert offered == ["lr=", "model.width="]

    @pytest.mark.parametrize("content", [None, "not = [toml", "tool = 3"])
    def test_an_app_that_cannot_be_read_offers_nothing(self, tmp_path: Path, content: str | None) -> None:
        if content is not None:
            (tmp_path / "pyproject.toml").write_text(content)
        context = SimpleNamespace(params={"app": tmp_path}, args=[])
        assert completion.run_config(context, "") == []  # type: ignore[arg-type]


class TestRuns:
    def test_what_the_server_lists_is_kept_for_the_next_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        context = SimpleNamespace(params={"operator": tmp_path})
        monkeypatch.setattr(run_completion, "list_runs", lambda folder: [("ab12", "running, digits")])
        offered = run_completion.runs(context, "")  # type: ignore[arg-type]
        assert offered == [("last", "the newest run"), ("ab12", "running, digits")]
        monkeypatch.setattr(run_completion, "list_runs", lambda folder: pytest.fail("it was listed a moment ago"))
        assert run_completion.runs(context, "ab") == [("ab12", "running, digits")]  # type: ignore[arg-type]
        assert (tmp_path / run_completion.CACHE_FILE).stat().st_mode & 0o077 == 0

    def test_a_kit_that_is_none(self, tmp_path: Path) -> None:
        assert run_completion.runs(SimpleNamespace(params={"operator": tmp_path}), "") == []  # type: ignore[arg-type]
