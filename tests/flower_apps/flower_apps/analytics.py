"""Analytics with @app.query: a histogram, and Kaplan-Meier from counts and from the patients themselves."""

import time

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedcore import sum_only
from flower_apps.task import NODES, arrays_of, data, partition_of, record_of, report

client = ClientApp()
histogram = ServerApp()
histogram_declared = ServerApp()
survival_declared = ServerApp()
survival_of_patients = ServerApp()

EDGES = [-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0]
TIMES = [1, 2, 3, 4, 5]


@client.query()
def count(message: Message, context: Context) -> Message:
    """Counts of a column, as pandas would make them."""
    column = data(partition_of(context))[0][:, int(message.content["query"]["column"])]
    counts = np.histogram(column, bins=EDGES)[0]
    found = MetricRecord({"counts": [int(value) for value in counts], "rows": len(column)})
    return Message(content=RecordDict({"query_results": found}), reply_to=message)


def patients(site: int) -> tuple[np.ndarray, np.ndarray]:
    """Times and events of the patients of a site, [n] each."""
    rng = np.random.default_rng(site)
    return rng.integers(1, 6, size=8 + site), rng.integers(0, 2, size=8 + site)


@client.query("at_risk")
def at_risk(message: Message, context: Context) -> Message:
    times, events = patients(partition_of(context))
    found = {
        "deaths": [int(((times == t) & (events == 1)).sum()) for t in TIMES],
        "at_risk": [int((times >= t).sum()) for t in TIMES],
    }
    return Message(content=RecordDict({"query_results": MetricRecord(found)}), reply_to=message)


@client.query("patients")
def all_patients(message: Message, context: Context) -> Message:
    times, events = patients(partition_of(context))
    return Message(content=RecordDict({"rows": record_of({"times": times, "events": events})}), reply_to=message)


def ask(grid: Grid, kind: str) -> list[Message]:
    """The replies of all nodes."""
    while len(nodes := list(grid.get_node_ids())) < NODES:
        time.sleep(0.1)
    content = RecordDict({"query": ConfigRecord({"column": 1})})
    return list(grid.send_and_receive([Message(content, node, kind) for node in nodes]))


@histogram.main()
def main(grid: Grid, context: Context) -> None:
    add_up(grid)


@histogram_declared.main()
@sum_only
def main_declared(grid: Grid, context: Context) -> None:
    add_up(grid)


def add_up(grid: Grid) -> None:
    """Sums over the replies, whether they are one for each node or one for all."""
    counts, rows = np.zeros(len(EDGES) - 1), 0.0
    for answer in ask(grid, "query"):
        counts += answer.content["query_results"]["counts"]
        rows += answer.content["query_results"]["rows"]
    report(counts=counts, rows=rows)


@survival_declared.main()
@sum_only
def main_survival(grid: Grid, context: Context) -> None:
    replies = [answer.content["query_results"] for answer in ask(grid, "query.at_risk")]
    deaths = np.sum([record["deaths"] for record in replies], axis=0)
    exposed = np.sum([record["at_risk"] for record in replies], axis=0)
    report(survival=np.cumprod(1 - deaths / exposed))


@survival_of_patients.main()
def main_patients(grid: Grid, context: Context) -> None:
    rows = [arrays_of(answer.content["rows"]) for answer in ask(grid, "query.patients")]
    times = np.concatenate([row["times"] for row in rows])
    events = np.concatenate([row["events"] for row in rows])
    deaths = np.array([((times == t) & (events == 1)).sum() for t in TIMES])
    exposed = np.array([(times >= t).sum() for t in TIMES])
    report(survival=np.cumprod(1 - deaths / exposed))
