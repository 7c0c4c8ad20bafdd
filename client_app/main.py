"""`fedcore client`: run the agent of one kit."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer

from client_app.agent import Agent
from client_app.exchange import Client, prepare_state_dir
from client_app.failures import AppFailed
from client_app.group import GroupSettings, RankGroup
from client_app.ledger import FolderLock, Ledger
from client_app.output import Output
from client_app.supervisor import LocalGroup
from client_app.transport import Transport, signer, tls_context
from fedcore.config import parse_assignments
from fedcore.errors import AppError, ConfigurationError, EnvironmentFailure, FedcoreError
from fedcore.federation import ClientKit
from fedcore.flower.app import FlowerApp
from fedcore.flower.bundle import AppBundle
from fedcore.wire import Scalar

app = typer.Typer(add_completion=False)
INTERRUPTED: Final = 130
_MASK_THREADS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    kit: Path
    app: Path
    node_config: str = ""
    data_dir: Path | None = None
    state_dir: Path | None = None
    json: bool = False


@app.command()
def client(
    kit: Annotated[Path, typer.Option(help="This client's kit, a folder that `fedcore provision` made.")],
    app_dir: Annotated[Path, typer.Option("--app", help="The Flower app that this client agrees to run.")],
    node_config: Annotated[
        str, typer.Option(metavar="'K=V ...'", help="Overrides of the kit's node config, as TOML values.")
    ] = "",
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of data sets; the app finds it as FEDCORE_DATA.")
    ] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="The agent's ledger and temporary files.  [default: KIT/state]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Log one JSON object a line.")] = False,
) -> None:
    """Take part in the runs of a federation, with the data of this machine, until stopped.

    Example: fedcore client --kit federation/clients/client-1 --app examples/digits

    Ctrl-C or SIGTERM leaves an open round in good order; the exit status is then 130 for Ctrl-C and 0 for SIGTERM.
    A second signal ends it at once. What the kit's policy.toml does not allow is refused, whatever the server says.
    """
    options = Options(kit=kit, app=app_dir, node_config=node_config, data_dir=data_dir, state_dir=state_dir, json=json)
    try:
        status = asyncio.run(run(options))
    except FedcoreError as error:
        if isinstance(error, AppFailed):
            typer.echo(error.traceback.rstrip(), err=True)
        typer.secho(f"fedcore client: {error}", err=True, fg=typer.colors.RED)
        raise typer.Exit(error.exit_code) from None
    raise typer.Exit(status)


async def run(options: Options) -> int:
    """Run the agent until a signal comes; returns the exit status. Raises FedcoreError."""
    kit = ClientKit.load(options.kit)
    settings = group_settings(kit, options)
    lock = FolderLock(kit.folder)
    state_dir = _state_dir(options.state_dir or kit.folder / "state")
    output = Output(name=kit.name, as_json=options.json)
    try:
        with Ledger(state_dir) as ledger:
            group = LocalGroup(settings, output)
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
                )
                return await _until_signal(client_, group)
    finally:
        lock.close()


def group_settings(kit: ClientKit, options: Options) -> GroupSettings:
    """Check the installed app against the policy, and put together what the ranks need."""
    FlowerApp.load(options.app)  # a broken pyproject.toml shows here, before anything is started
    sha256 = AppBundle.from_folder(options.app).sha256
    pinned = kit.policy.app_sha256
    if pinned is not None and pinned != sha256:
        raise AppError(
            f"policy.toml agrees to the app {pinned[:12]}… only, {options.app} is {sha256}; install the agreed app, "
            "or change app-sha256"
        )
    if options.data_dir is not None and not options.data_dir.is_dir():
        raise ConfigurationError(f"--data-dir: there is no folder {options.data_dir}")
    return GroupSettings(
        app=options.app.resolve(),
        app_sha256=sha256,
        client_id=kit.client_id,
        node_config={**kit.node_config, **_node_config(options.node_config)},
        data_dir=options.data_dir.resolve() if options.data_dir else None,
    )


async def _until_signal(client_: Client, group: RankGroup) -> int:
    loop = asyncio.get_running_loop()
    agent = asyncio.ensure_future(_serve(client_, group))
    caught: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        agent.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        await agent
    except asyncio.CancelledError:
        client_.output.info("stopped", f"by {caught[0].name}" if caught else "")
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
        values = parse_assignments(shlex.split(text))
    except ValueError:
        raise ConfigurationError(f"--node-config: unbalanced quotes in {text!r}") from None
    for key, value in values.items():
        if not isinstance(value, bool | int | float | str):
            raise ConfigurationError(f"--node-config: {key} must be a number, a string, true or false")
    return values


def _state_dir(folder: Path) -> Path:
    try:
        return prepare_state_dir(folder)
    except OSError as error:
        raise EnvironmentFailure(
            f"the state folder {folder} cannot be used ({error.strerror}); name another with --state-dir"
        ) from error


if __name__ == "__main__":
    app()
