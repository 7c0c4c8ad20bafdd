"""What an app or a peer wrote is printed, and obeyed by no terminal."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from fedcore.monitoring.event_lines import event_line
from fedcore.monitoring.progress import ProgressView
from fedcore.system.terminal import escape, visible, visible_json
from fedcore.wire.events import AppPrinted, RunEnded
from fedcore.wire.operator import RunStatus

ATTACKS = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\r", "\x00", "\x7f", "a\u202eb", "\u2028", "\ud800"]


@pytest.mark.parametrize("text", ATTACKS)
def test_what_steers_a_terminal_is_written_as_an_escape(text: str) -> None:
    shown = visible(text)
    assert shown.isascii()
    assert shown.isprintable()


@pytest.mark.parametrize("text", ["plain", "tab\there\nand there", "Zürich 東京 10\u00a0000", "emoji 🙂", "a\\x1b"])
def test_all_else_stays(text: str) -> None:
    assert visible(text) == text


@pytest.mark.parametrize("text", ATTACKS)
def test_json_says_the_same_to_a_program(text: str) -> None:
    document = visible_json(json.dumps({"line": text}, ensure_ascii=False))
    assert document.isascii()
    assert document.isprintable()
    assert json.loads(document) == {"line": text}


def test_nothing_of_it_is_markup() -> None:
    assert escape("[red]\x1b[31m") == "\\[red]\\x1b[31m"


@pytest.mark.parametrize(
    "event", [AppPrinted(line="\x1b[2Jgone\x9b0m"), RunEnded(status=RunStatus.FAILED, reason="\x1b[2J of a peer")]
)
def test_lines_of_a_run(event: AppPrinted | RunEnded) -> None:
    out = io.StringIO()
    with ProgressView(Console(file=out, width=200), "federated") as view:
        view.show(event)
    for text in (out.getvalue(), event_line(event)):
        assert "\\x1b[2J" in text
        assert text.replace("\n", "").isprintable()
