"""The ClientApp: predicts the fine dust of one station."""

from air_app.task import BOUNDS, COLUMNS, hours, initial_model
from fedcore import LocalJob, supervised_app
from fedcore.data import Split
from fedcore.flower.apps.statistics import TrainingColumns, standardised
from fedcore.training import OptimizerConfig
from fedcore.training.losses import squared_error
from fedcore.training.metrics import r2, rmse


def data(job: LocalJob) -> tuple[Split, Split]:
    """Training and test part of this node, standardised by the federation; a missing value is its mean."""
    train, test = (
        Split(x=standardised(part.x, job.message, COLUMNS), y=part.y)
        for part in hours(int(job.node["partition-id"]), int(job.config["seed"]))
    )
    return train, test


app = supervised_app(
    model=lambda config: initial_model(int(config["seed"])),
    optimizer=lambda config: OptimizerConfig(name="adam", lr=float(config["lr"])),
    data=data,
    loss=squared_error,
    metrics=(r2, rmse),
    columns=TrainingColumns(names=COLUMNS, bounds=lambda config: BOUNDS),
)
