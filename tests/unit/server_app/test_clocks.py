"""What the server concludes from the times that clients sign."""

from __future__ import annotations

import pytest

from server_app.operation.clocks import LATE_SECONDS, Clocks


class Watched(Clocks):
    """`now` is monotonic."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(dict, lambda: self.now)

    def note_at(self, now: float, seconds: float) -> float | None:
        """Client 1 signs a request; by how much its clock is known to be off then."""
        self.now = now
        self.note_client(1, seconds)
        return self.clients.get(1)


def test_requests_that_lay_in_a_frozen_server_say_nothing_of_a_clock() -> None:
    clocks = Watched()
    clocks.note_at(0.0, -1.0)
    assert [clocks.note_at(40.0, seconds) for seconds in (-40.0, -20.0, -8.0)] == [-1.0] * 3
    assert clocks.note_at(41.0, 0.0) == 0.0
    assert clocks.note_at(41.0 + LATE_SECONDS, -15.0) == 0.0, "a proxy tried another server first"


def test_a_clock_is_slow_if_all_that_it_signs_is_late() -> None:
    clocks = Watched()
    seen = [clocks.note_at(now, -40.0) for now in (0.0, LATE_SECONDS - 1.0, LATE_SECONDS, LATE_SECONDS + 1.0)]
    assert seen == [None, None, -40.0, -40.0]
    assert clocks.note_at(LATE_SECONDS + 2.0, 0.0) == 0.0


@pytest.mark.parametrize("seconds", [6.0, 7200.0])
def test_a_clock_is_fast_at_once(seconds: float) -> None:
    """Nothing that waited comes from the future."""
    assert Watched().note_at(0.0, seconds) == seconds
