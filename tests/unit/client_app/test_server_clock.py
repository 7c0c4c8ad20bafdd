"""A client says once that its machine's clock is not the server's."""

from __future__ import annotations

import itertools
from email.utils import formatdate

import pytest

from client_app.http.server_clock import ServerClock

NOW = 1_800_000_000.0


class Clock:
    """A client's idea of the server's clock, and the lines that it says; `now` is monotonic."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self._clock = ServerClock(self.lines.append, wall=lambda: NOW, clock=lambda: self.now)

    def note(self, seconds: float) -> int:
        """An answer comes from a server whose clock is so far behind; how many lines there are now."""
        self._clock.note({"date": formatdate(NOW - seconds, usegmt=True)}, 0.1)
        return len(self.lines)


@pytest.mark.parametrize("seconds", [-7200, 7200])
def test_a_clock_that_is_off_is_named_once_until_it_is_right(seconds: int) -> None:
    clock = Clock()
    for offset, said in ((0, 0), (seconds, 0), (seconds, 1), (seconds, 1), (0, 1), (seconds, 1), (seconds, 2)):
        clock.now += 6.0
        assert clock.note(offset) == said
    assert str(abs(seconds)) in clock.lines[0]


def test_the_first_dates_of_a_server_that_was_frozen_say_nothing() -> None:
    """They are from before, until its own timer has run."""
    clock = Clock()
    assert clock.note(0) == 0
    for clock.now in (40.0, 40.2, 41.0):
        assert clock.note(40) == 0
    assert clock.note(0) == 0
    clock.now = 90.0
    assert clock.note(40) == 0, "frozen once more"


@pytest.mark.parametrize("headers", [{}, {"date": ""}, {"date": "yesterday"}, {"date": formatdate(NOW - 5)}])
def test_no_date_and_a_few_seconds_are_no_news(headers: dict[str, str]) -> None:
    lines: list[str] = []
    clock = ServerClock(lines.append, wall=lambda: NOW, clock=itertools.count(step=60).__next__)
    for _ in range(2):
        clock.note(headers, 0.1)
    assert lines == []


def test_an_answer_that_the_server_waited_with_says_nothing() -> None:
    """Its date may be that of the request, half a minute ago."""
    lines: list[str] = []
    clock = ServerClock(lines.append, wall=lambda: NOW, clock=itertools.count(step=60).__next__)
    for _ in range(2):
        clock.note({"date": formatdate(NOW - 26, usegmt=True)}, 26.0)
    assert lines == []
