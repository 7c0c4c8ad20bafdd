"""The command `fedcore run`: submit a run, follow it, save its results."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from client_app.operator import completion as run_completion
from client_app.operator.client import OperatorClient, operator_client
from client_app.operator.following import Screen, follow, save_results
from client_app.operator.resolve_run import resolve_run
from client_app.operator.tracked import begin_tracking
from fedcore.cli.main import InitialModel, RunConfig, Settings, Tracks
from fedcore.errors import ConfigurationError, Refused, ServerUnreachable
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.monitoring.trackers import Track
from fedcore.run.settings import JobSettings
from fedcore.state import open_initial, sha256_file
from fedcore.system.assignments import override, parse_assignments
from fedcore.wire.operator import RunIn


def run(
    app: Annotated[
        Path | None, typer.Argument(metavar="[APP_DIR]", help="Folder of a Flower app; without it --resume.")
    ] = None,
    server: Annotated[str, typer.Option(help="URL of the server; by default the one in the operator's kit.")] = "",
    operator: Annotated[
        Path, typer.Option(envvar="FEDCORE_OPERATOR", help="The operator's kit: token, CA and the server's address.")
    ] = Path("federation/operator"),
    run_config: RunConfig = None,
    set_: Settings = None,
    out: Annotated[Path, typer.Option(help="Where to save the model; results and files go next to it.")] = Path(
        "model.safetensors"
    ),
    force: Annotated[bool, typer.Option("--force", help="Replace a file of that name.")] = False,
    initial_model: InitialModel = None,
    resume: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Resume a run that failed, was cancelled or interrupted, after its last exchange.",
            autocompletion=run_completion.runs,
        ),
    ] = "",
    detach: Annotated[bool, typer.Option("--detach", help="Submit, print the run's id, and do not follow.")] = False,
    connect_seconds: Annotated[float, typer.Option(help="How long to try to reach the server.")] = 30.0,
    track: Tracks = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines, then a summary.")] = False,
) -> None:
    """Submit a run as operator, follow it, and save the model and the app's results. Ctrl-C cancels the run.

    Example: fedcore run examples/digits --operator fed/operator --run-config num-server-rounds=5

    The first line is the run's id. The run continues without this command: if the terminal is lost, use fedcore runs
    attach.
    """
    _check_source(app, resume, run_config or [], set_ or [], initial_model)
    if not detach:
        check_out(out, force=force)
    from fedcore.monitoring.trackers import parse_tracks

    if detach and track:
        raise ConfigurationError("--track follows the run, and --detach does not; fedcore runs attach takes --track")

    options = RunOptions(
        app=app, resume=resume, run_config=run_config or [], settings=set_ or [], initial=initial_model
    )
    run_app(
        options,
        operator,
        server=server,
        out=out,
        connect_seconds=connect_seconds,
        detach=detach,
        as_json=as_json,
        tracks=parse_tracks(track),
    )


def _check_source(
    app: Path | None, resume: str, run_config: list[str], settings: list[str], initial_model: Path | None
) -> None:
    """Refuse two runs in one command, or none."""
    if app is None and not resume:
        raise ConfigurationError("name the folder of the app to run, or with --resume the run to resume")
    if resume and (app is not None or run_config or settings or initial_model is not None):
        raise ConfigurationError(
            "--resume continues with the app, the run config, the settings and the model that the run was submitted "
            "with; leave APP_DIR, --run-config, --set and --initial-model out"
        )


def check_out(out: Path, *, force: bool) -> None:
    """Refuse a path that no model can be saved to before hours of training."""
    from fedcore.monitoring.output_paths import OutputPaths

    OutputPaths.beside(out).check_free(force=force)


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
    submission = _submission(options)
    with made as client:
        run = _begin(client, options, submission)
        screen.begin(run)
        if detach:
            screen.note(f"the run continues without this command; to follow it: fedcore runs attach {run}")
            return
        with begin_tracking(client, run, tracks, screen) as tracking:
            try:
                record, final = follow(client, run, screen, sink=tracking)
            except KeyboardInterrupt:
                screen.note(f"cancelling run {run}")
                with contextlib.suppress(ServerUnreachable, Refused):
                    client.cancel(run)
                raise
            save_results(client, record, final, out, screen, tracking)


def _submission(options: RunOptions) -> RunIn | None:
    """The submission, checked as far as possible here; None to resume a run."""
    if options.app is None:
        return None
    submission = make_submission(
        options.app, parse_assignments(options.run_config), parse_assignments(options.settings)
    )
    if options.initial is None:
        return submission
    open_initial(options.initial)
    return submission.model_copy(update={"initial_model": sha256_file(options.initial)})


def _begin(client: OperatorClient, options: RunOptions, submission: RunIn | None) -> str:
    """Queue the run at the server; returns its id."""
    if submission is None:
        return client.resume(resolve_run(client, options.resume)).run
    if options.initial is not None:
        client.send_model(options.initial, submission.initial_model)
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
