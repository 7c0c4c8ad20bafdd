"""The commands `fedcore runs ...`: list, show, follow, stop and download runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from client_app.operator import completion as run_completion
from fedcore.cli import completion
from fedcore.cli.main import Tracks

if TYPE_CHECKING:
    from client_app.operator.client import OperatorClient

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="""List, show, follow, stop and download runs. RUN is an id, the beginning of one, or `last`.

    Example: fedcore runs list --operator federation/operator
    """,
)

Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="Id of a run, the beginning of one, or `last`.", autocompletion=run_completion.runs
    ),
]
Operator = Annotated[
    Path, typer.Option(envvar="FEDCORE_OPERATOR", help="The operator's kit: token, CA and the server's address.")
]
KIT = Path("federation/operator")
Server = Annotated[str, typer.Option(help="URL of the server; by default the one in the operator's kit.")]
Connect = Annotated[float, typer.Option(help="How long to try to reach the server.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Replace existing files.")]


@app.command("list")
def list_command(
    limit: Annotated[int, typer.Option(min=1, max=200, help="At most this many.")] = 20,
    before: Annotated[
        str,
        typer.Option(metavar="RUN", help="Only runs submitted before this one.", autocompletion=run_completion.runs),
    ] = "",
    status: Annotated[
        str,
        typer.Option(
            help="Only runs with this status: waiting, running, finished, failed, ...",
            autocompletion=completion.statuses,
        ),
    ] = "",
    operator: Operator = KIT,
    server: Server = "",
    connect_seconds: Connect = 30.0,
    as_json: AsJson = False,
) -> None:
    """List runs, the newest first: status, app, rounds, when each was submitted, how long it lasted, epsilon.

    Example: fedcore runs list --operator federation/operator --status running
    """
    from client_app.operator.runs import show_list

    with _client(operator, server, connect_seconds) as client:
        show_list(client, limit=limit, before=before, status=status, as_json=as_json)


@app.command()
def show(
    run: Run,
    operator: Operator = KIT,
    server: Server = "",
    connect_seconds: Connect = 30.0,
    as_json: AsJson = False,
) -> None:
    """Show one run: times, settings, model, and what each client does now.

    Example: fedcore runs show last --operator federation/operator
    """
    from client_app.operator.runs import show_run

    with _client(operator, server, connect_seconds) as client:
        show_run(client, run, as_json=as_json)


@app.command()
def attach(
    run: Run,
    first: Annotated[int, typer.Option("--from", metavar="N", min=1, help="Number of the first event to show.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(help="Save the model here at the end; results and files go next to it."),
    ] = None,
    force: Force = False,
    operator: Operator = KIT,
    server: Server = "",
    connect_seconds: Connect = 30.0,
    track: Tracks = None,
    as_json: AsJson = False,
) -> None:
    """Follow a run from its beginning, as `fedcore run` does. Ctrl-C does not stop the run.

    Example: fedcore runs attach last --operator federation/operator
    """
    if out is not None:
        from client_app.operator.run_command import check_out

        check_out(out, force=force)
    from client_app.operator.runs import attach_to
    from fedcore.monitoring.trackers import parse_tracks

    tracks = parse_tracks(track)
    with _client(operator, server, connect_seconds) as client:
        attach_to(client, run, first=first, out=out, as_json=as_json, tracks=tracks)


@app.command()
def stop(
    run: Run,
    operator: Operator = KIT,
    server: Server = "",
    connect_seconds: Connect = 30.0,
    as_json: AsJson = False,
) -> None:
    """Cancel a waiting or running run; its last checkpoint stays.

    Example: fedcore runs stop 3f2a --operator federation/operator
    """
    from client_app.operator.runs import stop_run

    with _client(operator, server, connect_seconds) as client:
        stop_run(client, run, as_json=as_json)


@app.command()
def model(
    run: Run,
    out: Annotated[Path, typer.Option(help="Where to save it.")] = Path("model.safetensors"),
    best: Annotated[
        bool, typer.Option("--best", help="Download the best model so far, by the run's setting best-model.")
    ] = False,
    force: Force = False,
    operator: Operator = KIT,
    server: Server = "",
    connect_seconds: Connect = 30.0,
    as_json: AsJson = False,
) -> None:
    """Download the final model of a run, or its last checkpoint, and say which of the two it is.

    Example: fedcore runs model last --out model.safetensors --operator federation/operator
    """
    from client_app.operator.download import check_free, fetch_best_model, fetch_model

    check_free(out, force=force)
    with _client(operator, server, connect_seconds) as client:
        (fetch_best_model if best else fetch_model)(client, run, out, as_json=as_json)


@app.command()
def logs(
    run: Run,
    app_only: Annotated[bool, typer.Option("--app", help="Print only the app's own output.")] = False,
    operator: Operator = KIT,
    server: Server = "",
    connect_seconds: Connect = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Print the events of a run so far, each with its time; `attach` also follows the later ones.

    Example: fedcore runs logs last --app --operator federation/operator
    """
    from client_app.operator.runs import print_logs

    with _client(operator, server, connect_seconds) as client:
        print_logs(client, run, app_only=app_only, as_json=as_json)


@app.command()
def export(
    run: Run,
    out: Annotated[
        Path | None,
        typer.Option(help="A folder, or an archive: .tar or .tar.gz.  \\[default: run-ID]"),
    ] = None,
    force: Force = False,
    operator: Operator = KIT,
    server: Server = "",
    connect_seconds: Connect = 30.0,
    as_json: AsJson = False,
) -> None:
    """Save a whole run in a folder or an archive: settings, events, results, files, model, transcript records.

    Example: fedcore runs export last --out run.tar.gz --operator federation/operator
    """
    from client_app.operator.download import export_run

    with _client(operator, server, connect_seconds) as client:
        export_run(client, run, out, force=force, as_json=as_json)


def _client(operator: Path, server: str, connect_seconds: float) -> OperatorClient:
    from client_app.operator.client import operator_client

    return operator_client(operator, server, connect_seconds)
