"""`fedcore.simulate`: a whole run in memory, and its result."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from fedcore.api.arguments import Progress, chosen_config, chosen_settings, data_folder, policy_of, progress_sink
from fedcore.api.result import OutputFolder, Run
from fedcore.monitoring.run_record import RunRecord
from fedcore.state import ModelState, open_initial
from fedcore.wire.base import Scalar
from fedcore.wire.events import RunEvent

if TYPE_CHECKING:
    from fedcore.federation import Policy
    from fedcore.flower.memory_app import AppLike

IN_TURN: Final = threading.RLock()
"""A simulation changes the current folder, and Flower keeps the id of the run for the whole process."""


def simulate(
    app: AppLike,
    *,
    clients: int | None = None,
    per_round: int | None = None,
    engine: Literal["inline", "process", "ray"] = "inline",
    workers: int = 0,
    rounds: int | None = None,
    seed: int | None = None,
    drop: float = 0.0,
    devices: str | Path = "",
    network: str = "none",
    clients_at_once: int = 0,
    aggregation: Literal["secure", "plain"] | None = None,
    run_config: Mapping[str, Scalar] | None = None,
    settings: Mapping[str, Any] | None = None,
    policy: Policy | str | Path | None = None,
    initial_model: ModelState | str | Path | None = None,
    state: str | Path | None = None,
    data_dir: str | Path | None = None,
    progress: Progress = True,
) -> Run:
    """Run an app in memory, with the state machines of the real server and clients, and return the result.

    >>> import fedcore
    >>> run = fedcore.simulate("examples/digits", clients=4, rounds=2, progress=False)
    >>> list(run.history.index)
    [1, 2]
    >>> 0.5 < run.metrics["eval_acc"] < 1
    True

    It works within a notebook and from threads, where one simulation waits for the other; Ctrl-C ends it. Raises
    ConfigurationError for what cannot work, before anybody trains; RunFailed for a run that ended without a model; what
    the app's own code raises comes through as it is.

    Args:
        app: the folder of an app; or, for a notebook, what `supervised_app` or `local_app` returned, a pair (ClientApp,
            ServerApp), or a function that makes one of these.
        clients: None for the app's `simulation-clients`, or 10.
        per_round: how many of them a round asks, by the app's key `fraction-train`; None for what the app says.
        engine: where they train: in this process, one after the other; in a pool of `workers` processes, 0 for one a
            core; or in tasks of Ray. The latter two need an app in a folder, and what its code raises is an AppError
            then.
        rounds: short for the key `num-server-rounds` of the run config, which the app has to have.
        seed: likewise for `seed`; it is also that of the simulated dropouts and devices.
        drop: the chance that a client drops out of an exchange.
        devices: how fast clients are and when they are available, in the form of `--devices`; with it the run has a
            virtual clock.
        network: how fast their connections are, in the form of `--network`; likewise.
        clients_at_once: how many clients train at once, as one batched step, where the app allows it; 1 for one by one,
            0 for as many as pay.
        aggregation: None for what the app's settings say, "secure" by default.
        run_config: over `[tool.flwr.app.config]`; of an app that is no folder, any key.
        settings: over `[tool.fedcore]`.
        policy: what the clients' owners insist on: the path of a policy.toml, "stock", "strict", "own", or a Policy.
            None: a stock policy, but run config, settings and plain aggregation are yours.
        initial_model: what the app's strategy starts from in place of its own model.
        state: a folder in which the run keeps all that it takes to go on; the same call again goes on where it was
            ended.
        data_dir: the folder with the data sets, as FEDCORE_DATA.
        progress: whether to print a line for each exchange, or a function that takes the events
            (`fedcore.wire.events`).
    """
    from fedcore.flower.memory_app import folder_of, load_app
    from fedcore.flower.output import quiet_flower
    from fedcore.simulation import Simulation, model_facts
    from fedcore.simulation.devices.choice import parse_devices
    from fedcore.simulation.devices.network import Network
    from fedcore.simulation.workers.executors import checked_engine, make_executor, with_cohort

    record, began = RunRecord(), time.monotonic()
    with (
        IN_TURN,
        load_app(app, run_config or {}) as loaded,
        data_folder(data_dir),
        OutputFolder() as files,
        ExitStack() as stack,
    ):
        quiet_flower()
        config = chosen_config(loaded.app, run_config, rounds=rounds, seed=seed)
        chosen = chosen_settings(loaded.app, settings, aggregation)
        clients = clients or loaded.app.simulation_clients
        config = with_cohort(config, run_config or {}, per_round, clients, reads=loaded.in_memory)
        show = stack.enter_context(progress_sink(progress, "simulated", clients=clients))
        if engine != "inline":
            folder_of(app, f'engine="{engine}"')

        def emit(event: RunEvent) -> None:
            record.add(event, time.monotonic() - began)
            show(event)

        executor = stack.enter_context(
            make_executor(checked_engine(engine), loaded.app, clients, workers, clients_at_once)
        )
        simulation = Simulation(
            app=loaded.app,
            clients=clients,
            run_config=config,
            settings=chosen,
            drop=drop,
            seed=seed or 0,
            devices=parse_devices(str(devices), Network.parse(network), clients=clients, seed=seed or 0),
            clients_at_once=clients_at_once,
            executor=executor,
            policy=policy_of(policy, clients),
            state=None if state is None else Path(state),
            folder=files.path,
            initial=initial_model
            if isinstance(initial_model, ModelState | None)
            else open_initial(Path(initial_model)),
            emit=emit,
        )
        outcome = simulation.run()
        facts = None if loaded.in_memory else model_facts(simulation, record)
    return Run(
        app=loaded.app.name,
        clients=clients,
        record=record,
        model=outcome.state,
        results=simulation.results,
        run_config=config,
        settings=chosen.to_mapping(),
        facts=facts,
        files=files if files.holds_files() else None,
    )
