"""One run of an operator: submitted or resumed, then followed, and its model saved."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client_app.operator.client import OperatorClient, operator_client
from client_app.operator.resolve_run import resolve_earlier, resolve_run
from client_app.operator.run_follower import Screen, begin_tracking, follow, save_results
from fedcore.errors import Refused, ServerUnreachable
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.monitoring.trackers import Track
from fedcore.run.settings import JobSettings
from fedcore.state import open_initial, sha256_file
from fedcore.system.assignments import override, parse_assignments
from fedcore.system.tracing import VARIABLE, open_traces
from fedcore.wire.operator import RunIn


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of `fedcore run`: which run to submit, or to resume."""

    app: Path | None
    """The folder of the app, or None to resume `resume`."""
    resume: str = ""
    run_config: Sequence[str] = ()
    settings: Sequence[str] = ()
    initial: Path | None = None
    """The file of the model that the app's strategy starts from, None for its own."""
    statistics_from: str = ""
    """The earlier run whose statistics of columns the run takes, "" to ask the clients."""


def run_app(
    options: RunOptions,
    operator: Path,
    *,
    server: str,
    out: Path,
    connect_seconds: float,
    detach: bool,
    as_json: bool,
    tracks: Sequence[Track] = (),
) -> None:
    """Carry out `fedcore run`, with its output; raises FedcoreError."""
    made = operator_client(operator, server, connect_seconds)
    screen = Screen(as_json)
    began = time.monotonic()
    submission = _submission(options)
    traces = open_traces("", service="fedcore-run", instance=socket.gethostname(), caller=os.environ.get(VARIABLE, ""))
    with closing(traces), made as client:
        client.traces = traces
        run = _begin(client, options, submission)
        began_following = time.monotonic()
        traces.record("submit", run, began=began, ended=began_following)
        screen.begin(run)
        if detach:
            screen.note(f"the run continues without this command; to follow it: fedcore runs attach {run}")
            return
        with begin_tracking(client, run, tracks, screen) as tracking:
            try:
                record, final = follow(client, run, screen, sink=tracking)
            except KeyboardInterrupt:
                cancel(client, run, screen)
                raise
            save_results(client, record, final, out, screen, tracking)
        traces.record("follow", run, began=began_following, ended=time.monotonic())


def cancel(client: OperatorClient, run: str, screen: Screen) -> None:
    """Cancel a run, and say what is left of it, or why it goes on."""
    screen.note(f"cancelling run {run}")
    try:
        client.cancel(run)
    except (ServerUnreachable, Refused) as error:
        screen.note(f"run {run} is not cancelled and goes on: {error}; later: fedcore runs stop {run}")
    else:
        screen.note(f"the model of its last round, if there is one: fedcore runs model {run}")


def _submission(options: RunOptions) -> RunIn | None:
    """The submission, checked as far as possible here; None to resume a run."""
    if options.app is None:
        return None
    return make_submission(
        options.app, parse_assignments(options.run_config), parse_assignments(options.settings), options.initial
    )


def _begin(client: OperatorClient, options: RunOptions, submission: RunIn | None) -> str:
    """Queue the run at the server; returns its id."""
    if submission is None:
        return client.resume(resolve_run(client, options.resume)).run
    return send_submission(client, submission, options.initial, options.statistics_from)


def send_submission(client: OperatorClient, submission: RunIn, initial: Path | None, statistics_from: str) -> str:
    """Queue a run at the server, its first model before it; returns its id.

    Args:
        submission: of `make_submission`.
        initial: the file that it was made with.
        statistics_from: word for the earlier run whose statistics it takes; "" for none.
    """
    if initial is not None:
        client.send_model(initial, submission.initial_model)
    if statistics_from:
        earlier = resolve_earlier(client, statistics_from)
        submission = submission.model_copy(update={"statistics_from": earlier})
    return client.submit(submission).run


def make_submission(
    app: Path, run_config: Mapping[str, Any], settings: Mapping[str, Any], initial: Path | None = None
) -> RunIn:
    """Check an app, its settings and the file of a first model here, before anything is sent.

    Raises ConfigurationError, and for the model what `open_initial` raises.
    """
    flower = FlowerApp.load(app)
    override(flower.run_config, run_config, "the run config")
    JobSettings.from_mapping({**flower.settings.to_mapping(), **settings}, where="--set")
    bundle = AppBundle.from_folder(app)
    if initial is not None:
        open_initial(initial)
    return RunIn(
        app_sha256=bundle.sha256,
        files=dict(bundle.files),
        run_config=dict(run_config),
        settings=dict(settings),
        initial_model="" if initial is None else sha256_file(initial),
    )
