"""`fedcore client`: run the agent of one kit."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import click
import typer

from client_app.agent import Agent
from client_app.eligibility import Eligibility
from client_app.exchange import Client, prepare_state_dir
from client_app.export import export
from client_app.ledger import Ledger, lock_folder
from client_app.output import Output
from client_app.ranks.elastic import ElasticGroup, serve_node
from client_app.ranks.failures import AppFailed
from client_app.ranks.group import GroupSettings, RankGroup
from client_app.ranks.group_size import GroupShape
from client_app.ranks.supervisor import LocalGroup
from client_app.transport import Transport, signer, tls_context
from fedcore.config import EngineConfig, parse_assignments
from fedcore.errors import AppError, ConfigurationError, EnvironmentFailure, FedcoreError
from fedcore.federation import ClientKit
from fedcore.flower.app import FlowerApp
from fedcore.flower.bundle import AppBundle
from fedcore.state import LOCAL_FOLDER
from fedcore.wire import Scalar

app = typer.Typer(add_completion=False)
app.command()(export)
INTERRUPTED: Final = 130
_MASK_THREADS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    kit: Path | None
    app: Path
    node_config: str = ""
    data_dir: Path | None = None
    state_dir: Path | None = None
    shape: GroupShape = field(default_factory=GroupShape)
    engine: Mapping[str, Scalar] = field(default_factory=dict)
    json: bool = False


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
        list[str] | None, typer.Option("--engine-set", metavar="K=V", help="Setting of the engine; repeatable.")
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
    try:
        options = Options(
            kit=kit,
            app=app_dir,
            node_config=node_config,
            data_dir=data_dir,
            state_dir=state_dir,
            shape=GroupShape(
                nproc_per_node=nproc_per_node, nnodes=nnodes, node_rank=node_rank, rdzv_endpoint=rdzv_endpoint
            ),
            engine=_engine(engine, engine_set or []),
            json=json,
        )
        status = asyncio.run(run(options) if node_rank == 0 else run_node(options))
    except FedcoreError as error:
        if isinstance(error, AppFailed):
            typer.echo(error.traceback.rstrip(), err=True)
        typer.secho(f"fedcore client: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(error.exit_code) from None
    raise typer.Exit(status)


async def run(options: Options) -> int:
    """Run the agent until a signal comes; returns the exit status. Raises FedcoreError."""
    if options.kit is None:
        raise ConfigurationError("--kit is missing: a folder that `fedcore provision` made for this client")
    kit = ClientKit.load(options.kit)
    settings = group_settings(kit, options)
    output = Output(name=kit.name, as_json=options.json)
    with lock_folder(kit.folder):
        state_dir = _prepared(_state_folder(options, kit))
        with Ledger(state_dir) as ledger:
            group = _group(settings, options.shape, output)
            transport = Transport(
                url=kit.server_url,
                tls=tls_context(kit.ca_file),
                sign=signer(kit),
                notice=lambda text: output.warning("waiting", text),
            )
            async with transport:
                client_ = Client(
                    kit=kit,
                    app_sha256=settings.app_sha256,
                    transport=transport,
                    work=group,
                    ledger=ledger,
                    state_dir=state_dir,
                    output=output,
                    threads=min(_MASK_THREADS, len(os.sched_getaffinity(0))),
                    eligibility=Eligibility.of(kit.policy.eligibility),
                )
                return await _until_signal(_serve(client_, group), output)


async def run_node(options: Options) -> int:
    """Run the ranks of a machine other than 0 until a signal comes; returns the exit status. Raises FedcoreError."""
    kit = ClientKit.load(options.kit) if options.kit is not None else None
    settings = group_settings(kit, options)
    output = Output(name=f"node-{options.shape.node_rank}", as_json=options.json)
    output.info("start", f"app {settings.app_sha256}")
    _warn(options.shape, output)
    return await _until_signal(serve_node(settings, options.shape, output), output)


def _group(settings: GroupSettings, shape: GroupShape, output: Output) -> RankGroup:
    _warn(shape, output)
    if shape.nnodes == 1:
        return LocalGroup(settings, output)
    return ElasticGroup(settings, output, shape=shape)


def _warn(shape: GroupShape, output: Output) -> None:
    if warning := shape.warning():
        output.warning("ranks", warning)


def group_settings(kit: ClientKit | None, options: Options) -> GroupSettings:
    """Check the installed app against the policy, and put together what the ranks need.

    Without a kit, on a machine other than 0, the ranks get identity and node config from there, and check that the
    app is the same.
    """
    FlowerApp.load(options.app)  # a broken pyproject.toml shows here, before anything is started
    sha256 = AppBundle.from_folder(options.app).sha256
    pinned = kit.policy.app_sha256 if kit is not None else None
    if pinned is not None and pinned != sha256:
        raise AppError(
            f"policy.toml agrees to the app {pinned[:12]}… only, {options.app} is {sha256}; install the agreed app, "
            "or change app-sha256"
        )
    shape = options.shape
    EngineConfig.from_mapping(options.engine, ranks=shape.nproc_per_node * shape.nnodes)
    if options.data_dir is not None and not options.data_dir.is_dir():
        raise ConfigurationError(f"--data-dir: there is no folder {options.data_dir}")
    return GroupSettings(
        app=options.app.resolve(),
        app_sha256=sha256,
        client_id=kit.client_id if kit is not None else 0,
        node_config={**(kit.node_config if kit is not None else {}), **_node_config(options.node_config)},
        data_dir=options.data_dir.resolve() if options.data_dir else None,
        local_folder=_state_folder(options, kit) / LOCAL_FOLDER if kit is not None else None,
        engine=options.engine,
        ranks=shape.nproc_per_node,
    )


async def _until_signal(work: Coroutine[Any, Any, None], output: Output) -> int:
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(work)
    caught: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        working.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await working
    except asyncio.CancelledError:
        output.info("stopped", f"by {caught[0].name}" if caught else "")
    return INTERRUPTED if signal.SIGINT in caught else 0


async def _serve(client_: Client, group: RankGroup) -> None:
    output = client_.output
    output.info("start", f"app {client_.app_sha256}, policy: {_policy_text(client_)}")
    try:
        await group.start()
        await Agent(client_).run()
    finally:
        await group.stop()


def _policy_text(client_: Client) -> str:
    policy = client_.kit.policy
    plain = ", plain aggregation allowed: the server may read updates" if policy.allow_plain else ""
    epsilon = f", epsilon at most {policy.max_epsilon:g} at delta {policy.delta:g}" if policy.max_epsilon else ""
    return f"at least {policy.min_cohort} clients, threshold at least {policy.min_threshold}{plain}{epsilon}"


def _node_config(text: str) -> dict[str, Scalar]:
    try:
        return _scalars(parse_assignments(shlex.split(text)), "--node-config")
    except ValueError:
        raise ConfigurationError(f"--node-config: unbalanced quotes in {text!r}") from None


def _engine(name: str, assignments: list[str]) -> dict[str, Scalar]:
    settings = _scalars(parse_assignments(assignments), "--engine-set")
    return {"engine": name, **settings} if name else settings


def _scalars(values: Mapping[str, Any], where: str) -> dict[str, Scalar]:
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise ConfigurationError(f"{where}: {key} must be a number, a string, true or false")
    return dict(values)


def _state_folder(options: Options, kit: ClientKit) -> Path:
    return (options.state_dir or kit.folder / "state").resolve()


def _prepared(folder: Path) -> Path:
    try:
        return prepare_state_dir(folder)
    except OSError as error:
        raise EnvironmentFailure(
            f"the state folder {folder} cannot be used ({error.strerror}); name another with --state-dir"
        ) from error


if __name__ == "__main__":
    app()
