"""Whether clients can derive an app's first model: it is made twice, in processes of their own, and compared."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.first_model.derive import derive
from fedcore.flower.first_model.messages import Derivation, FirstModel, FirstModelStart, NotDerived
from fedcore.run.settings import JobSettings
from fedcore.system.files import private_folder
from fedcore.wire.base import Scalar

_RUN: Final = "0" * 16
_REMEDY: Final = (
    'clients with stock policies (first-models = ["app"]) refuse a run whose first model they cannot derive from the '
    "app. Let the ServerApp make it from a seed and without data, or every owner adds the model's SHA-256 to "
    "first-models in policy.toml, which the refusal names"
)


def why_not_derived(app: FlowerApp, clients: int, run_config: Mapping[str, Scalar], settings: JobSettings) -> str:
    """Why clients cannot derive an app's first model in a secure run, and what helps; "" if they can, or need not."""
    with ThreadPoolExecutor(1) as aside:  # a notebook has an event loop of its own
        first, second = aside.submit(lambda: asyncio.run(_derive(app, clients, run_config, settings))).result()
    for made in (first, second):
        if isinstance(made, NotDerived):
            if made.needless:
                return ""
            return f"it cannot be derived: {made.reason}; {_REMEDY}"
    return "" if first == second else f"it is another one in every process; {_REMEDY}"


async def _derive(
    app: FlowerApp, clients: int, run_config: Mapping[str, Scalar], settings: JobSettings
) -> tuple[Derivation, Derivation]:
    bundle = AppBundle.from_folder(app.folder)
    nodes = list(range(1, clients + 1))
    with private_folder() as folder:
        start = FirstModelStart.of(
            settings,
            app=str(bundle.install(folder)),
            app_sha256=bundle.sha256,
            run=_RUN,
            run_config=dict(run_config),
            aggregation="secure",
            members=clients,
            nodes=nodes,
        )
        first = await derive(start)
        return first, await derive(start) if isinstance(first, FirstModel) else first
