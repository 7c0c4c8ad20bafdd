"""Queries whose loop hands the replies to a function that only adds them up: it gets their sum, undeclared."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity
from support.raising import raises

from fedcore.errors import AppError
from fedcore.flower.grid.secure_grid import SecureGrid
from fedcore.run.exchange import ExchangeReply, ExchangeRequest

NODES = (1, 2, 3)
SUMS = {"found/rows": 60.0, "found/counts": [10.0, 20.0, 30.0]}


@dataclass
class Sums:
    """An ExchangeBackend that answers with these sums."""

    asked: list[str] = field(default_factory=list)

    def nodes(self) -> list[int]:
        return list(NODES)

    def report_figures(self, figures: object) -> None:
        del figures

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        self.asked.append(request.message_type)
        return [ExchangeReply(node=0, state=None, examples=3, metrics=SUMS)]


@pytest.fixture
def sums() -> Sums:
    return Sums()


@pytest.fixture
def grid(sums: Sums, monkeypatch: pytest.MonkeyPatch) -> SecureGrid:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 0)
    return SecureGrid(sums, run_id=1)


def replies_of(grid: Grid) -> list[Message]:
    return list(grid.send_and_receive([Message(RecordDict(), node, "query") for node in NODES]))


def total(replies: list[Message]) -> dict[str, Any]:
    rows, counts = 0.0, [0.0, 0.0, 0.0]
    for reply in replies:
        found = reply.content["found"]
        rows += found["rows"]
        counts = [a + b for a, b in zip(counts, found["counts"], strict=True)]
    return {"rows": rows, "counts": counts}


def mean(replies: list[Message]) -> float:
    return sum([reply.content["found"]["rows"] for reply in replies]) / len(replies)


def share(replies: list[Message]) -> float:
    """A ratio of sums."""
    return sum([r.content["found"]["counts"][0] for r in replies]) / sum([r.content["found"]["rows"] for r in replies])


def largest(replies: list[Message]) -> float:
    return max([reply.content["found"]["rows"] for reply in replies])


def middle(replies: list[Message]) -> float:
    return sorted([reply.content["found"]["rows"] for reply in replies])[len(replies) // 2]


def mean_of_shares(replies: list[Message]) -> float:
    shares = [r.content["found"]["counts"][0] / max(r.content["found"]["rows"], 1.0) for r in replies]
    return sum(shares) / len(shares)


def constant(replies: list[Message]) -> float:
    """Reads, and says nothing of it."""
    return 0.0 * sum([reply.content["found"]["rows"] for reply in replies])


KEPT: list[Any] = []


def keeps(replies: list[Message]) -> float:
    KEPT.append(replies[0].content["found"])
    return sum([reply.content["found"]["rows"] for reply in replies])


def test_a_function_that_adds_up_gets_the_sum(grid: SecureGrid) -> None:
    def main() -> dict[str, Any]:
        replies = replies_of(grid)
        assert len(replies) == len(NODES)
        assert not any(reply.has_error() for reply in replies)
        return total(replies) | {"mean": mean(replies), "share": share(replies), "nothing": constant(replies)}

    assert main() == {
        "rows": 60.0,
        "counts": [10.0, 20.0, 30.0],
        "mean": 20.0,
        "share": pytest.approx(1 / 6),
        "nothing": 0,
    }


@pytest.mark.parametrize("function", [largest, middle, mean_of_shares])
def test_a_function_of_single_replies_is_refused(grid: SecureGrid, function: Any) -> None:
    def main() -> None:
        _ = total  # there is one that adds, so the query is sent
        function(replies_of(grid))

    with raises(AppError, check="undeclared-loop"):
        main()


def test_a_loop_that_reads_replies_itself_is_refused(grid: SecureGrid, sums: Sums) -> None:
    def peeks() -> None:
        replies = replies_of(grid)
        total(replies)
        replies[0].content["found"]["rows"]

    with raises(AppError, check="undeclared-loop"):
        peeks()
    assert sums.asked == ["query"]


def test_code_without_a_function_that_adds_is_refused_before_anybody_is_asked(grid: SecureGrid, sums: Sums) -> None:
    def main() -> None:
        keeps(replies_of(grid))

    with raises(AppError, check="undeclared-loop"):
        main()
    assert not sums.asked
    assert not KEPT


def test_a_training_is_no_query(grid: SecureGrid, sums: Sums) -> None:
    def main() -> None:
        total(list(grid.send_and_receive([Message(RecordDict(), node, "evaluate") for node in NODES])))

    with raises(AppError, check="undeclared-loop"):
        main()
    assert not sums.asked
