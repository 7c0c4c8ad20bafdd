"""The ClientApp: fits a Cox model to the patients of one site."""

from cox_app.task import BOUNDS, COLUMNS, initial_model, patients
from fedcore import LocalJob, supervised_app
from fedcore.data import Split
from fedcore.flower.apps.statistics import TrainingColumns, standardised
from fedcore.training import OptimizerConfig
from fedcore.training.losses import cox
from fedcore.training.metrics import c_index


def data(job: LocalJob) -> tuple[Split, Split]:
    """Training and test part of this node, less the federation's means, over its standard deviations."""
    train, test = (
        Split(x=standardised(part.x, job.message, COLUMNS), y=part.y)
        for part in patients(int(job.node["partition-id"]), int(job.config["seed"]))
    )
    return train, test


app = supervised_app(
    model=lambda config: initial_model(),
    optimizer=lambda config: OptimizerConfig(lr=float(config["lr"])),
    data=data,
    loss=cox,
    metrics=(c_index,),
    columns=TrainingColumns(names=COLUMNS, bounds=lambda config: BOUNDS),
)
