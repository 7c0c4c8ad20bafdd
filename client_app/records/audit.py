"""Report of `fedcore client audit`: every request to a client, its sums, its refusals and the epsilon spent.

It reads the ledger, which may grow meanwhile, and shows nothing that depends on the data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from client_app.output import clean
from client_app.records.journal import whole_lines
from client_app.records.ledger_entries import (
    LEDGER_FILE,
    EnteredEntry,
    Entry,
    LeaveEntry,
    RefusedEntry,
    TaskEntry,
    UploadEntry,
    WorkEntry,
    read_entries,
)
from client_app.records.offers import Offers
from client_app.records.plan_use import PlanUse, plan_use
from client_app.records.spending import SpentBudget, spent_by_run
from client_app.records.transcript import TRANSCRIPT_FILE, contributions_by_run
from client_app.records.transcript import read_entries as read_transcript
from fedcore.errors import ConfigurationError
from fedcore.federation import ClientKit
from fedcore.federation.admission.owner import AgreedSum, ids_from_text
from fedcore.monitoring.formatting import contribution_text, count_of, size, the_federation
from fedcore.system.terminal import escape
from fedcore.wire.uploads import NOTHING, Contribution, in_all

WORK: Final = "work"
"""The message type of background training, which is no exchange."""


@dataclass(slots=True, kw_only=True)
class AuditedExchange:
    """One exchange that the server asked for, and how it ended for this client."""

    run: str
    exchange: int
    at: float = 0.0
    """Seconds since 1970."""
    attempt: int = 1
    """Above 1 for a repeat of the exchange before, for which the app does not run again."""
    message_type: str = ""
    aggregation: str = ""
    app_sha256: str = ""
    model: str = ""
    """Its SHA-256, "" for none."""
    cohort: int = 0
    changed: dict[str, str] = field(default_factory=dict)
    """Config and settings that differ from the installed app's."""
    outcome: str = "asked"
    """"asked"; "entered" if it took part and agreed to no sum; "released" into a sum with `others`; "readable" if the
    server may have read the update itself; "refused", with the check and what it failed on."""
    others: int = 0
    check: str = ""
    subject: str = ""
    sent: str = ""
    """In which form an update began to leave, "" for none."""
    update_bytes: int = 0
    """Of that update."""
    up: int = 0
    """Bytes of all requests of this attempt; those of the update alone if the agent was ended in the middle of it."""
    down: int = 0
    """Bytes of their answers."""

    def follow(self, entry: Entry) -> None:
        """Apply a ledger entry about this exchange."""
        match entry:
            case TaskEntry():
                for name in set(TaskEntry.model_fields) - {"event", "run", "exchange"}:
                    setattr(self, name, getattr(entry, name))
            case EnteredEntry():
                self.at = entry.at or self.at
                self.outcome = "readable" if self.aggregation == "plain" else "entered"
            case AgreedSum():
                self.outcome, self.others = "released", len(ids_from_text(entry.survivors)) - 1
            case RefusedEntry():
                self.outcome = "released" if self.outcome == "released" else "refused"
                self.check, self.subject = entry.check, entry.subject
            case UploadEntry():
                self.sent, self.update_bytes = entry.form, entry.size
                self.up = max(self.up, entry.size)
            case LeaveEntry():
                self.up, self.down = max(entry.up, self.update_bytes), entry.down


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """The content of one client's ledger."""

    client: str
    federation: str
    exchanges: tuple[AuditedExchange, ...]
    """All attempts that the server asked for."""
    contributions: dict[str, Contribution]
    """What the client gave to each run."""
    apps: dict[str, str]
    """Names of the apps that ran here, by their hashes."""
    spending: SpentBudget
    plan: tuple[PlanUse, ...] = ()
    """What was asked of the installed app's study plan."""


def audit(kit: Path, state_dir: Path | None = None) -> Audit:
    """Read the ledger of a kit's client; raises ConfigurationError if there is none, or KitError."""
    loaded = ClientKit.load(kit)
    state = state_dir or loaded.folder / "state"
    path = state / LEDGER_FILE
    if not path.exists():
        raise ConfigurationError(
            f"{path} does not exist: either no server ever asked this client for anything, or --state-dir is wrong"
        )
    entries = read_ledger(path)
    exchanges = tuple(exchanges_of(entries))
    return Audit(
        client=loaded.name,
        federation=loaded.federation,
        exchanges=exchanges,
        contributions=site_contributions(state, loaded.client_id, exchanges),
        apps=dict(Offers(state).names()),
        spending=spent_by_run(entries, loaded.policy)[0],
        plan=plan_use(state, entries),
    )


def read_ledger(path: Path) -> tuple[Entry, ...]:
    """Read the complete lines of a ledger, which may grow meanwhile; raises ConfigurationError if one is damaged."""
    content = path.read_bytes()
    return tuple(read_entries(path, content[: whole_lines(content)]))


def site_contributions(state: Path, client: int, exchanges: Iterable[AuditedExchange]) -> dict[str, Contribution]:
    """What a client gave to each run (`fedcore.wire.uploads.Contribution`).

    Args:
        state: the agent's state folder; its copy of the transcript has the sums.
        client: its number.
        exchanges: its attempts; those whose updates the server may read are in no transcript.
    """
    path = state / TRANSCRIPT_FILE
    content = path.read_bytes() if path.exists() else b""
    runs = contributions_by_run(read_transcript(path, content[: whole_lines(content)]), client)
    for exchange in exchanges:
        if exchange.sent == "readable":
            gave = Contribution(exchanges=1, update_bytes=exchange.update_bytes)
            runs[exchange.run] = runs.get(exchange.run, NOTHING) + gave
    return runs


def exchanges_of(entries: Iterable[Entry]) -> list[AuditedExchange]:
    """The exchanges in the order of the requests; a repeat after a refusal is listed again."""
    listed: list[AuditedExchange] = []
    latest: dict[tuple[str, int], AuditedExchange] = {}
    for entry in entries:
        key = (entry.run, entry.exchange)
        if isinstance(entry, WorkEntry):  # for a sum to come: it has no number of its own
            listed.append(_work(entry))
            continue
        if key not in latest or (isinstance(entry, TaskEntry) and latest[key].outcome != "asked"):
            latest[key] = AuditedExchange(run=entry.run, exchange=entry.exchange)
            listed.append(latest[key])
        latest[key].follow(entry)
    return listed


def _work(entry: WorkEntry) -> AuditedExchange:
    facts = {name: getattr(entry, name) for name in ("run", "exchange", "at", "app_sha256", "model", "changed")}
    return AuditedExchange(message_type=WORK, aggregation="secure", **facts)


def audit_json(content: Audit) -> str:
    """Every exchange, the epsilon spent and what that promises, as JSON; an unbounded epsilon is null."""
    gave = {run: one.model_dump() for run, one in content.contributions.items()}
    return json.dumps({**asdict(content), "contributions": gave, "promise": content.spending.promise}, indent=2)


def print_audit(content: Audit, console: Console) -> None:
    """Print a row for each run, one for each kind of refusal, and the epsilon spent."""
    gave = contribution_text(in_all(content.contributions.values()))
    times = count_of(len(content.exchanges), "time")
    console.print(f"{content.client} of {the_federation(content.federation)}: asked {times}; {gave}")
    console.print(_runs(content))
    if any(exchange.check for exchange in content.exchanges):
        console.print(_refusals(content.exchanges))
    if content.plan:
        console.print(_plan(content.plan))
    spending = content.spending
    console.print(f"spent: {spending}; {spending.limit}")
    if spending.rows is not None:
        console.print(f"spent of each row: {spending.rows}")
    console.print(spending.promise)


def _runs(content: Audit) -> Table:
    table = _table("run", "app", "first asked", "asked for", "models", "exchanges", "updates", "with", "refused", "set")
    by_run: dict[str, list[AuditedExchange]] = {}
    for exchange in content.exchanges:
        by_run.setdefault(exchange.run, []).append(exchange)
    for run, own in by_run.items():
        kinds = Counter(exchange.message_type for exchange in own if exchange.message_type)
        repeats = Counter(exchange.message_type for exchange in own if exchange.attempt > 1)
        outcomes = Counter(exchange.outcome for exchange in own)
        others = [exchange.others for exchange in own if exchange.outcome == "released"]
        changed = {key: value for exchange in own for key, value in exchange.changed.items()}
        readable = f", {outcomes['readable']} readable" if outcomes["readable"] else ""
        gave = content.contributions.get(run, NOTHING)
        apps = dict.fromkeys(exchange.app_sha256 for exchange in own if exchange.app_sha256)
        table.add_row(
            _text(run[:16]),
            "\n".join(f"{_text(content.apps.get(app, ''))} {app[:8]}".lstrip() for app in apps) or "-",
            _time(min(exchange.at for exchange in own)),
            "\n".join(f"{count} {_text(kind)}{_again(repeats[kind])}" for kind, count in kinds.items()),
            str(len({exchange.model for exchange in own} - {""})),
            f"{gave.exchanges}{readable}",
            size(gave.update_bytes) if gave.update_bytes else "-",
            str(min(others)) if others else "-",
            str(outcomes["refused"]),
            "\n".join(f"{_text(key)}={_text(value)}" for key, value in changed.items()) or "-",
        )
    return table


def _plan(uses: Iterable[PlanUse]) -> Table:
    table = _table("study plan", "asks", "runs", "of", "queries")
    for use in uses:
        table.add_row(_text(use.name), _text(use.text), str(use.runs), str(use.allowed), str(use.queries))
    return table


def _refusals(exchanges: Iterable[AuditedExchange]) -> Table:
    table = _table("refused or failed", "on", "times", "last")
    kinds: dict[tuple[str, str], list[float]] = {}
    for exchange in exchanges:
        if exchange.check:
            kinds.setdefault((exchange.check, exchange.subject), []).append(exchange.at)
    for (check, subject), times in kinds.items():
        table.add_row(check, _text(subject) or "-", str(len(times)), _time(max(times)))
    return table


def _again(repeats: int) -> str:
    return f", {repeats} again" if repeats else ""


def _table(*titles: str) -> Table:
    """A table that a narrow terminal does not cut off."""
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold", no_wrap=title in ("first asked", "asked for", "last", "on"))
    return table


def _text(text: str) -> str:
    """Text of the server's choice: no control characters, no markup."""
    return escape(clean(text))


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds).astimezone():%Y-%m-%d %H:%M}" if seconds else "-"
