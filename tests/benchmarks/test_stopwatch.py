"""Which of many times counts."""

from collections.abc import Callable
from itertools import count

from benchmarks.stopwatch import Patience, median_ratio, shortest, take_turns


def test_jobs_take_turns_in_changing_order_and_the_shortest_time_counts():
    now = 0.0
    calls = []
    # The first time of each is the warm-up.
    durations = {"a": iter([100.0, 3.0, 2.0, 5.0]), "b": iter([100.0, 7.0, 9.0, 8.0])}

    def job(name):
        def work():
            nonlocal now
            calls.append(name)
            now += next(durations[name])

        return work

    def sleep(seconds):
        nonlocal now
        now += seconds

    patience = Patience(seconds=0.0, pause=50.0, repeats=3)
    times = shortest({name: job(name) for name in "ab"}, patience, clock=lambda: now, sleep=sleep)
    assert times == {"a": 2.0, "b": 7.0}
    assert now == 200 + 6 * 50 + 3 + 2 + 5 + 7 + 9 + 8
    assert "".join(calls) == "ab" + "ab" + "ba" + "ab"


def test_turns_go_on_until_the_time_is_over():
    ticks = count()
    calls = []
    shortest({"a": lambda: calls.append("a")}, Patience(seconds=20.0, repeats=1), clock=lambda: float(next(ticks)))
    # A turn reads the clock three times, and once it is looked at before.
    assert len(calls) == 1 + 7


def test_the_ratio_is_that_of_speeds() -> None:
    assert median_ratio(([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])) == 1.0
    assert median_ratio(([1.0], [2.0])) == 0.5


def test_neither_loop_always_follows_the_other() -> None:
    order: list[str] = []

    def seconds(loop: Callable[[], None]) -> float:
        loop()
        return float(len(order))

    times = take_turns((lambda: order.append("a"), lambda: order.append("b")), 3, seconds)
    assert order == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert times == ([3.0, 6.0, 7.0], [4.0, 5.0, 8.0])
