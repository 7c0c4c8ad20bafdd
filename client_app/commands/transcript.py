"""The commands `fedcore transcript verify` and `fedcore transcript show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="""Verify or list the sums of a federation: over whom, of which models, signed by whom.

    Example: fedcore transcript verify --kit federation/clients/client-1
    """,
)

Copy = Annotated[
    Path | None,
    typer.Argument(metavar="PATH", help="A transcript.jsonl, or the folder that holds it; with --authority."),
]
Kit = Annotated[Path | None, typer.Option(help="A client's kit, for the copy in its state folder.")]
Operator = Annotated[Path | None, typer.Option(help="The operator's kit, for the server's transcript.")]
Authority = Annotated[
    Path | None,
    typer.Option(help="The authority's public key, authority.pub of any kit, to check a copy without a kit."),
]
Delta = Annotated[float, typer.Option(min=1e-12, max=0.5, help="The delta at which epsilon is stated.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def verify(
    copy: Copy = None,
    kit: Kit = None,
    operator: Operator = None,
    authority: Authority = None,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Check links, signatures and rosters of a transcript, and print its runs.

    Example: fedcore transcript verify --operator federation/operator

    If a check fails, the command names it (transcript-forged, transcript-gap, transcript-fork, or a check of the
    rosters) and ends with status 3.
    """
    from client_app.commands.transcript_report import TranscriptSource, report

    source = TranscriptSource(copy=copy, kit=kit, operator=operator, authority=authority)
    report(source, delta=delta, every=False, as_json=as_json)


@app.command()
def show(
    copy: Copy = None,
    kit: Kit = None,
    operator: Operator = None,
    authority: Authority = None,
    delta: Delta = 1e-5,
    as_json: AsJson = False,
) -> None:
    """Verify a transcript, and list every exchange.

    Example: fedcore transcript show --kit federation/clients/client-1
    """
    from client_app.commands.transcript_report import TranscriptSource, report

    source = TranscriptSource(copy=copy, kit=kit, operator=operator, authority=authority)
    report(source, delta=delta, every=True, as_json=as_json)
