"""The commands `fedcore client` and `fedcore client export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def client(
    context: typer.Context,
    kit: Annotated[
        Path | None,
        typer.Option(help="This client's kit, a folder that `fedcore provision` made; required on machine 0."),
    ] = None,
    app_dir: Annotated[
        Path | None, typer.Option("--app", help="The Flower app that this client agrees to run; required.")
    ] = None,
    node_config: Annotated[
        str, typer.Option(metavar="'K=V ...'", help="Overrides of the kit's node config, as TOML values.")
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of data sets; the app finds it as FEDCORE_DATA.")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="The agent's ledger and temporary files.  \\[default: KIT/state]")
    ] = None,
    nproc_per_node: Annotated[int, typer.Option(help="Ranks on this machine, one for each GPU.")] = 1,
    nnodes: Annotated[int, typer.Option(help="Machines of this client.")] = 1,
    node_rank: Annotated[int, typer.Option(help="Which of them this is; 0 talks to the server.")] = 0,
    rdzv_endpoint: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the machines meet: an address of machine 0, a free port.")
    ] = "",
    engine: Annotated[str, typer.Option(help="Training engine of this site's ranks.  \\[default: the app's]")] = "",
    engine_set: Annotated[
        list[str] | None, typer.Option("--engine-set", metavar="'K=V ...'", help="Settings of the engine; repeatable.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Log one JSON object a line.")] = False,
) -> None:
    """Take part in the runs of a federation, with the data of this machine, until stopped.

    Example: fedcore client --kit federation/clients/client-1 --app examples/digits

    Eight GPUs in one machine: add --nproc-per-node 8. Two such machines: add --nnodes 2 --rdzv-endpoint 10.0.0.1:29400
    too, and on the second one run the same without --kit and with --node-rank 1.

    Ctrl-C or SIGTERM leaves an open round in good order; the exit status is then 130 for Ctrl-C and 0 for SIGTERM.
    A second signal ends it at once. What the kit's policy.toml does not allow is refused, whatever the server says.
    """
    if context.invoked_subcommand is not None:
        return
    no_kit = kit is None and node_rank == 0
    if no_kit or app_dir is None:  # not required by their types, since `fedcore client export` goes without
        raise click.MissingParameter(param_type="option", param_hint="'--kit'" if no_kit else "'--app'")
    from client_app.ranks.failures import AppFailed
    from client_app.ranks.group_size import GroupSize
    from client_app.startup import Options, engine_settings, start

    options = Options(
        kit=kit,
        app=app_dir,
        node_config=node_config,
        data_dir=data_dir,
        state_dir=state_dir,
        size=GroupSize(nproc_per_node=nproc_per_node, nnodes=nnodes, node_rank=node_rank, rdzv_endpoint=rdzv_endpoint),
        engine=engine_settings(engine, engine_set or []),
        json=json,
    )
    try:
        start(options)
    except AppFailed as error:
        typer.echo(error.traceback.rstrip(), err=True)
        raise


@app.command()
def export(
    kit: Annotated[Path, typer.Option(help="This client's kit.")],
    out: Annotated[Path, typer.Option(help="Save the model here, as safetensors; a file of that name is replaced.")],
    state_dir: Annotated[
        Path | None, typer.Option(help="The agent's state folder, where it is another.  \\[default: KIT/state]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the model is as JSON.")] = False,
) -> None:
    """Copy out the model that this client keeps for itself: its personal tensors, and the global ones of their round.

    Example: fedcore client export --kit federation/clients/client-1 --out model.safetensors

    The agent may run meanwhile. Only an app that keeps a model on the client has one to export.
    """
    from client_app.export import export_model

    typer.echo(export_model(kit, state_dir, out, as_json=as_json))
