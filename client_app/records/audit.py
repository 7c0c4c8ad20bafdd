"""`fedcore client audit`: all that was ever asked of a client, what it released, refused and spent, for its owner.

It is read from the ledger, which may grow meanwhile, and shows nothing that came out of the data.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
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
from client_app.records.spending import SpentBudget, spent_by_run
from fedcore.errors import ConfigurationError
from fedcore.federation import ClientKit
from fedcore.federation.admission.owner import AgreedSum, ids_from_text
from fedcore.system.terminal import escape

WORK: Final = "work"
"""The message type of work for a later sum, which is no exchange."""


@dataclass(slots=True, kw_only=True)
class AuditedExchange:
    """One exchange that was offered, and how it ended for this client.

    at: seconds since 1970. attempt: above 1 where the exchange before was repeated, for which no app is run again.
    model: its SHA-256, "" for none. changed: config and settings other than the installed app's. outcome: "asked";
    "entered" where it took part and agreed to no sum; "released" into a sum with `others`; "readable" where the server
    may have read the update itself; "refused", with the check and what it failed on. up, down: bytes of an exchange
    that this client entered and left. sent: in which form an update began to leave, "" for none.
    """

    run: str
    exchange: int
    at: float = 0.0
    attempt: int = 1
    message_type: str = ""
    aggregation: str = ""
    app_sha256: str = ""
    model: str = ""
    cohort: int = 0
    changed: dict[str, str] = field(default_factory=dict)
    outcome: str = "asked"
    others: int = 0
    check: str = ""
    subject: str = ""
    sent: str = ""
    up: int = 0
    down: int = 0

    def follow(self, entry: Entry) -> None:
        """Take a line of the ledger that is about this exchange."""
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
                self.sent = entry.form
            case LeaveEntry():
                self.up, self.down = entry.up, entry.down


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What the ledger of one client says."""

    client: str
    federation: str
    exchanges: tuple[AuditedExchange, ...]
    spending: SpentBudget


def audit(kit: Path, state_dir: Path | None = None) -> Audit:
    """Read the ledger of the client whose kit this is; raises ConfigurationError where there is none, or KitError."""
    loaded = ClientKit.load(kit)
    path = (state_dir or loaded.folder / "state") / LEDGER_FILE
    if not path.exists():
        raise ConfigurationError(
            f"{path} does not exist: this client was never asked anything, or --state-dir is another"
        )
    entries = read_ledger(path)
    return Audit(
        client=loaded.name,
        federation=loaded.federation,
        exchanges=tuple(exchanges_of(entries)),
        spending=spent_by_run(entries, loaded.policy)[0],
    )


def read_ledger(path: Path) -> tuple[Entry, ...]:
    """The whole lines of a ledger, which may grow meanwhile; raises ConfigurationError where one is damaged."""
    content = path.read_bytes()
    return tuple(read_entries(path, content[: whole_lines(content)]))


def exchanges_of(entries: Iterable[Entry]) -> list[AuditedExchange]:
    """In the order in which they were asked; one that is asked for again, after a refusal, is listed again."""
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
    told = {name: getattr(entry, name) for name in ("run", "exchange", "at", "app_sha256", "model", "changed")}
    return AuditedExchange(message_type=WORK, aggregation="secure", **told)


def audit_json(found: Audit) -> str:
    """Every exchange, and what was spent; an epsilon without a bound as null."""
    return json.dumps(asdict(found), indent=2)


def print_audit(found: Audit, console: Console) -> None:
    """A row for each run, one for each kind of refusal, and what was spent."""
    console.print(f"{found.client} of {found.federation}: {len(found.exchanges)} exchanges asked for")
    console.print(_runs(found.exchanges))
    if any(exchange.check for exchange in found.exchanges):
        console.print(_refusals(found.exchanges))
    spending = found.spending
    console.print(f"spent: {spending}; {spending.limit}")


def _runs(exchanges: Iterable[AuditedExchange]) -> Table:
    table = _table("run", "first asked", "asked for", "models", "sums", "with", "refused", "set")
    by_run: dict[str, list[AuditedExchange]] = {}
    for exchange in exchanges:
        by_run.setdefault(exchange.run, []).append(exchange)
    for run, asked in by_run.items():
        kinds = Counter(exchange.message_type for exchange in asked if exchange.message_type)
        repeats = Counter(exchange.message_type for exchange in asked if exchange.attempt > 1)
        outcomes = Counter(exchange.outcome for exchange in asked)
        others = [exchange.others for exchange in asked if exchange.outcome == "released"]
        changed = {key: value for exchange in asked for key, value in exchange.changed.items()}
        readable = f", {outcomes['readable']} readable" if outcomes["readable"] else ""
        table.add_row(
            _text(run[:16]),
            _time(min(exchange.at for exchange in asked)),
            "\n".join(f"{count} {_text(kind)}{_again(repeats[kind])}" for kind, count in kinds.items()),
            str(len({exchange.model for exchange in asked} - {""})),
            f"{outcomes['released']}{readable}",
            str(min(others)) if others else "-",
            str(outcomes["refused"]),
            "\n".join(f"{_text(key)}={_text(value)}" for key, value in changed.items()) or "-",
        )
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
    """Nothing is cut off where the terminal is narrow."""
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold", no_wrap=title in ("first asked", "asked for", "last", "on"))
    return table


def _text(text: str) -> str:
    """Text of the server's choice: no control characters, no markup."""
    return escape(clean(text))


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}" if seconds else "-"
