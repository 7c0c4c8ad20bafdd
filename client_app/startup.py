"""Start of the agent, or of the ranks of a further machine, from the options of `fedcore client`."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from client_app.agent.agent import Agent
from client_app.agent.app_updates import AppUpdater
from client_app.exchange.client import Client
from client_app.exchange.eligibility import Eligibility
from client_app.exchange.first_model import DerivedModels
from client_app.exchange.models import prepare_state_dir
from client_app.exchange.update_encoder import describe_encoder
from client_app.http.errors import tls_context
from client_app.http.http_transport import HttpTransport, signer
from client_app.output import Output
from client_app.ranks.elastic import ElasticGroup, serve_node
from client_app.ranks.group import GroupSettings, RankGroup
from client_app.ranks.group_size import GroupSize
from client_app.ranks.jobs.group import JobGroup, job_name
from client_app.ranks.jobs.kubernetes import Kubernetes
from client_app.ranks.jobs.slurm import Slurm
from client_app.ranks.supervisor import LocalGroup
from client_app.records.activity import ActivityFile, StepsFile, note_sandbox
from client_app.records.ledger import Ledger, lock_folder
from client_app.records.ledger_entries import LEDGER_FILE
from client_app.records.offers import Offers
from client_app.records.pending_update import PendingUpdate
from client_app.records.plan_use import plan_lines
from client_app.records.result_cache import ResultCache
from client_app.records.sketch_seed import sketcher_of
from client_app.records.transcript import ClientTranscript
from fedcore.data.files import data_folder
from fedcore.errors import AppError, ConfigurationError, EnvironmentFailure
from fedcore.federation import ClientKit
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.kits.identity import IDENTITY_FILE, NEXT_IDENTITY_FILE
from fedcore.federation.kits.site_node import scalars, site_values
from fedcore.federation.kits.token_keys import pin_files
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.node.keys import checked_node
from fedcore.run.engine_config import EngineConfig
from fedcore.state import OWN_MODEL_FOLDER
from fedcore.system.assignments import parse_assignments
from fedcore.system.files import private_folder, remove_tree
from fedcore.system.memory import set_aside
from fedcore.system.sandbox.sandbox import Rules, describe, refuse_to_show
from fedcore.system.tracing import Traces, open_traces
from fedcore.system.workers.cores import granted_cores
from fedcore.wire.base import Scalar

_MASK_THREADS: Final = 4
_IN_JOBS: Final = "ranks run in jobs of a cluster; the log shows at the start of each job what holds on its nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `fedcore client`."""

    kit: Path | None
    app: Path
    node_config: str = ""
    data_dir: Path | None = None
    state_dir: Path | None = None
    size: GroupSize = field(default_factory=GroupSize)
    engine: Mapping[str, Scalar] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    gpu_uploads: bool = True
    json: bool = False


def engine_settings(name: str, assignments: Sequence[str]) -> dict[str, Scalar]:
    """Parse `--engine` and `--engine-set`; raises ConfigurationError."""
    settings = scalars(parse_assignments(assignments), "--engine-set")
    return {"engine": name, **settings} if name else settings


def start(options: Options) -> None:
    """Run the agent, or on a machine other than 0 its ranks, until a signal stops it.

    Raises FedcoreError, KeyboardInterrupt after Ctrl-C; returns after SIGTERM and SIGHUP.
    """
    asyncio.run(_run_agent(options) if options.size.node_rank == 0 else _run_node(options))


async def _run_agent(options: Options) -> None:
    if options.kit is None:
        raise ConfigurationError(
            "--kit is missing: the folder that `fedcore client enroll` or `fedcore provision` made for this client"
        )
    kit = ClientKit.load(options.kit)
    bundle, settings = group_settings(kit, options)
    output = Output(name=kit.name, as_json=options.json)
    with lock_folder(kit.folder):
        state_dir = _prepare(_state_folder(options, kit))
        with (
            Ledger(state_dir) as ledger,
            ClientTranscript(state_dir, kit.roster) as transcript,
            ResultCache(state_dir, partial(output.warning, "answer")) as results,
            closing(open_traces(kit.traces, service="fedcore-client", instance=kit.name)) as traces,
        ):
            offers = Offers(state_dir)
            bundle, settings = use_approved_app(bundle, settings, kit, offers, output)
            settings = _install(settings, bundle, state_dir)
            installed = FlowerApp.load(settings.app)
            node = checked_node(installed.node_keys, settings.node_config, folder=Path.cwd())
            settings = replace(settings, node_config=node)
            offers.note_name(settings.app_sha256, installed.name)
            for line in plan_lines(installed):
                output.info("plan", line.strip())
            group = (
                _group(settings, options.size, output)
                if kit.jobs is None
                else _job_group(kit, settings, state_dir, output)
            )
            group.on_progress, group.traces = StepsFile(state_dir).note, traces
            note_sandbox(state_dir, _sandbox(options.size, settings)[0] if kit.jobs is None else _IN_JOBS)
            transport = _transport(kit, output, traces)
            first_models = DerivedModels(state_dir, output, settings.rules)
            client_ = Client(
                kit=kit,
                app_sha256=settings.app_sha256,
                agreed=AppAgreement.of(installed),
                transport=transport,
                work=group,
                ledger=ledger,
                transcript=transcript,
                state_dir=state_dir,
                results=results,
                pending=PendingUpdate(state_dir),
                first_models=first_models,
                output=output,
                sketcher=sketcher_of(state_dir),
                threads=min(_MASK_THREADS, granted_cores()),
                gpu_uploads=options.gpu_uploads,
                trains_here=kit.jobs is None and options.size.nnodes == 1,
                eligibility=Eligibility.of(kit.policy.eligibility),
                traces=traces,
            )
            updater = AppUpdater(offers=offers, runner=group if options.size.nnodes == 1 else None)
            async with transport, aclosing(first_models):
                await _until_signal(_serve(client_, group, updater), output)


def _transport(kit: ClientKit, output: Output, traces: Traces) -> HttpTransport:
    return HttpTransport(
        urls=kit.servers,
        tls=tls_context(kit.ca_file),
        sign=signer(kit),
        notice=lambda text: output.warning("waiting", text),
        traces=traces,
    )


async def _run_node(options: Options) -> None:
    kit = ClientKit.load(options.kit) if options.kit is not None else None
    bundle, settings = group_settings(kit, options)
    output = Output(name=f"node-{options.size.node_rank}", as_json=options.json)
    output.info("start", f"app {settings.app_sha256}")
    _warn(options.size, settings, output)
    with private_folder() as folder:
        settings = replace(settings, app=bundle.install(folder / "apps"))
        await _until_signal(serve_node(settings, options.size, output), output)


def _group(settings: GroupSettings, size: GroupSize, output: Output) -> RankGroup:
    _warn(size, settings, output)
    if size.nnodes == 1:
        return LocalGroup(settings, output)
    return ElasticGroup(settings, output, size=size)


def _job_group(kit: ClientKit, settings: GroupSettings, state_dir: Path, output: Output) -> RankGroup:
    assert kit.jobs is not None  # noqa: S101 - the caller has looked
    launcher = Slurm(kit.jobs) if kit.jobs.launcher == "slurm" else Kubernetes(kit.jobs)
    name = job_name(state_dir, kit.name)
    return JobGroup(settings, output, jobs=kit.jobs, launcher=launcher, name=name)


def _warn(size: GroupSize, settings: GroupSettings, output: Output) -> None:
    if warning := size.warning():
        output.warning("ranks", warning)
    text, is_bad = _sandbox(size, settings)
    (output.warning if is_bad else output.info)("sandbox", text)


def _sandbox(size: GroupSize, settings: GroupSettings) -> tuple[str, bool]:
    return describe(settings.rules, network=size.nnodes > 1 or not settings.alone)


def group_settings(kit: ClientKit | None, options: Options) -> tuple[AppBundle, GroupSettings]:
    """Check the app against the policy; returns its files and the settings of the ranks.

    Without a kit, on a machine other than 0, the ranks get identity and node config from machine 0, and check that both
    run the same app.
    """
    app = FlowerApp.load(options.app)  # a broken pyproject.toml shows here, before anything is started
    bundle = AppBundle.from_folder(options.app)
    sha256 = bundle.sha256
    pinned = kit.policy.app_sha256 if kit is not None else None
    if pinned is not None and pinned != sha256:
        raise AppError(
            f"policy.toml agrees to the app {pinned[:12]}… only, {options.app} is {sha256}; install the agreed app, "
            "or change app-sha256"
        )
    size = options.size
    nodes = size.nnodes
    if kit is not None and kit.jobs is not None:
        nodes = kit.jobs.nodes
        if size.nnodes > 1 or options.rules.user:
            raise ConfigurationError(
                "--nnodes and --app-user are for ranks that this command starts; client.toml has a table [ranks], so "
                "they run in jobs: its key nodes says on how many machines",
                check="ranks-in-jobs",
            )
    EngineConfig.from_mapping(options.engine, ranks=size.nproc_per_node * nodes)
    if options.data_dir is not None and not options.data_dir.is_dir():
        raise ConfigurationError(f"--data-dir: there is no folder {options.data_dir}")
    settings = GroupSettings(
        app=options.app.resolve(),
        app_sha256=sha256,
        client_id=kit.client_id if kit is not None else 0,
        node_config=site_values(app.node_keys, kit, options.node_config),
        data_dir=_data_dir(options.data_dir),
        local_folder=_state_folder(options, kit) / OWN_MODEL_FOLDER if kit is not None else None,
        engine=options.engine,
        ranks=size.nproc_per_node,
        rules=options.rules,
        progress_seconds=kit.progress_seconds if kit is not None else 0.0,
    )
    if kit is not None:
        readable = settings.sandbox(Path(os.devnull), alone=True).read[1:]  # the app's own folder is not read
        keys = [kit.folder / IDENTITY_FILE, kit.folder / NEXT_IDENTITY_FILE]
        secrets = [keys[0], *pin_files(keys), _state_folder(options, kit) / LEDGER_FILE]
        refuse_to_show(readable, secrets, settings.rules)
    return bundle, settings


def _data_dir(named: Path | None) -> Path | None:
    """The folder for `fedcore.data`; by default its usual one, which the ranks cannot find by themselves."""
    folder = named or data_folder()
    return folder.resolve() if folder.is_dir() else None


def use_approved_app(
    bundle: AppBundle, settings: GroupSettings, kit: ClientKit, offers: Offers, output: Output
) -> tuple[AppBundle, GroupSettings]:
    """Replace the app of `--app` with the one that the owner approved for it, if any."""
    named, approval = bundle.sha256, offers.approval()
    if approval is not None and approval.instead_of == named != approval.app:
        pinned = kit.policy.app_sha256
        if pinned is not None and pinned != approval.app:
            raise AppError(f"policy.toml agrees to the app {pinned[:12]}… only, {approval.app} was approved after it")
        bundle = offers.bundle(approval.app)
        settings = replace(settings, app_sha256=bundle.sha256)
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(approval.at))
        output.warning("app", f"using the app {approval.app}, approved {when}, in place of {named} that --app names")
    elif approval is not None and approval.app != named:
        output.warning(
            "app", f"--app names {named}, which is newer than the approval of {approval.app}; the approval is void"
        )
        offers.withdraw_approval()
    offers.note_installed(named, bundle.sha256)
    return bundle, settings


def _install(settings: GroupSettings, bundle: AppBundle, state_dir: Path) -> GroupSettings:
    """Install the app in the state folder; returns the settings with the folders there."""
    app, scratch = bundle.install(state_dir / "apps"), state_dir / "scratch"
    if scratch.is_dir():
        remove_tree(scratch)
    scratch.mkdir(mode=0o700)
    return replace(settings, app=app, models=state_dir / "models", scratch=scratch)


async def _until_signal(work: Coroutine[Any, Any, None], output: Output) -> None:
    """Run `work` until SIGINT, SIGTERM or SIGHUP; the first signal cancels it, a second one cancels the clean-up.

    A terminal that closes sends SIGHUP; under nohup it is ignored.
    """
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(work)
    caught: list[signal.Signals] = []

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        working.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stop, number)
    try:
        await working
    except asyncio.CancelledError:
        output.info("stopped", f"by {caught[0].name}" if caught else "")
    if signal.SIGINT in caught:
        raise KeyboardInterrupt


async def _serve(client_: Client, group: RankGroup, updater: AppUpdater) -> None:
    output = client_.output
    output.info("start", f"app {client_.app_sha256}, policy: {_policy_text(client_)}")
    output.info("uploads", describe_encoder(gpu=client_.gpu_uploads))
    ActivityFile(client_.state_dir).note("starting")
    try:
        await group.start()
        set_aside()
        await Agent(client_, updater=updater).run()
    finally:
        await group.stop()


def _policy_text(client_: Client) -> str:
    policy = client_.kit.policy
    plain = ", plain aggregation allowed: the server may read updates" if policy.allow_plain else ""
    epsilon = f", epsilon at most {policy.max_epsilon:g} at delta {policy.delta:g}" if policy.max_epsilon else ""
    reported = ", failures are reported" if policy.report_failures else ""
    padded = f", uploads at multiples of {policy.pad_seconds:g} s" if policy.pad_seconds else ""
    least = f"at least {policy.min_cohort} clients, threshold at least {policy.min_threshold}"
    return f"{least}{plain}{epsilon}{reported}{padded}"


def _state_folder(options: Options, kit: ClientKit) -> Path:
    return (options.state_dir or kit.folder / "state").resolve()


def _prepare(folder: Path) -> Path:
    try:
        return prepare_state_dir(folder)
    except OSError as error:
        raise EnvironmentFailure(
            f"the state folder {folder} cannot be used ({error.strerror}); name another with --state-dir"
        ) from error
