"""Federated learning with secure aggregation.

What a person needs who writes an app, or scripts a run or a comparison. A name is imported when it is first used, so
that `import fedcore` loads neither flwr nor torch.

    An app          supervised_app, local_app, LocalJob, averaging_server, make_strategy, EngineConfig,
                    mean_only, sum_only
    A run           FlowerApp, JobSettings, Simulation, RunRecord, ModelState
    A federation    provision, Policy
    A comparison    CompareJob, parse_modes, carry_out
    Errors          FedcoreError, the base of all that fedcore raises on purpose
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedcore.compare.carry_out import carry_out
    from fedcore.compare.modes import parse_modes
    from fedcore.compare.plan import CompareJob
    from fedcore.config import EngineConfig, JobSettings
    from fedcore.errors import FedcoreError
    from fedcore.federation import Policy, provision
    from fedcore.flower.app import FlowerApp
    from fedcore.flower.declarations import mean_only, sum_only
    from fedcore.flower.engine_app import LocalJob, local_app, supervised_app
    from fedcore.flower.strategies import averaging_server, make_strategy
    from fedcore.record import RunRecord
    from fedcore.simulate import Simulation
    from fedcore.state import ModelState

    __version__: str

__all__ = [
    "CompareJob",
    "EngineConfig",
    "FedcoreError",
    "FlowerApp",
    "JobSettings",
    "LocalJob",
    "ModelState",
    "Policy",
    "RunRecord",
    "Simulation",
    "__version__",
    "averaging_server",
    "carry_out",
    "local_app",
    "make_strategy",
    "mean_only",
    "parse_modes",
    "provision",
    "sum_only",
    "supervised_app",
]

_HOMES = {
    "fedcore.compare.carry_out": ("carry_out",),
    "fedcore.compare.plan": ("CompareJob",),
    "fedcore.compare.modes": ("parse_modes",),
    "fedcore.config": ("EngineConfig", "JobSettings"),
    "fedcore.errors": ("FedcoreError",),
    "fedcore.federation": ("Policy", "provision"),
    "fedcore.flower.app": ("FlowerApp",),
    "fedcore.flower.declarations": ("mean_only", "sum_only"),
    "fedcore.flower.engine_app": ("LocalJob", "local_app", "supervised_app"),
    "fedcore.flower.strategies": ("averaging_server", "make_strategy"),
    "fedcore.record": ("RunRecord",),
    "fedcore.simulate": ("Simulation",),
    "fedcore.state": ("ModelState",),
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
