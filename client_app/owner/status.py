"""Status of a client: activity, exchanges, refusals, traffic and budget, read from the records on disk.

It asks the server for nothing, and shows nothing that depends on the data: the ledger has none of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from client_app.commands.offers import both_bundles
from client_app.owner.hours import rules_text, windows
from client_app.owner.processing import read_processing, schema_of
from client_app.records.activity import Activity, StepsDone, is_running, read_activity, read_sandbox, read_steps
from client_app.records.audit import AuditedExchange, exchanges_of, read_ledger, site_contributions
from client_app.records.journal import whole_lines
from client_app.records.ledger_entries import LEDGER_FILE
from client_app.records.offers import Offers
from client_app.records.spending import SpentBudget, spending_of, spent_by_run
from client_app.records.transcript import TRANSCRIPT_FILE, read_entries
from fedcore.data.tables import TableSchema
from fedcore.errors import FedcoreError
from fedcore.federation import ClientKit
from fedcore.federation.files import read_certificate
from fedcore.federation.kits.identity import IDENTITY_FILE, next_identity
from fedcore.wire.uploads import NOTHING, Contribution


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """A run from this client's view; times are in seconds since 1970."""

    run: str
    first: float
    last: float
    apps: tuple[str, ...]
    """Their hashes."""
    kinds: dict[str, int]
    """How many tasks of each message type there were."""
    masked: int
    """Updates that began to leave masked."""
    readable: int
    """Updates that began to leave in a form that the server can read."""
    gave: Contribution
    """The exchanges whose sums have this client's update, and the bytes of these updates."""
    others: int | None
    """How many more clients those sums have, at least."""
    refused: int
    up: int
    """Bytes of all requests of the run's attempts."""
    down: int
    """Bytes of their answers."""
    spending: SpentBudget


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A reason for which exchanges were refused, or ended early; `last` is in seconds since 1970."""

    check: str
    subject: str
    times: int
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """Something that expires, and when; None if it does not expire by itself."""

    what: str
    ends: datetime | None
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An offered app; `difference` is its `AppDifference` to the installed one as JSON, None if unknown."""

    app: str
    approved: bool
    difference: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Apps:
    """The apps of a client, by their hashes. names: of those that ran here."""

    installed: str | None
    """The app that runs."""
    named: str | None
    """The app that `--app` names."""
    pinned: str | None
    """The only app that policy.toml allows."""
    approved: str | None
    approved_at: float | None
    names: Mapping[str, str]
    offers: tuple[Offer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPermission:
    """When the machine may train."""

    rules: str
    allowed: bool
    """Whether it may train now, by the clock and the agent's last reading."""
    why: str
    windows: tuple[tuple[datetime, datetime], ...]
    """In the next 24 hours, local time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptCopy:
    """The client's copy of the transcript."""

    path: str
    records: int
    own: int
    """How many records this client signed."""
    head: str
    """Hash of the last record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a client."""

    made: datetime
    """When it was read."""
    client: str
    federation: str
    servers: tuple[str, ...]
    kit: Path
    running: bool
    now: Activity | None
    steps: StepsDone | None
    """How far its local work is, if the app counts steps."""
    sandbox: str
    """What holds for user code since the agent's last start; "" if that is unknown."""
    runs: tuple[RunHistory, ...]
    refusals: tuple[Refusal, ...]
    spending: SpentBudget
    training: TrainingPermission
    expiries: tuple[Expiry, ...]
    apps: Apps
    policy: dict[str, Any]
    transcript: TranscriptCopy | None
    processing: Mapping[str, str]
    """What the owner filled in for the record of processing, by key."""
    table: TableSchema | None
    """The columns and the target that the installed app uses, if it says so."""
    members: tuple[str, ...]
    """Of the newest roster in the kit, this client among them."""
    roster: int
    """Its version."""
    former: tuple[str, ...]
    """Clients that left the federation, likewise."""


def read_status(folder: Path, state_dir: Path | None, *, at: datetime | None = None) -> Status:
    """Read the status of a kit's client; raises KitError, and ConfigurationError if a record is damaged.

    Args:
        folder: the kit.
        state_dir: the agent's state folder, by default the kit's.
        at: a time with its zone, by default the machine's local time.
    """
    kit = ClientKit.load(folder)
    state = state_dir or kit.folder / "state"
    at = at or datetime.now().astimezone()
    ledger = state / LEDGER_FILE
    entries = read_ledger(ledger) if ledger.exists() else ()
    exchanges = exchanges_of(entries)
    running, now = is_running(state), read_activity(state)
    spent, by_run = spent_by_run(entries, kit.policy)
    return Status(
        made=at,
        client=kit.name,
        federation=kit.federation,
        servers=kit.servers,
        kit=kit.folder,
        running=running,
        now=now,
        steps=read_steps(state, now) if running else None,
        sandbox=read_sandbox(state),
        runs=tuple(_runs(exchanges, by_run, kit.policy.delta, site_contributions(state, kit.client_id, exchanges))),
        refusals=tuple(_refusals(exchanges)),
        spending=spent,
        training=_training(kit, now if running else None, at),
        expiries=tuple(_expiries(kit)),
        apps=_apps(kit, state),
        policy=policy_facts(kit),
        transcript=_transcript(state),
        processing=read_processing(kit.folder),
        table=_table(state),
        members=tuple(member.name for member in kit.roster.members),
        roster=kit.roster.version,
        former=tuple(member.name for member in kit.roster.revoked),
    )


def _runs(
    exchanges: Iterable[AuditedExchange],
    spent: Mapping[str, SpentBudget],
    delta: float,
    gave: Mapping[str, Contribution],
) -> Iterable[RunHistory]:
    nothing = spending_of((), 0, delta=delta)
    by_run: dict[str, list[AuditedExchange]] = {}
    for exchange in exchanges:
        by_run.setdefault(exchange.run, []).append(exchange)
    for run, own in by_run.items():
        times = [exchange.at for exchange in own if exchange.at]
        forms = Counter(exchange.sent for exchange in own)
        yield RunHistory(
            run=run,
            first=min(times, default=0.0),
            last=max(times, default=0.0),
            apps=tuple(dict.fromkeys(exchange.app_sha256 for exchange in own if exchange.app_sha256)),
            kinds=dict(Counter(exchange.message_type for exchange in own if exchange.message_type)),
            masked=forms["masked"],
            readable=forms["readable"],
            gave=gave.get(run, NOTHING),
            others=min((exchange.others for exchange in own if exchange.outcome == "released"), default=None),
            refused=sum(bool(exchange.check) for exchange in own),
            up=sum(exchange.up for exchange in own),
            down=sum(exchange.down for exchange in own),
            spending=spent.get(run, nothing),
        )


def _refusals(exchanges: Iterable[AuditedExchange]) -> Iterable[Refusal]:
    kinds: dict[tuple[str, str], list[float]] = {}
    for exchange in exchanges:
        if exchange.check:
            kinds.setdefault((exchange.check, exchange.subject), []).append(exchange.at)
    for (check, subject), times in kinds.items():
        yield Refusal(check=check, subject=subject, times=len(times), last=max(times))


def _training(kit: ClientKit, now: Activity | None, at: datetime) -> TrainingPermission:
    rules = kit.policy.eligibility
    hours = tuple(windows(rules, at))
    in_hours = bool(hours) and hours[0][0] <= at < hours[0][1]
    why = "" if in_hours else f"outside {', '.join(map(str, rules.train_hours))}"
    if now is not None and now.doing == "not eligible":  # the agent has measured power and load as well
        why = now.why
    return TrainingPermission(rules=rules_text(rules), allowed=not why, why=why, windows=hours)


def _expiries(kit: ClientKit) -> Iterable[Expiry]:
    if kit.ca_file is not None:
        ends = read_certificate(kit.ca_file).not_valid_after_utc
        yield Expiry(
            what=f"certificate authority ({kit.ca_file.name})", ends=ends, note="it signs the server's certificate"
        )
    waits = next_identity(kit.folder) is not None
    renewed = "a new one waits for the authority" if waits else "to replace it: fedcore client enroll --rotate"
    note = f"valid for as long as the federation's roster names it (now version {kit.roster.version}); {renewed}"
    yield Expiry(what=f"this client's key ({IDENTITY_FILE})", ends=None, note=note)


def _apps(kit: ClientKit, state: Path) -> Apps:
    offers = Offers(state)
    installed, approval = offers.installed(), offers.approval()
    agreed = approval.app if approval is not None else None
    others = [sha256 for sha256 in offers.hashes() if installed is None or sha256 != installed.app]
    return Apps(
        installed=installed.app if installed else None,
        named=installed.named if installed else None,
        pinned=kit.policy.app_sha256,
        approved=agreed,
        approved_at=approval.at if approval else None,
        names=offers.names(),
        offers=tuple(
            Offer(app=sha256, approved=sha256 == agreed, difference=_difference(offers, state, sha256))
            for sha256 in reversed(others)
        ),
    )


def _table(state: Path) -> TableSchema | None:
    installed = Offers(state).installed()
    try:
        return schema_of(state / "apps" / installed.app if installed else None)
    except FedcoreError:  # the agent says what is wrong with an app
        return None


def _difference(offers: Offers, state: Path, sha256: str) -> dict[str, Any] | None:
    try:
        return both_bundles(offers, state, sha256)[2].to_json()
    except (FedcoreError, OSError):
        return None


def policy_facts(kit: ClientKit) -> dict[str, Any]:
    """The owner's policy, with the keys of policy.toml."""
    policy = kit.policy
    named = {name.replace("_", "-"): getattr(policy, name) for name in policy.__slots__ if name != "eligibility"}
    rules = {key: list(value) if isinstance(value, tuple) else value for key, value in policy.allow_config.items()}
    first = list(policy.first_models)
    return {**named, "app-sha256": policy.app_sha256 or "", "allow-config": rules, "first-models": first}


def _transcript(state: Path) -> TranscriptCopy | None:
    path = state / TRANSCRIPT_FILE
    if not path.exists():
        return None
    content = path.read_bytes()
    entries = list(read_entries(path, content[: whole_lines(content)]))
    linked: Sequence[str] = [entry.hash for entry in entries if entry.event == "linked"]
    began = next((entry.hash for entry in entries if entry.event == "began"), "")
    return TranscriptCopy(
        path=str(path),
        records=len(linked),
        own=sum(entry.event == "signed" for entry in entries),
        head=linked[-1] if linked else began,
    )


def status_json(status: Status) -> str:
    """The status as JSON: times with their offset from UTC, an unbounded epsilon as null."""
    return TypeAdapter(Status).dump_json(status, indent=2).decode()
