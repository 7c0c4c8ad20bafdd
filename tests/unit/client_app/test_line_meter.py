"""The line meter, by a clock that goes on where a test says so."""

from __future__ import annotations

import contextlib

import pytest

from client_app.http.line_meter import LineMeter
from fedcore.monitoring.line_speed import LineSpeed

PART = 1 << 23


class Clock:
    """Seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_parts_on_the_line_at_the_same_time_count_as_one_upload(clock: Clock) -> None:
    meter = LineMeter(clock)
    with meter.uploading(PART):
        clock.now += 10.0
        with meter.uploading(PART):
            clock.now += 10.0
    assert meter.speed.up == pytest.approx(2 * PART / 20.0)


def test_what_a_client_computes_between_two_parts_does_not_count(clock: Clock) -> None:
    meter = LineMeter(clock)
    for _ in range(2):
        with meter.uploading(PART):
            clock.now += 10.0
        clock.now += 1000.0
    assert meter.speed.up == pytest.approx(PART / 10.0)


def test_an_upload_that_broke_off_tells_nothing(clock: Clock) -> None:
    meter = LineMeter(clock)
    with contextlib.suppress(OSError), meter.uploading(PART):
        clock.now += 60.0
        raise OSError
    assert meter.speed == LineSpeed()


def test_the_beginning_of_tcp_is_no_measure(clock: Clock) -> None:
    meter = LineMeter(clock)
    meter.note_download(2000, 0.3)
    assert meter.speed.down is None
    meter.note_download(2000, 2.0)
    assert meter.speed.down == 1000.0, "a line that is slow for so few bytes is slow"
    meter.note_download(PART, 0.5)
    assert meter.speed.down == 2 * PART


def test_a_small_transfer_over_a_long_line_is_no_measure(clock: Clock) -> None:
    meter = LineMeter(clock)
    meter.note_trip(0.3)
    meter.note_download(30_000, 1.2)
    with meter.uploading(30_000):
        clock.now += 1.2
    assert (meter.speed.down, meter.speed.up) == (None, None)


def test_the_round_trip_is_the_least_of_the_last_few(clock: Clock) -> None:
    meter = LineMeter(clock)
    for seconds in (0.9, 0.3, 0.5):
        meter.note_trip(seconds)
    assert meter.speed.round_trip == 0.3
    for _ in range(8):
        meter.note_trip(0.6)
    assert meter.speed.round_trip == 0.6, "lines change"
