"""Federated learning with secure aggregation.

    run = fedcore.simulate("examples/digits", clients=10, rounds=5)
    run.history; run.plot(); run.save("first-run")

What a person needs who writes an app, or works with one in a script or a notebook. The commands `fedcore check`,
`simulate`, `compare` and `run` are calls here, whose results show, plot and save themselves. A name is imported when it
is first used, so that `import fedcore` loads neither flwr nor torch.

    Calls           check (CheckReport), simulate (Run), compare (ComparisonResult), Federation
    An app          supervised_app, local_app, LocalJob, averaging_server, make_strategy, EngineConfig,
                    mean_only, sum_only, group_means; trees_app, trees_server
    Its data        Split, Dataset, client_data, load_digits, load_image, load_image_folder, TableSchema, table_data
    Its training    OptimizerConfig, TrainingColumns, Standardise, Rescale, ClassWeights; fedcore.training.losses and
                    .metrics
    Their parts     FlowerApp, JobSettings, Simulation, RunRecord, ModelState, Policy, provision, CompareJob,
                    parse_modes, execute_comparison
    Plugins         register
    Errors          FedcoreError, the base of all that fedcore raises on purpose
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcore.api.checks import check
    from fedcore.api.comparing import ComparisonResult, compare
    from fedcore.api.federation import Federation
    from fedcore.api.findings import CheckReport
    from fedcore.api.plugins import register
    from fedcore.api.result import Run
    from fedcore.api.simulating import simulate
    from fedcore.comparison.execution import execute_comparison
    from fedcore.comparison.modes import parse_modes
    from fedcore.comparison.plan import CompareJob
    from fedcore.data import (
        Dataset,
        Split,
        TableSchema,
        client_data,
        load_digits,
        load_image,
        load_image_folder,
        table_data,
    )
    from fedcore.errors import FedcoreError
    from fedcore.federation import Policy, provision
    from fedcore.flower.app import FlowerApp
    from fedcore.flower.apps.engine_app import LocalJob, local_app
    from fedcore.flower.apps.statistics import TrainingColumns
    from fedcore.flower.apps.supervised import supervised_app
    from fedcore.flower.grid.declarations import group_means, mean_only, sum_only
    from fedcore.flower.strategies.registry import averaging_server, make_strategy
    from fedcore.flower.trees.client import trees_app
    from fedcore.flower.trees.server import trees_server
    from fedcore.monitoring.run_record import RunRecord
    from fedcore.run.engine_config import EngineConfig
    from fedcore.run.settings import JobSettings
    from fedcore.simulation import Simulation
    from fedcore.state import ModelState
    from fedcore.training import OptimizerConfig
    from fedcore.training.models import ClassWeights, Rescale, Standardise

    __version__: str

__all__ = [
    "CheckReport",
    "ClassWeights",
    "CompareJob",
    "ComparisonResult",
    "Dataset",
    "EngineConfig",
    "FedcoreError",
    "Federation",
    "FlowerApp",
    "JobSettings",
    "LocalJob",
    "ModelState",
    "OptimizerConfig",
    "Policy",
    "Rescale",
    "Run",
    "RunRecord",
    "Simulation",
    "Split",
    "Standardise",
    "TableSchema",
    "TrainingColumns",
    "__version__",
    "averaging_server",
    "check",
    "client_data",
    "compare",
    "execute_comparison",
    "group_means",
    "load_digits",
    "load_image",
    "load_image_folder",
    "local_app",
    "make_strategy",
    "mean_only",
    "parse_modes",
    "provision",
    "register",
    "simulate",
    "sum_only",
    "supervised_app",
    "table_data",
    "trees_app",
    "trees_server",
]

_HOMES = {
    "fedcore.api.comparing": ("ComparisonResult", "compare"),
    "fedcore.api.federation": ("Federation",),
    "fedcore.api.result": ("Run",),
    "fedcore.api.simulating": ("simulate",),
    "fedcore.api.checks": ("check",),
    "fedcore.api.findings": ("CheckReport",),
    "fedcore.api.plugins": ("register",),
    "fedcore.comparison.execution": ("execute_comparison",),
    "fedcore.comparison.plan": ("CompareJob",),
    "fedcore.comparison.modes": ("parse_modes",),
    "fedcore.run.settings": ("JobSettings",),
    "fedcore.run.engine_config": ("EngineConfig",),
    "fedcore.data": (
        "Dataset",
        "Split",
        "TableSchema",
        "client_data",
        "load_digits",
        "load_image",
        "load_image_folder",
        "table_data",
    ),
    "fedcore.errors": ("FedcoreError",),
    "fedcore.federation": ("Policy", "provision"),
    "fedcore.flower.app": ("FlowerApp",),
    "fedcore.flower.grid.declarations": ("group_means", "mean_only", "sum_only"),
    "fedcore.flower.apps.engine_app": ("LocalJob", "local_app"),
    "fedcore.flower.apps.supervised": ("supervised_app",),
    "fedcore.flower.apps.statistics": ("TrainingColumns",),
    "fedcore.flower.trees.client": ("trees_app",),
    "fedcore.flower.strategies.registry": ("averaging_server", "make_strategy"),
    "fedcore.flower.trees.server": ("trees_server",),
    "fedcore.monitoring.run_record": ("RunRecord",),
    "fedcore.simulation": ("Simulation",),
    "fedcore.state": ("ModelState",),
    "fedcore.training": ("OptimizerConfig",),
    "fedcore.training.models": ("ClassWeights", "Rescale", "Standardise"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from fedcore.system.version import fedcore_version

        value: Any = fedcore_version()
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
