"""The command `fedcore run`: submit a run, follow it, save its results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from client_app.operator import completion as run_completion
from fedcore.cli.main import InitialModel, RunConfig, Settings, Tracks
from fedcore.errors import ConfigurationError


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
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
    initial_model: InitialModel = None,
    statistics_from: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Take the statistics of columns from an earlier run, and ask no site for them: once members came or "
            "left, they cannot be asked again.",
            autocompletion=run_completion.runs,
        ),
    ] = "",
    resume: Annotated[
        str,
        typer.Option(
            metavar="RUN",
            help="Resume a run that failed, was cancelled or interrupted, after its last exchange.",
            autocompletion=run_completion.runs,
        ),
    ] = "",
    detach: Annotated[
        bool, typer.Option("--detach", help="Submit the run, print its id, and do not follow it.")
    ] = False,
    stream: Annotated[
        bool, typer.Option("--stream", help="Follow the run, as flwr run does with it; fedcore run always does.")
    ] = False,
    connect_seconds: Annotated[float, typer.Option(help="How long to try to reach the server.")] = 30.0,
    track: Tracks = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines, then a summary.")] = False,
) -> None:
    """Submit a run as operator, follow it, and save the model and the app's results. Ctrl-C cancels the run.

    Example: fedcore run examples/digits --operator fed/operator --run-config num-server-rounds=5

    The first line is the run's id. The run continues without this command: if the terminal is lost, use fedcore runs
    attach.
    """
    _check_source(app, resume, run_config or [], set_ or [], initial_model, statistics_from)
    if not detach:
        check_out(out, force=force)
    from fedcore.monitoring.trackers import parse_tracks

    if detach and stream:
        raise ConfigurationError("--stream follows the run, and --detach does not; leave one of them out")
    if detach and track:
        raise ConfigurationError("--track follows the run, and --detach does not; fedcore runs attach takes --track")

    from client_app.operator.run_submission import RunOptions, run_app

    options = RunOptions(
        app=app,
        resume=resume,
        run_config=run_config or [],
        settings=set_ or [],
        initial=initial_model,
        statistics_from=statistics_from,
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
    app: Path | None,
    resume: str,
    run_config: list[str],
    settings: list[str],
    initial_model: Path | None,
    statistics_from: str,
) -> None:
    """Refuse two runs in one command, or none."""
    if app is None and not resume:
        raise ConfigurationError("name the folder of the app to run, or with --resume the run to resume")
    if resume and (app is not None or run_config or settings or initial_model is not None or statistics_from):
        raise ConfigurationError(
            "--resume continues with the app, the run config, the settings, the model and the statistics that the run "
            "was submitted with; leave APP_DIR, --run-config, --set, --initial-model and --statistics-from out"
        )
    if initial_model is not None and statistics_from:
        raise ConfigurationError(
            "a run that begins with --initial-model has the statistics of that model; leave --statistics-from out"
        )


def check_out(out: Path, *, force: bool) -> None:
    """Refuse a path that no model can be saved to before hours of training."""
    from fedcore.monitoring.output_paths import OutputPaths

    OutputPaths.next_to(out).check_free(force=force)
