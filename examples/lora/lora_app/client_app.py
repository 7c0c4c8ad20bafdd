"""The ClientApp: trains and evaluates the adapter on the lines of this node's roles."""

from fedcore import LocalJob, supervised_app
from fedcore.data import Split
from lora_app.task import initial_model, local_data, optimizer


def data(job: LocalJob) -> tuple[Split, Split]:
    """Training and test part of this node."""
    return local_data(job.config, int(job.node["partition-id"]), int(job.node["num-partitions"]))


# Loss and accuracy are means over tokens, and so is their average over the nodes.
app = supervised_app(model=initial_model, optimizer=optimizer, data=data, weigh="targets", adapter=True)
