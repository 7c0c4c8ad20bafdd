"""The ClientApp: trains and evaluates on this node's part of the digits."""

from digits_app.task import initial_model, local_data, optimizer
from fedcore import LocalJob, supervised_app
from fedcore.data import Split


def data(job: LocalJob) -> tuple[Split, Split]:
    """Training and test part of this node."""
    config, node = job.config, job.node
    return local_data(
        str(config["partition"]),
        int(node["partition-id"]),
        int(node["num-partitions"]),
        int(config["seed"]),
    )


app = supervised_app(model=lambda config: initial_model(int(config["seed"])), optimizer=optimizer, data=data)
