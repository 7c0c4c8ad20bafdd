"""`fedcore.check`: find the errors that a deployment would report, before a run starts."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcore.api.arguments import data_folder, policy_of
from fedcore.api.findings import CheckReport, Findings
from fedcore.api.simulating import IN_TURN
from fedcore.comparison.judging import choose, known_by_name
from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.federation import Policy
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.admission.tasks import refused_choices
from fedcore.federation.policy import APP_MODEL
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.flower.node.config import share_of_client
from fedcore.flower.node.keys import absolute_paths, node_problems
from fedcore.monitoring.line_speed import LESS_OR_LONGER, LineSpeed, RoundTime
from fedcore.run.engine_config import EngineConfig
from fedcore.run.model_selection import laid_over
from fedcore.run.requirements import check_needs
from fedcore.run.settings import ROUNDS_KEY, JobSettings, planned_rounds
from fedcore.simulation.devices.network import KEY_TRIPS, PLAIN_TRIPS, SECURE_TRIPS
from fedcore.system.assignments import override
from fedcore.system.files import private_folder
from fedcore.wire.base import Scalar
from fedcore.wire.events import ClientDropped, ExchangeDone, RunEvent

if TYPE_CHECKING:
    from fedcore.flower.memory_app import AppLike

_EPOCHS = "local-epochs"
_LONGER = 1.05
"""The second round has a line of its own if it takes so many times as long as later ones."""


def check(
    app: AppLike,
    *,
    clients: int = 4,
    policy: Policy | str | Path | None = None,
    run_config: Mapping[str, Scalar] | None = None,
    settings: Mapping[str, Any] | None = None,
    data_dir: str | Path | None = None,
    dry_round: bool = True,
    first_model: bool = False,
    node_config: Mapping[str, Scalar] | None = None,
    line: str | None = None,
) -> CheckReport:
    """Find all errors that a run of `app` among `clients` clients would report.

    >>> import fedcore
    >>> fedcore.check("examples/digits", clients=4)
    fedcore-digits: nothing found that would go wrong among 4 clients

    By the functions that refuse in a deployment, so in its words.

    Args:
        policy: what the clients' owners insist on, as in `simulate`; None for stock policies, of which what a run
            decides (plain aggregation, run config, settings) is only a warning.
        data_dir: the folder with the data sets.
        dry_round: also one round in memory, in which the first client trains and tests; without it neither the strategy
            nor the data are looked at. Nothing is raised for a faulty app.
        first_model: also whether clients can derive the first model of a run, in two processes that take as long as the
            app's imports; an app of this process has none.
        node_config: of a real site, whose own data the round then trains on; None for a share of the data that clients
            of a simulation divide among themselves.
        line: of a site, as "2mbit,300ms" (its speed, and the time of a round trip): also what a round takes there, and
            whether the settings allow it. It needs the dry round. Raises ConfigurationError for another text.
    """
    findings = Findings()
    speed = LineSpeed.parse(line) if line is not None else None
    with IN_TURN, data_folder(data_dir), contextlib.ExitStack() as stack:
        loaded = _load(app, run_config or {}, findings, stack)
        if loaded is None:
            return _report(str(app) if isinstance(app, str | Path) else "the app", clients, findings, {})
        findings.folder = loaded.folder
        config = _config(loaded, run_config or {}, findings)
        values = laid_over(loaded.settings.to_mapping(), settings or {})
        chosen = collected_settings(values, "settings", findings, otherwise=loaded.settings)
        node = None if node_config is None else _site_node(loaded, node_config, findings)
        tried = dry_round and (node is not None or node_config is None)
        facts = _check(loaded, clients, policy, config, chosen, findings, node, dry_round=tried)
        if first_model and isinstance(app, str | Path) and not findings.errors:
            _check_first_model(loaded, clients, config, chosen, findings)
        times = {} if speed is None else _round_times(speed, facts, chosen, findings)
    return replace(_report(loaded.name, clients, findings, facts), times=times)


def _round_times(
    line: LineSpeed, facts: Mapping[str, Any], settings: JobSettings, findings: Findings
) -> dict[str, RoundTime]:
    """What the rounds take on a line; what the settings do not allow is noted."""
    if "model_bytes" not in facts:
        findings.warn("the line", "only the round in memory tells the size of the model, and so the time of a round")
        return {}
    secure, up = settings.aggregation == "secure", facts["bytes_up"]
    first_down, first_up = facts["first_bytes_down"], facts.get("first_bytes_up", up)
    later_down = second_down = facts["model_bytes"] * settings.download_bits // 32
    if line.is_slow and settings.download_bits == 32:
        second_down, later_down = (facts.get(key, later_down) for key in ("first_change_bytes", "change_bytes"))

    def expected(down: int, up: int) -> RoundTime:
        # Keys are agreed on while the model comes, if one comes.
        trips = SECURE_TRIPS + (0 if down else KEY_TRIPS) if secure else PLAIN_TRIPS
        return RoundTime.expected(line, down=down, up=up, trips=trips)

    times = {"first round": expected(first_down, first_up)}
    second, later = expected(second_down, up), expected(later_down, up)
    if second.seconds > _LONGER * later.seconds:
        times["second round"] = second
    times["later rounds"] = later
    slowest = max(seconds for time in times.values() for seconds in (time.download, time.upload))
    if slowest > settings.transfer_seconds:
        findings.error(
            "the line",
            f"the model or the update takes {slowest:.0f} s, and transfer-seconds = {settings.transfer_seconds:g} "
            f"allows less; {LESS_OR_LONGER}",
        )
    elif settings.slow_lines == "leave-out" and slowest > settings.step_seconds:
        findings.warn(
            "the line",
            f"the model or the update takes {slowest:.0f} s, longer than step-seconds = {settings.step_seconds:g}: "
            'with slow-lines = "leave-out" such a site is not asked while enough others are there',
        )
    return times


def _site_node(app: FlowerApp, values: Mapping[str, Scalar], findings: Findings) -> Mapping[str, Scalar] | None:
    """A site's node config, and what is remarkable about its table; None if it lacks what the app asks for."""
    from fedcore.data.table_remarks import remarks

    if problems := node_problems(app.node_keys, values, folder=Path.cwd()):
        for problem in problems:
            findings.error("the node config", problem)
        return None
    with findings.expecting("the table"):
        node = absolute_paths(app.node_keys, values, Path.cwd())
        schema = app.table_schema()
        if schema is not None and "csv" in node:
            for remark in remarks(schema, Path(str(node["csv"]))):
                findings.warn("the table", remark)
        return node
    return None


def _report(name: str, clients: int, findings: Findings, facts: Mapping[str, Any]) -> CheckReport:
    errors, warnings = tuple(findings.errors), tuple(findings.warnings)
    return CheckReport(app=name, clients=clients, errors=errors, warnings=warnings, facts=facts)


def _load(
    app: AppLike, run_config: Mapping[str, Scalar], findings: Findings, stack: contextlib.ExitStack
) -> FlowerApp | None:
    """The app, whose modules are imported again until `stack` ends; None if there is none."""
    from fedcore.flower.memory_app import fresh_modules, load_app

    with findings.expecting("the app"):
        if not isinstance(app, str | Path):
            return stack.enter_context(load_app(app, run_config)).app
        folder = Path(app).expanduser().absolute()
        loaded = FlowerApp.load(folder, settings_of=lambda values, where: collected_settings(values, where, findings))
        with findings.expecting("its files"):
            AppBundle.from_folder(folder)
        stack.enter_context(fresh_modules(loaded))
        return loaded
    return None


def collected_settings(
    values: Mapping[str, Any], where: str, findings: Findings, *, otherwise: JobSettings | None = None
) -> JobSettings:
    """Settings without those that are refused, each of which is noted, and with what two of them contradict.

    Args:
        otherwise: what is looked at where they contradict each other; None for the defaults.
    """
    good = dict(values)
    for key, value in values.items():
        try:
            JobSettings.from_mapping({key: value}, where=where)
        except ConfigurationError as error:
            # What one setting needs of another is asked of all of them together.
            if isinstance(error, UnknownKey) or str(error).startswith((f"{key} in ", f"{key} must", f"{key} names")):
                findings.error("settings", str(error))
                del good[key]
    try:
        return JobSettings.from_mapping(good, where=where)
    except ConfigurationError as error:
        findings.error("settings", str(error))
        return otherwise or JobSettings()


def _config(app: FlowerApp, values: Mapping[str, Scalar], findings: Findings) -> dict[str, Scalar]:
    config = dict(app.run_config)
    for key, value in values.items():
        with findings.expecting("run config"):
            config = override(config, {key: value}, "the run config")
    if "seed" not in config:
        findings.warn("run config", "it has no key 'seed', so no run can be repeated, and compare --seeds is refused")
    if planned_rounds(config) is None:
        findings.warn("run config", f"it has no key {ROUNDS_KEY!r}, so the number of remaining rounds is unknown")
    return config


def _check(
    app: FlowerApp,
    clients: int,
    policy: Policy | str | Path | None,
    config: dict[str, Scalar],
    settings: JobSettings,
    findings: Findings,
    node: Mapping[str, Scalar] | None,
    *,
    dry_round: bool,
) -> dict[str, Any]:
    """The checks that need a readable app, in the order in which a deployment comes to them; what is known of it."""
    owners = Policy.default(clients)
    with findings.expecting("policy"):
        owners = policy_of(policy, clients) or owners
    workable = _needs(settings, clients, owners, findings)
    note = findings.warn if policy is None else findings.error
    for refusal in refused_choices(config, settings, AppAgreement.of(app), owners, members=clients):
        note("the clients' policies", str(refusal))
    loads = _loads(app, clients, findings)
    if not loads or workable is None or not dry_round:
        return {}
    if owners.max_epsilon == 0:  # said above; what follows is asked as if it were allowed
        owners = replace(owners, allow_plain=True, allow_buffered=True)
    facts = _dry_round(app, clients, owners, config, workable, findings, node)
    if "model_bytes" in facts:
        derives = settings.aggregation == "secure" and owners.traces_models and APP_MODEL in owners.first_models
        facts["first_bytes_down"] = 0 if derives else facts["model_bytes"]
    return facts


def _needs(settings: JobSettings, clients: int, owners: Policy, findings: Findings) -> JobSettings | None:
    """Settings with which a round can be tried: those given, or without quorum and min-clients where they are refused.

    Each of the two is asked about alone as well, so that both are said. None if nothing helps.
    """
    loose = replace(settings, quorum=0, min_clients=0)
    for tried in (settings, replace(settings, quorum=0), replace(settings, min_clients=0), loose):
        try:
            check_needs(tried, clients, owners.min_cohort)
        except ConfigurationError as error:
            findings.error("clients", str(error))
        else:
            if tried is settings:
                return settings
    try:
        check_needs(loose, clients, owners.min_cohort)
    except ConfigurationError:
        return None
    return loose


def _loads(app: FlowerApp, clients: int, findings: Findings) -> bool:
    """Whether ClientApp and ServerApp can be loaded, and the former with this machine's engine."""
    from fedcore.flower.clientside import ClientRunner
    from fedcore.flower.serverside import load_server_app

    before = len(findings.errors)
    with findings.expecting("the ServerApp"):
        load_server_app(app)
    with findings.expecting("the ClientApp"):
        ClientRunner(app=app, client_id=1, node_config=share_of_client(1, clients), engine=EngineConfig())
    return len(findings.errors) == before


def _dry_round(
    app: FlowerApp,
    clients: int,
    owners: Policy,
    config: Mapping[str, Scalar],
    settings: JobSettings,
    findings: Findings,
    node: Mapping[str, Scalar] | None,
) -> dict[str, Any]:
    """One round with one epoch; what came to be known."""
    from fedcore.api.dry_round import DryRound, EnoughNodes
    from fedcore.flower.output import quiet_flower
    from fedcore.simulation.workers.executor import InlineExecutor

    quiet_flower()
    plain: dict[str, int] = {}
    short = {key: 1 if key in (ROUNDS_KEY, _EPOCHS) and type(value) is int else value for key, value in config.items()}

    def emit(event: RunEvent) -> None:
        if isinstance(event, ClientDropped):  # of a plain exchange, whose clients fail one by one
            findings.error("the ClientApp", event.reason)
        elif isinstance(event, ExchangeDone) and event.trains:
            plain.update(model_bytes=max(event.bytes_down.values()), bytes_up=max(event.bytes_up.values()))

    with contextlib.ExitStack() as stack, private_folder() as folder, findings.expecting("the strategy"):
        dry = DryRound(
            app=app,
            clients=clients,
            run_config=short,
            settings=settings,
            policy=owners,
            folder=folder,
            emit=emit,
            findings=findings,
            executor=None if node is None else stack.enter_context(InlineExecutor(app=app, clients=clients, node=node)),
        )
        with contextlib.suppress(EnoughNodes):
            dry.run()
        dry.reckon_room()
        dry.run_config = config
        dry.check_budget()
        _named_metrics(settings, dry.reported, findings)
        return {**plain, **dry.facts}
    return {}


def _check_first_model(
    app: FlowerApp, clients: int, config: Mapping[str, Scalar], settings: JobSettings, findings: Findings
) -> None:
    """A model that clients cannot derive, who take part in no secure run that begins with it."""
    from fedcore.flower.first_model.repeat import why_not_derived

    if settings.aggregation == "secure" and (reason := why_not_derived(app, clients, config, settings)):
        findings.warn("the first model", reason)


def _named_metrics(settings: JobSettings, reported: Mapping[str, Mapping[str, Any]], findings: Findings) -> None:
    """Metrics that settings name and no reply has, and those that say nothing of which model is better."""
    for kind, training in (("train", True), ("evaluate", False)):
        named = settings.metrics_of(training)
        if named is None or kind not in reported:
            continue
        for name in sorted({name for name, _ in named} - reported[kind].keys()):
            findings.error("metrics", f"{kind}-metrics names {name!r}, which the ClientApp does not report")
    names = reported.get("evaluate", {})
    if names and choose(None, known_by_name(names)) is None:
        findings.warn(
            "metrics",
            f"the app does not say whether more of {', '.join(sorted(names))} is better; to judge models by it, say "
            f"{min(names)}:max or {min(names)}:min",
        )
