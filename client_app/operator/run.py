"""One run as its operator starts it: submitted, or taken up again, then followed, its model saved."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client_app.operator.client import OperatorClient, operator_client
from client_app.operator.finding import find_run
from client_app.operator.following import Screen, come_home, follow
from client_app.operator.tracked import begin_tracking
from fedcore.errors import Refused, ServerUnreachable
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.monitoring.trackers import Track
from fedcore.run.settings import JobSettings
from fedcore.state import open_initial, sha256_file
from fedcore.system.assignments import override, parse_assignments
from fedcore.wire.operator import RunIn


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What `fedcore run` is asked to do. app: the folder of the app that is submitted, or None to go on with `resume`.

    initial: the file of the model that the app's strategy starts from, None for its own.
    """

    app: Path | None
    resume: str = ""
    run_config: Sequence[str] = ()
    settings: Sequence[str] = ()
    initial: Path | None = None


def run_app(
    order: Order,
    operator: Path,
    *,
    server: str,
    out: Path,
    connect_seconds: float,
    detach: bool,
    as_json: bool,
    tracks: Sequence[Track] = (),
) -> None:
    """Do what `fedcore run` is asked to, with its output; raises FedcoreError."""
    made = operator_client(operator, server, connect_seconds)
    screen = Screen(as_json)
    submission = _submission(order)
    with made as client:
        run = _begin(client, order, submission)
        screen.begin(run)
        if detach:
            screen.note(f"it goes on without this command; to follow it: fedcore runs attach {run}")
            return
        with begin_tracking(client, run, tracks, screen) as tracking:
            try:
                record, final = follow(client, run, screen, sink=tracking)
            except KeyboardInterrupt:
                screen.note(f"cancelling run {run}")
                with contextlib.suppress(ServerUnreachable, Refused):
                    client.cancel(run)
                raise
            come_home(client, record, final, out, screen, tracking)


def _submission(order: Order) -> RunIn | None:
    """What is submitted, checked as far as that can be done here; None for a run that goes on."""
    if order.app is None:
        return None
    submission = make_submission(order.app, parse_assignments(order.run_config), parse_assignments(order.settings))
    if order.initial is None:
        return submission
    open_initial(order.initial)
    return submission.model_copy(update={"initial_model": sha256_file(order.initial)})


def _begin(client: OperatorClient, order: Order, submission: RunIn | None) -> str:
    """Have the server put the run in its queue; the run's id."""
    if submission is None:
        return client.resume(find_run(client, order.resume)).run
    if order.initial is not None:
        client.send_model(order.initial, submission.initial_model)
    return client.submit(submission).run


def make_submission(app: Path, run_config: Mapping[str, Any], settings: Mapping[str, Any]) -> RunIn:
    """Check an app and its settings here, before anything is sent; raises ConfigurationError."""
    flower = FlowerApp.load(app)
    override(flower.run_config, run_config, "the run config")
    JobSettings.from_mapping({**flower.settings.to_mapping(), **settings}, where="--set")
    bundle = AppBundle.from_folder(app)
    return RunIn(
        app_sha256=bundle.sha256, files=dict(bundle.files), run_config=dict(run_config), settings=dict(settings)
    )
