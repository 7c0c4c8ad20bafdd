"""A client says once that its machine's clock is not the server's."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from client_app.http.server_clock import ServerClock

NOW = 1_800_000_000.0


@pytest.mark.parametrize("seconds", [-7200, 7200])
def test_a_clock_that_is_off_is_named_once_until_it_is_right(seconds: int) -> None:
    lines: list[str] = []
    clock = ServerClock(lines.append, wall=lambda: NOW)
    right, off = {"date": formatdate(NOW, usegmt=True)}, {"date": formatdate(NOW - seconds, usegmt=True)}
    for headers, said in ((right, 0), (off, 1), (off, 1), (right, 1), (off, 2)):
        clock.note(headers, 0.1)
        assert len(lines) == said
    assert str(abs(seconds)) in lines[0]


@pytest.mark.parametrize("headers", [{}, {"date": ""}, {"date": "yesterday"}, {"date": formatdate(NOW - 5)}])
def test_no_date_and_a_few_seconds_are_no_news(headers: dict[str, str]) -> None:
    lines: list[str] = []
    ServerClock(lines.append, wall=lambda: NOW).note(headers, 0.1)
    assert lines == []


def test_an_answer_that_the_server_waited_with_says_nothing() -> None:
    """Its date may be that of the request, half a minute ago."""
    lines: list[str] = []
    ServerClock(lines.append, wall=lambda: NOW).note({"date": formatdate(NOW - 26, usegmt=True)}, 26.0)
    assert lines == []
