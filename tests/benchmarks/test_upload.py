"""The upload benchmark: its line carries no faster than it says, and its figures are what their names say."""

import argparse

import pytest

from benchmarks import upload
from benchmarks.upload import FIRST, LINES, OVERLAPPED, SENT, Line, SlowServer, report


async def test_a_line_carries_what_it_is_given_in_its_time(monkeypatch):
    """Two bodies at once share the line: the time that both wait for is what they take together."""
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(upload.asyncio, "sleep", sleep)
    monkeypatch.setattr(upload.time, "monotonic", lambda: 100.0)
    server = SlowServer(Line(name="slow", bytes_a_second=1000.0, round_trip=0.5))
    answers = []

    async def request(*sizes):
        left = [{"body": bytes(size), "more_body": True} for size in sizes] + [{"body": b""}]

        async def receive():
            return left.pop(0)

        async def send(message):
            answers.append(message)

        await server({"type": "http"}, receive, send)

    await request(200, 300)
    await request(500)
    assert slept == pytest.approx([0.2, 0.5, 0.5, 0.5, 1.0, 1.0, 0.5])
    assert [answer.get("status") for answer in answers] == [204, None, 204, None]


def test_figures():
    seconds = {
        (line.name, kind): value for line in LINES for kind, value in ((FIRST, 2.0), (OVERLAPPED, 1.5), (SENT, 1))
    }
    made = report(seconds, 0.5, argparse.Namespace(words=2_500_000, masks=10, threads=2))
    assert [figure.name for figure in made.figures] == [
        "overlapped_over_masked_first_loopback",
        "overlapped_over_masked_first_1gbit",
        "overlapped_over_masked_first_100mbit",
    ]
    assert all(figure.value == 0.75 for figure in made.figures)
    assert made.tables[0].rows[1] == ("1gbit", "2.000", "1.500", "1.000")
    assert made.notes[0].startswith("20 MB, 10 masks on 2 threads: 0.500 s")
