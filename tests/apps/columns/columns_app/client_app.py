"""Answers queries about its rows, its own and fedcore's, or wrongly where the run config says so."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from columns_app.table import table
from fedcore.flower.apps.statistics import add_statistics

app = ClientApp()


def columns(context: Context) -> dict[str, np.ndarray]:
    config = context.run_config
    return table(context.node_config["partition-id"], config["rows"], config["columns"])


add_statistics(app, columns)


@app.query()
def count(message: Message, context: Context) -> Message:
    found = columns(context)
    content = RecordDict(
        {
            "rows": MetricRecord({"count": len(found["age"]), "age/sum": float(np.nansum(found["age"]))}),
            "wards/of 4%": MetricRecord({"count": np.bincount(found["ward"].astype(int), minlength=4).tolist()}),
        }
    )
    if context.node_config["partition-id"] == context.run_config["faulty-partition"]:
        misbehave(str(context.run_config["fault"]), content)
    return Message(content, reply_to=message)


def misbehave(fault: str, content: RecordDict) -> None:
    """Spoil the reply."""
    if fault == "array":
        content["ages"] = ArrayRecord({"age": Array(np.zeros(3))})
    if fault == "config":
        content["about"] = ConfigRecord({"ward": "ICU"})
    if fault == "nothing":
        for key in list(content):
            del content[key]
    if fault == "large":
        content["rows"]["count"] = 2.0**41
    if fault == "names":
        content["rows"] = MetricRecord({f"the number of patients {place:03}": place for place in range(100)})
    if fault == "other":
        content["rows"]["another"] = 1
    if fault == "raise":
        raise ValueError("patient 17 is in this message")
