"""The ClientApp: answers with sums over the tumours of one site."""

from fedcore import LocalJob, trees_app
from fedcore.data import Split
from trees_app.task import BOUNDS, COLUMNS, local_data


def data(job: LocalJob) -> tuple[Split, Split]:
    """Training and test part of this node."""
    config, node = job.config, job.node
    return local_data(
        str(config["partition"]), int(node["partition-id"]), int(node["num-partitions"]), int(config["seed"])
    )


app = trees_app(data=data, names=COLUMNS, bounds=lambda config: BOUNDS)
