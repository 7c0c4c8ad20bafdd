"""The command `fedcore client` and its subcommands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

from fedcore.cli import completion
from fedcore.run.engine_config import ENGINES

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def client(
    context: typer.Context,
    kit: Annotated[
        Path | None,
        typer.Option(help="This client's kit; required on machine 0."),
    ] = None,
    app_dir: Annotated[
        Path | None, typer.Option("--app", help="The Flower app that this client agrees to run; required.")
    ] = None,
    node_config: Annotated[
        str, typer.Option(metavar="'K=V ...'", help="Overrides of the kit's node config, as TOML values.")
    ] = "",
    data_dir: Annotated[Path | None, typer.Option(help="Folder of data sets; the app gets it as FEDCORE_DATA.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="The agent's ledger and temporary files.  \\[default: KIT/state]")
    ] = None,
    nproc_per_node: Annotated[int, typer.Option(help="Ranks on this machine, one for each GPU.")] = 1,
    nnodes: Annotated[int, typer.Option(help="Machines of this client.")] = 1,
    node_rank: Annotated[int, typer.Option(help="Number of this machine; machine 0 talks to the server.")] = 0,
    rdzv_endpoint: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Rendezvous of the machines: an address of machine 0 with a free port."),
    ] = "",
    engine: Annotated[
        str,
        typer.Option(
            help=f"Training engine of this site's ranks: {', '.join(ENGINES)}.  \\[default: the app's]",
            autocompletion=completion.engines,
        ),
    ] = "",
    engine_set: Annotated[
        list[str] | None,
        typer.Option(
            "--engine-set",
            metavar="'K=V ...'",
            help="Settings of the engine; repeatable.",
            autocompletion=completion.engine_settings,
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME", help="An environment variable that the app sees; repeatable."),
    ] = None,
    read: Annotated[
        list[Path] | None,
        typer.Option("--read", metavar="PATH", help="A file or folder that the app may read; repeatable."),
    ] = None,
    sandbox: Annotated[
        bool, typer.Option(help="Keep the app away from other files and the network; turn it off only to debug.")
    ] = True,
    app_user: Annotated[
        str, typer.Option("--app-user", metavar="NAME", help="If root starts this: the user that the app runs as.")
    ] = "",
    gpu_uploads: Annotated[
        bool,
        typer.Option(
            help="Round and mask large uploads on a GPU if there is one; turn it off to leave the GPU to training."
        ),
    ] = True,
    json: Annotated[bool, typer.Option("--json", help="Log one JSON object a line.")] = False,
) -> None:
    """Take part in the runs of a federation, with the data of this machine, until stopped.

    Example: fedcore client --kit federation/clients/client-1 --app examples/digits

    With eight GPUs in one machine, add --nproc-per-node 8. With two such machines, also add --nnodes 2 --rdzv-endpoint
    10.0.0.1:29400, and on the second one run the same command with --node-rank 1 instead of --kit.

    Ctrl-C, SIGTERM or SIGHUP leaves an open round cleanly; the exit status is 130 for Ctrl-C and 0 otherwise. A second
    signal ends it at once. The client refuses everything that the kit's policy.toml does not allow.
    """
    if context.invoked_subcommand is not None:
        return
    no_kit = kit is None and node_rank == 0
    if no_kit or app_dir is None:  # not required by their types, since `fedcore client export` goes without
        raise click.MissingParameter(param_type="option", param_hint="'--kit'" if no_kit else "'--app'")
    from client_app.ranks.failures import AppFailed
    from client_app.ranks.group_size import GroupSize
    from client_app.startup import Options, engine_settings, start
    from fedcore.system.sandbox.sandbox import Rules

    options = Options(
        kit=kit,
        app=app_dir,
        node_config=node_config,
        data_dir=data_dir,
        state_dir=state_dir,
        size=GroupSize(nproc_per_node=nproc_per_node, nnodes=nnodes, node_rank=node_rank, rdzv_endpoint=rdzv_endpoint),
        engine=engine_settings(engine, engine_set or []),
        rules=Rules(
            variables=tuple(env or ()),
            read=tuple(path.absolute() for path in read or ()),
            confined=sandbox,
            user=app_user,
        ),
        gpu_uploads=gpu_uploads,
        json=json,
    )
    try:
        start(options)
    except AppFailed as error:
        from fedcore.system.terminal import visible

        typer.echo(visible(error.traceback.rstrip()), err=True)
        raise


@app.command()
def export(
    kit: Annotated[Path, typer.Option(help="This client's kit.")],
    out: Annotated[Path, typer.Option(help="Save the model here, as safetensors; replaces a file of that name.")],
    state_dir: Annotated[Path | None, typer.Option(help="The agent's state folder.  \\[default: KIT/state]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a description of the model as JSON.")] = False,
) -> None:
    """Save the client's personal model: its personal tensors, and the global ones of their round.

    Example: fedcore client export --kit federation/clients/client-1 --out model.safetensors

    The agent may run meanwhile. Only apps that keep a model on the client have one to export.
    """
    from client_app.commands.export import export_model

    typer.echo(export_model(kit, state_dir, out, as_json=as_json))


@app.command()
def offers(
    kit: Annotated[Path, typer.Option(help="This client's kit.")],
    state_dir: Annotated[Path | None, typer.Option(help="The agent's state folder.  \\[default: KIT/state]")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show every changed line.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the offers as JSON.")] = False,
) -> None:
    """List the apps that runs of the federation need, and how each differs from the installed one.

    Example: fedcore client offers --kit federation/clients/client-1 --diff

    The agent has downloaded their files; none of them runs before `fedcore client approve`.
    """
    from client_app.commands.offers import list_offers

    for line in list_offers(kit, state_dir, diff=diff, as_json=as_json):
        typer.echo(line)


@app.command()
def approve(
    sha256: Annotated[str, typer.Argument(metavar="SHA256", help="The app's hash, as `offers` shows it.")],
    kit: Annotated[Path, typer.Option(help="This client's kit.")],
    state_dir: Annotated[Path | None, typer.Option(help="The agent's state folder.  \\[default: KIT/state]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the approval as JSON.")] = False,
) -> None:
    """Approve an offered app, to run it instead of the installed one.

    Example: fedcore client approve SHA256 --kit federation/clients/client-1

    The hash covers every file of the app; read them first. A running agent switches to it between two exchanges.
    """
    from client_app.commands.offers import approve as agree
    from client_app.commands.offers import approved_text

    approval = agree(kit, state_dir, sha256)
    typer.echo(approval.model_dump_json() if as_json else approved_text(approval))


@app.command()
def status(
    kit: Annotated[Path, typer.Option(help="This client's kit.")],
    state_dir: Annotated[Path | None, typer.Option(help="The agent's state folder.  \\[default: KIT/state]")] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a document for the data protection officer: FILE.html, FILE.md or FILE.json."
        ),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Serve the status as a web page on this machine, until Ctrl-C.")
    ] = False,
    form: Annotated[
        bool,
        typer.Option("--form", help="Make KIT/processing.toml, to be filled in for the record of processing (GDPR)."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the status as JSON.")] = False,
) -> None:
    """Show the status of this client: agent, runs, refusals, bytes, epsilon, training hours, apps, certificates.

    Example: fedcore client status --kit federation/clients/client-1

    It reads the records on this machine's disk; the agent may run meanwhile. On the page you can approve offered apps
    after you have seen how they differ. The page's address works once.
    """
    from client_app.owner.status_command import StatusOptions, show_status

    show_status(kit, state_dir, StatusOptions(export=export, page=page, form=form, as_json=as_json))


@app.command()
def audit(
    kit: Annotated[Path, typer.Option(help="This client's kit.")],
    state_dir: Annotated[Path | None, typer.Option(help="The agent's state folder.  \\[default: KIT/state]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every exchange as JSON.")] = False,
) -> None:
    """Show every request to this client: runs, changed config, sums, refusals, and epsilon spent and left.

    Example: fedcore client audit --kit federation/clients/client-1

    The agent may run meanwhile.
    """
    from rich.console import Console

    from client_app.records.audit import audit as read
    from client_app.records.audit import audit_json, print_audit

    content = read(kit, state_dir)
    if as_json:
        typer.echo(audit_json(content))
    else:
        print_audit(content, Console(highlight=False))


@app.command()
def enroll(
    kit: Annotated[Path, typer.Argument(metavar="DIR", help="This client's kit.")],
    name: Annotated[str, typer.Option(help="Make a new kit with a new key, and a request to join as NAME.")] = "",
    accept: Annotated[Path | None, typer.Option(help="Complete the kit with the admission from the authority.")] = None,
    authority_fingerprint: Annotated[
        str, typer.Option(metavar="F", help="With --accept: the authority's fingerprint, from its owner.")
    ] = "",
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Make a new key, and a request to replace the old one.")
    ] = False,
    key: Annotated[
        str,
        typer.Option(
            metavar="pkcs11:...",
            help="With --name or --rotate: the URI of a key in a token, which is made there if it is missing.",
        ),
    ] = "",
    app: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="With --accept: the app; client.toml then says what it asks for of this site."
        ),
    ] = None,
    node_config: Annotated[
        str, typer.Option(metavar="'K=V ...'", help="With --accept: where this site's data are, as TOML values.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Join a federation with a key that never leaves this machine, or replace that key.

    Example: fedcore client enroll kit --name hospital-3

    Send the request to the federation's authority, tell it the fingerprint over a channel that you both trust, and
    complete the kit with the admission that you get back:
    fedcore client enroll kit --accept hospital-3.admission.json --authority-fingerprint F
    """
    if sum(map(bool, (name, accept, rotate))) != 1 or bool(accept) != bool(authority_fingerprint):
        raise click.UsageError(
            "use one of: --name NAME to ask, --accept FILE with --authority-fingerprint F to complete, --rotate for a "
            "new key"
        )
    from client_app.commands.enroll import complete, request

    if not accept:
        if app or node_config:
            raise click.UsageError("--app and --node-config belong to --accept, which completes the kit")
        typer.echo(request(kit, name, as_json, key=key))
        return
    if key:
        raise click.UsageError("--key belongs to --name or --rotate")
    typer.echo(complete(kit, accept, authority_fingerprint, as_json, app=app, node_config=node_config))
