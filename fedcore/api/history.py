"""The history of a run as a table: one row for each round, one column for each figure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fedcore.monitoring.run_record import RunRecord
from fedcore.wire.events import ExchangeDone
from fedcore.wire.tasks import is_query

if TYPE_CHECKING:
    import pandas

ROUND: Final = "round"
FACTS: Final = ("clients", "dropped", "seconds", "virtual_seconds", "bytes_up", "bytes_down", "epsilon")
"""Columns that are no metrics, the last of the table."""
_KINDS: Final = ("train", "evaluate", "server")
_SUMS: Final = "/sums"
"""Ends the names of sums that other figures are read off."""
_EXAMPLES: Final = "num-examples"

Figures = Mapping[str, Any]
ByRound = dict[int, dict[str, Any]]


def history_of(record: RunRecord, results: Mapping[str, Any]) -> pandas.DataFrame:
    """One row for each round, indexed by its number.

    Metrics come first, by their names; one that both training and evaluation report, or that the ServerApp's own
    evaluation gave, is `train/NAME`, `evaluate/NAME`, `server/NAME`. Then clients (in the last sum of the round),
    dropped, seconds, virtual_seconds (of simulated devices), bytes_up and bytes_down (of all clients together), and
    epsilon of a run with differential privacy.

    Args:
        results: as `fedcore.flower.results.results_of` has it; what a strategy made of the metrics is there.
    """
    import pandas

    metrics = _metrics(record, results)
    facts = _facts(record)
    numbers = sorted({*facts, *(number for kind in metrics.values() for number in kind)})
    rows = [{**_named(metrics, number), **facts.get(number, {})} for number in numbers]
    columns = list(dict.fromkeys(name for row in rows for name in row if name not in FACTS))
    present = [name for name in FACTS if any(name in row for row in rows)]
    frame = pandas.DataFrame(rows, index=pandas.Index(numbers, name=ROUND), columns=[*columns, *present])
    counts = [name for name in ("clients", "dropped", "bytes_up", "bytes_down") if name in present]
    return frame.astype(dict.fromkeys(counts, "Int64"))


def final_metrics(record: RunRecord, results: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of the last evaluation, of the clients or else of the ServerApp, or of the last training."""
    metrics = _metrics(record, results)
    for kind in ("evaluate", "server", "train"):
        if rounds := metrics[kind]:
            return dict(rounds[max(rounds)])
    return {}


def _metrics(record: RunRecord, results: Mapping[str, Any]) -> dict[str, ByRound]:
    """Kind -> round -> metrics; what a strategy made of them in place of the means."""
    series: dict[str, ByRound] = {kind: defaultdict(dict) for kind in _KINDS}
    for exchange in record.exchanges:
        if not is_query(exchange.message_type):
            series["train" if exchange.trains else "evaluate"][exchange.server_round] |= _without_sums(exchange.metrics)
    for kind in _KINDS:
        for number, values in results.get(kind, {}).items():
            series[kind][int(number)] |= _without_sums(
                {name: value for name, value in values.items() if name != _EXAMPLES}
            )
    return series


def _without_sums(metrics: Figures) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if not name.endswith(_SUMS)}


def _named(metrics: Mapping[str, ByRound], number: int) -> dict[str, Any]:
    """A round's metrics by the names of their columns."""
    names = {kind: {name for row in rounds.values() for name in row} for kind, rounds in metrics.items()}
    both = names["train"] & names["evaluate"]
    row = {}
    for kind in _KINDS:
        for name, value in metrics[kind].get(number, {}).items():
            row[f"{kind}/{name}" if kind == "server" or name in both else name] = value
    return row


def _facts(record: RunRecord) -> ByRound:
    """Round -> what its exchanges took, metrics apart."""
    facts: ByRound = defaultdict(dict)
    round_of = {one.exchange: one.server_round for one in record.failures}
    round_of |= {one.exchange: one.server_round for one in record.exchanges}
    for exchange in record.of_rounds():
        _add(facts[exchange.server_round], exchange)
    for dropped in record.dropouts:
        if (number := round_of.get(dropped.exchange)) in facts and number is not None:
            facts[number]["dropped"] += 1
    return facts


def _add(row: dict[str, Any], exchange: ExchangeDone) -> None:
    if exchange.trains or "clients" not in row:
        row["clients"] = len(exchange.survivors)
    row.setdefault("dropped", 0)
    row["seconds"] = row.get("seconds", 0.0) + exchange.seconds
    if exchange.virtual_seconds is not None:
        row["virtual_seconds"] = row.get("virtual_seconds", 0.0) + exchange.virtual_seconds
    for name, sizes in (("bytes_up", exchange.bytes_up), ("bytes_down", exchange.bytes_down)):
        row[name] = row.get(name, 0) + sum(sizes.values())
    if exchange.epsilon_spent is not None:
        row["epsilon"] = exchange.epsilon_spent
