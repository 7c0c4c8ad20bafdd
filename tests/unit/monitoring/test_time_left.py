"""The time that is left: from rounds that are done, and from nothing else."""

from __future__ import annotations

import io
from typing import Any

import pytest
from pydantic import TypeAdapter
from rich.console import Console
from rich.text import Text

from fedcore.monitoring.eta import Eta, in_words
from fedcore.monitoring.progress import ProgressView
from fedcore.monitoring.site_table import SiteTable
from fedcore.wire.events import RunEvent
from fedcore.wire.operator import ClientRunState, RunClientOut


def event(kind: str, **data: Any) -> RunEvent:
    return TypeAdapter(RunEvent).validate_python({"kind": kind, **data})


def started(number: int, cohort: list[str] | None = None) -> RunEvent:
    who = {"cohort": cohort or ["a", "b"], "quorum": 2, "field_bits": 16, "aggregation": "secure", "model": None}
    return event("exchange", exchange=number, server_round=number, message_type="train", attempt=1, **who)


def done(number: int, **bytes_moved: Any) -> RunEvent:
    what = {"message_type": "train", "aggregation": "secure", "survivors": ["a", "b"], "examples": 2, "metrics": {}}
    return event("exchange-done", exchange=number, server_round=number, seconds=1.0, **what, **bytes_moved)


class TestTimeLeft:
    def test_nothing_before_two_rounds_are_done(self) -> None:
        left = Eta()
        left.rounds = 10
        for number, seconds in ((0, 0.0), (1, 5.0), (2, 25.0)):
            left.begins(number, seconds)
            assert left.left(seconds) is None
        left.begins(3, 35.0)
        assert left.left(35.0) == pytest.approx(7 * 15 + 15)

    def test_what_has_passed_of_the_round_counts_and_never_below_the_rest(self) -> None:
        left = Eta()
        left.rounds = 4
        for number in (1, 2, 3):
            left.begins(number, 10.0 * number)
        assert left.left(33.0) == pytest.approx(10 + 7)
        assert left.left(500.0) == pytest.approx(10), "a round that takes longer than usual takes nothing off the next"

    def test_one_slow_round_does_not_decide(self) -> None:
        left = Eta()
        left.rounds = 6
        for number, seconds in enumerate((0.0, 600.0, 610.0, 620.0, 630.0), start=1):
            left.begins(number, seconds)
        assert left.left(630.0) == pytest.approx(20)

    def test_several_exchanges_of_a_round_and_a_clock_that_went_back(self) -> None:
        left = Eta()
        left.rounds = 5
        for number, seconds in ((1, 10.0), (1, 14.0), (2, 20.0), (3, 3.0), (4, 13.0)):
            left.begins(number, seconds)
        assert left.left(13.0) == pytest.approx(20)

    def test_without_a_plan(self) -> None:
        left = Eta()
        for number in (1, 2, 3, 4):
            left.begins(number, 10.0 * number)
        assert left.left(40.0) is None


def test_a_question_has_queries_and_no_rounds() -> None:
    """The rounds that the app plans for its training say nothing of it."""
    out = io.StringIO()
    with ProgressView(Console(file=out, width=200), "federated", only_queries=True) as view:
        view.show(event("started", app="a", aggregation="secure", rounds=20), 0.0)
        for number in (1, 2, 3):
            view.show(done(number).model_copy(update={"message_type": "query.regression"}), 30.0 * number)
    lines = out.getvalue().splitlines()
    assert [line.split()[1:3] for line in lines] == [["query", "1"], ["query", "2"], ["query", "3"]]
    assert not any("20" in line or "left" in line for line in lines)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3, "a few seconds"),
        (42, "about 40 s"),
        (58, "about 1 min"),
        (170, "about 3 min"),
        (3600 * 2 + 540, "about 2 h 10 min"),
        (3600 * 3, "about 3 h"),
        (3600 * 60, "about 2.5 days"),
    ],
)
def test_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


def drawn(table: SiteTable, *, rows: int = 16, width: int = 100) -> str:
    out = io.StringIO()
    found = table.render(rows=rows, width=width)
    if found is not None:
        Console(file=out, width=width).print(found)
    return out.getvalue()


class TestSites:
    def test_states_and_bytes_follow_the_events(self) -> None:
        table = SiteTable()
        assert drawn(table) == ""
        table.follow(event("clients", online=["a"], expected=2, absent=["[red]b"]))
        assert "[red]b" in drawn(table)
        table.follow(started(1, ["a", "[red]b"]))
        table.follow(event("dropped", exchange=1, client="[red]b", stage="input", reason="silent"))
        shown = drawn(table)
        assert "asked" in shown
        assert "input: silent" in shown
        table.follow(done(1, bytes_up={"a": 2_500_000}, bytes_down={"a": 1_000}))
        table.follow(done(2, bytes_up={"a": 2_500_000}))
        assert "5.0 MB" in drawn(table)
        assert "1.0 kB" in drawn(table)

    def test_what_the_server_says_is_more(self) -> None:
        table = SiteTable()
        table.follow(started(1))
        table.hear([RunClientOut(id=1, name="a", state=ClientRunState.UPLOADING, why="3 of 8 parts are here")])
        assert "3 of 8 parts are here" in drawn(table)

    def test_who_was_blamed_stays_so(self) -> None:
        table = SiteTable()
        table.follow(event("blamed", exchange=1, client="a", stage="share", reason="bad"))
        table.follow(started(2))
        table.hear([RunClientOut(id=1, name="a", state=ClientRunState.WAITING)])
        assert table.sites["a"].state == "blamed"

    def test_of_many_those_that_need_a_look_come_first(self) -> None:
        table = SiteTable()
        names = [f"client-{number}" for number in range(1, 101)]
        table.follow(started(1, names))
        table.follow(event("dropped", exchange=1, client="client-77", stage="input", reason="silent"))
        shown = drawn(table, rows=5).splitlines()
        assert len(shown) == 1 + 5
        assert any(line.startswith("client-77") for line in shown)
        assert "96 more" in shown[-1]
        assert "96 asked" in shown[-1]

    @pytest.mark.parametrize("width", [20, 40, 63, 100])
    def test_no_line_is_wider_than_the_terminal(self, width: int) -> None:
        table = SiteTable()
        table.follow(started(1, ["a-site-with-a-name-that-is-rather-long", "b"]))
        table.follow(event("dropped", exchange=1, client="b", stage="input", reason="it " * 40))
        shown = drawn(table, width=width).splitlines()
        assert len(shown) == 3
        assert max(map(len, shown)) <= width


def of_many(number: int, cohort: int) -> RunEvent:
    names = [f"client-{i}" for i in range(1, cohort + 1)]
    what = {"message_type": "train", "aggregation": "secure", "examples": 2, "metrics": {}, "seconds": 60.0}
    return event("exchange-done", exchange=number, server_round=number, survivors=names, **what)


def gone(exchange: int, number: int, reason: str = "simulated dropout") -> RunEvent:
    return event("dropped", exchange=exchange, client=f"client-{number}", stage="input", reason=reason)


class TestThousands:
    def lines(self, clients: int, *events: RunEvent) -> list[str]:
        out = io.StringIO()
        with ProgressView(Console(file=out, width=200), "run", clients=clients) as view:
            for seconds, one in enumerate(events):
                view.show(one, 60.0 * seconds)
        return out.getvalue().splitlines()

    def test_dropouts_of_many_are_counted_after_their_round(self) -> None:
        dropped = [gone(1, number) for number in range(1, 31)] + [gone(1, 99, "late"), gone(1, 98, "late")]
        done_line, dropped_line = self.lines(2000, *dropped, of_many(1, 1950))
        assert "1,950 clients" in done_line
        assert "32 dropped out (30 input: simulated dropout, 2 input: late): client-1, client-2," in dropped_line
        assert "client-9," not in dropped_line
        assert len(dropped_line) < 200

    def test_of_many_reasons_the_usual_ones_are_named(self) -> None:
        (line,) = self.lines(21, *(gone(1, number, f"it {number}") for number in range(1, 6)))
        assert "5 dropped out (1 input: it 1, 1 input: it 2, 1 input: it 3, 2 for other reasons)" in line

    def test_of_a_failed_round_they_are_told_as_well(self) -> None:
        failed = event("exchange-failed", exchange=1, server_round=1, reason="too few", retry=True)
        first, second = self.lines(21, gone(1, 1), gone(1, 2), failed)
        assert "2 dropped out (input: simulated dropout): client-1, client-2" in first
        assert "too few" in second

    def test_of_twenty_each_has_its_line_at_once(self) -> None:
        assert len(self.lines(20, *(gone(1, number) for number in range(1, 6)))) == 5

    def test_a_server_that_asks_many_is_told_of_like_a_simulation(self) -> None:
        names = [f"client-{number}" for number in range(1, 31)]
        joined, dropped = self.lines(
            0, event("clients", online=names, absent=[], expected=30), started(1, names), gone(1, 1), gone(1, 2)
        )
        assert "client-8, ..." in joined
        assert "client-9" not in joined
        assert "2 dropped out" in dropped

    def test_who_has_no_terminal_reads_the_time_that_is_left(self) -> None:
        begun = event("started", app="a", aggregation="secure", rounds=10)
        lines = self.lines(2000, begun, *(of_many(number, 50) for number in range(1, 11)))
        assert "left" not in lines[1]
        assert lines[2].endswith("(about 7 min left)")
        assert "left" not in lines[-1]

    def test_a_terminal_has_sums_in_place_of_a_table(self) -> None:
        out = io.StringIO()
        console = Console(file=out, force_terminal=True, width=100)
        with ProgressView(console, "run", clients=2000, clock=lambda: 0.0) as view:
            view.show(of_many(1, 1950))
            view.show(gone(2, 7))
            view.works("round 2 train", 7, 1950)
            console.print(view.picture())
            view.show(of_many(2, 3))
        shown = Text.from_ansi(out.getvalue()).plain
        assert "round 2 train: 7 of 1,950 clients" in shown
        assert "1,949 done, 1 dropped; sent -, received -" in shown
        assert "waits for" not in shown


class TestTerminal:
    def show(self, console: Console) -> None:
        with ProgressView(console, "federated", clock=lambda: 0.0) as view:
            view.show(event("started", app="a", aggregation="secure", rounds=10), 0.0)
            for number in (1, 2, 3):
                view.show(started(number), 60.0 * number)
                view.show(done(number), 60.0 * number + 20)
            if view.live:
                console.print(view.picture())

    def test_round_and_time_left(self) -> None:
        out = io.StringIO()
        self.show(Console(file=out, force_terminal=True, width=100))
        shown = Text.from_ansi(out.getvalue()).plain
        assert "round 3 of 10, about 8 min left" in shown
        assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l"), "the cursor is there again"

    def test_without_a_terminal_there_are_only_lines(self) -> None:
        out = io.StringIO()
        self.show(Console(file=out, width=100))
        assert "\x1b" not in out.getvalue()
        assert [line.split()[:3] for line in out.getvalue().splitlines()] == [["federated", "round", "1"]] + [
            ["federated", "round", str(number)] for number in (2, 3)
        ]

    def test_an_exception_leaves_the_cursor(self) -> None:
        out = io.StringIO()
        with pytest.raises(KeyboardInterrupt), ProgressView(Console(file=out, force_terminal=True), "federated"):
            raise KeyboardInterrupt
        assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")


def test_trees_are_told_by_their_number_and_queries_by_theirs() -> None:
    """A tree takes several queries, and a question is no round at all."""

    def shown(kind: str, rounds: list[int]) -> list[list[int]]:
        console = Console(file=io.StringIO(), width=200)
        with ProgressView(console, "run") as view:
            view.show(event("started", app="a", aggregation="secure", rounds=20))
            for exchange, number in enumerate(rounds, 1):
                view.show(done(number).model_copy(update={"message_type": kind, "exchange": exchange}))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        return [
            [int(word) for word in line.partition(" clients")[0].replace(",", " ").split() if word.isdigit()]
            for line in lines
        ]

    assert shown("query.tree_sums", [0, 1, 1, 2]) == [[1, 2], [1, 20, 2, 2], [1, 20, 3, 2], [2, 20, 4, 2]]
    assert shown("query.statistics", [1, 2]) == [[1, 2], [2, 2]]
    assert shown("train", [1, 2]) == [[1, 20, 2], [2, 20, 2]]
