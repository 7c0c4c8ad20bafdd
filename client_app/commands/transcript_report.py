"""Report of `fedcore transcript`: reads a copy or the server's transcript, checks it and prints its content."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.table import Table

from client_app.operator.client import OperatorClient
from client_app.output import clean
from client_app.records.journal import whole_lines
from client_app.records.offers import Offers
from client_app.records.spending import SpentBudget, spending_of
from client_app.records.transcript import TRANSCRIPT_FILE, read_entries
from fedcore.codec import release_of
from fedcore.codec.privacy import Release
from fedcore.errors import ConfigurationError, ProtocolViolation
from fedcore.federation import ClientKit, OperatorKit, Roster
from fedcore.federation.files import read_authority
from fedcore.federation.transcript import (
    TRANSCRIPT_FORK,
    Chain,
    ChainLink,
    SignedRecord,
    keys_of,
    record_hash,
    update_bytes_of,
)
from fedcore.monitoring.formatting import contribution_text, count_of, the_federation
from fedcore.system.terminal import escape
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import Contribution, contributions

STATE: Final = "state"
MOST_RUNS: Final = 200
"""Of the newest runs the server says how their apps are called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptSource:
    """Which transcript to read: exactly one of the first three."""

    copy: Path | None = None
    kit: Path | None = None
    operator: Path | None = None
    authority: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeLine:
    """One exchange in the report; `epsilon` is that of this sum alone, None without noise."""

    record: str
    run: str
    exchange: int
    round: int
    message_type: str
    model: str | None
    app: str
    roster: int
    cohort: int
    survivors: int
    signers: list[int]
    complete: bool
    update_bytes: int
    """Of each survivor's update; 0 of an unfinished record."""
    epsilon: float | None


@dataclass(slots=True)
class TranscriptReport:
    """The content of a transcript, up to the first record that fails a check."""

    federation: str = ""
    anchor: str = ""
    """The record after which it begins, "" for all of it."""
    lines: list[ExchangeLine] = field(default_factory=list)
    open: list[tuple[tuple[str, str], str]] = field(default_factory=list)
    """Records that the copy's client signed and that are not in the chain yet.

    Hashes if complete and if unfinished, and the draw of the group.
    """
    releases: dict[str, list[Release | None]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    """Of the members, by their numbers."""
    apps: dict[str, str] = field(default_factory=dict)
    """Names of apps that this machine knows, by their hashes."""
    updates: dict[str, list[dict[int, int]]] = field(default_factory=dict)
    """Of each run's records the bytes of the updates in their sums, by client."""

    def know(self, rosters: Iterable[Roster]) -> list[Roster]:
        """Take the names of these rosters' members, and return the rosters."""
        listed = list(rosters)
        for roster in listed:
            self.names |= roster.names
        return listed

    def contributions(self, run: str) -> dict[str, Contribution]:
        """What each site gave to a run, by name."""
        by_name = ({self.names.get(i, f"client {i}"): size for i, size in one.items()} for one in self.updates[run])
        return contributions(by_name)

    def add(self, task: Task, signed: SignedRecord, name: str, delta: float) -> None:
        """Add a checked record."""
        release = release_of(task.encoding) if task.encoding is not None else None
        self.federation = signed.record.federation
        self.releases.setdefault(task.run, []).append(release)
        updates = update_bytes_of(signed)
        self.updates.setdefault(task.run, []).append(updates)
        self.lines.append(
            ExchangeLine(
                record=name,
                run=task.run,
                exchange=task.exchange,
                round=task.server_round,
                message_type=task.message_type,
                model=task.model.sha256 if task.model else None,
                app=task.app_sha256,
                roster=task.roster,
                cohort=len(task.cohort),
                survivors=len(signed.record.survivors),
                signers=sorted(signed.signatures),
                complete=signed.complete,
                update_bytes=max(updates.values(), default=0),
                epsilon=_spending([release], delta).epsilon,
            )
        )

    def runs(self, delta: float) -> dict[str, SpentBudget]:
        """The budget that each run spent, for a client in all of its exchanges."""
        return {run: _spending(releases, delta) for run, releases in self.releases.items()}

    def spending(self, delta: float) -> SpentBudget:
        """The budget that all runs spent, for a client in all exchanges."""
        return _spending((release for run in self.releases.values() for release in run), delta)


def report(source: TranscriptSource, *, delta: float, every: bool, as_json: bool) -> None:
    """Check a transcript and print its content; raises FedcoreError, ProtocolViolation if a check fails."""
    findings = TranscriptReport()
    try:
        _check(source, findings, delta)
    except ProtocolViolation as error:
        if not as_json:
            _print(findings, delta, every)
            raise
        _print_json(findings, delta, error)
        raise typer.Exit(error.exit_code) from None
    if as_json:
        _print_json(findings, delta, None)
    else:
        _print(findings, delta, every)
        typer.echo("all links and signatures are valid")


def _check(source: TranscriptSource, findings: TranscriptReport, delta: float) -> None:
    sources = [path for path in (source.copy, source.kit, source.operator) if path is not None]
    if len(sources) != 1:
        raise ConfigurationError("name one transcript: a PATH, --kit KIT or --operator KIT")
    if source.operator is not None:
        with OperatorClient(OperatorKit.load(source.operator)) as client:
            findings.apps = {run.app_sha256: run.app for run in client.list_runs(limit=MOST_RUNS).runs}
            _extend(Chain(), findings.know(client.rosters()), client.records(), findings, delta)
        return
    if source.kit is not None:
        kit = ClientKit.load(source.kit)
        findings.apps = dict(Offers(kit.folder / STATE).names())
        _check_copy(kit.folder / STATE / TRANSCRIPT_FILE, kit.authority, findings, delta)
        return
    if source.authority is None:
        raise ConfigurationError("--authority is missing: the authority.pub under whose rosters the copy is checked")
    path = sources[0] / TRANSCRIPT_FILE if sources[0].is_dir() else sources[0]
    _check_copy(path, read_authority(source.authority), findings, delta)


def _extend(
    chain: Chain, rosters: Iterable[Roster], records: Iterable[SignedRecord], findings: TranscriptReport, delta: float
) -> None:
    keys = keys_of(rosters)
    for signed in records:
        link, task = chain.extend(signed, keys)
        findings.add(task, signed, link.hash, delta)
        _note_position(link, findings)


def _check_copy(path: Path, authority: bytes, findings: TranscriptReport, delta: float) -> None:
    """Check a client's copy: its rosters, its chain, and that nothing that the client signed is missing."""
    if not path.exists():
        raise ConfigurationError(f"there is no transcript at {path}; a client has one after its first exchange")
    content = path.read_bytes()
    entries = list(read_entries(path, content[: whole_lines(content)]))
    rosters = [entry.roster for entry in entries if entry.roster is not None]
    for roster in findings.know(rosters):
        roster.verify(authority)
    findings.anchor = next((entry.hash for entry in entries if entry.event == "began"), "")
    chain = Chain(anchor=findings.anchor)
    for entry in entries:
        if entry.record is not None:
            outcome = entry.record.outcome(entry.record.announced())
            names = (record_hash(outcome, complete=True), record_hash(outcome, complete=False))
            group = entry.record.announced().group
            if (one := (names, group.draw if group else "")) not in findings.open:
                findings.open.append(one)
        if entry.linked is not None:
            _extend(chain, rosters, [entry.linked], findings, delta)


def _note_position(link: ChainLink, findings: TranscriptReport) -> None:
    """Note the position of a record; every record that the client signed before must have one, too.

    The groups of one draw come in any order.
    """
    findings.open = [(names, draw) for names, draw in findings.open if link.hash not in names]
    for (complete, _), draw in findings.open:
        if not draw or draw != link.draw:
            raise ProtocolViolation(
                TRANSCRIPT_FORK, f"the record {complete[:12]}…, which this client signed, is left out"
            )


def _spending(releases: Iterable[Release | None], delta: float) -> SpentBudget:
    """The budget of these sums; None is a sum without noise."""
    listed = list(releases)
    return spending_of((release for release in listed if release is not None), listed.count(None), delta=delta)


def _print_json(findings: TranscriptReport, delta: float, error: ProtocolViolation | None) -> None:
    document = {
        "holds": error is None,
        "check": error.check if error else "",
        "reason": str(error) if error else "",
        "federation": findings.federation,
        "anchor": findings.anchor,
        "delta": delta,
        "epsilon": findings.spending(delta).epsilon,
        "runs": [
            {
                "run": run,
                "exchanges": sum(map(bool, findings.updates[run])),
                "unfinished": len(findings.updates[run]) - sum(map(bool, findings.updates[run])),
                "contributions": {name: gave.model_dump() for name, gave in findings.contributions(run).items()},
                "epsilon": spending.epsilon,
            }
            for run, spending in findings.runs(delta).items()
        ],
        "exchanges": [asdict(line) for line in findings.lines],
        "open": len(findings.open),
    }
    typer.echo(json.dumps(document, indent=2))


def _print(findings: TranscriptReport, delta: float, every: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if findings.anchor:
        console.print(f"begins after the record {findings.anchor[:12]}…, which was accepted unchecked")
    if every and findings.lines:
        console.print(_table(findings.lines))
    for run, spending in findings.runs(delta).items():
        complete = sum(map(bool, findings.updates[run]))
        unfinished = len(findings.updates[run]) - complete
        more = f", and {count_of(unfinished, 'record')} without a sum" if unfinished else ""
        apps = _apps_of(findings, run)
        console.print(f"run {_text(run)}{apps}: {count_of(complete, 'exchange')}{more}, {spending}")
        for name, gave in sorted(findings.contributions(run).items()):
            console.print(f"  {_text(name)}: {contribution_text(gave)}")
    if findings.lines:
        console.print(f"a client in all of them: {findings.spending(delta)}")
    if findings.open:
        console.print(f"{len(findings.open)} records signed by this client are not in the chain yet")
    of = f" of {_text(the_federation(findings.federation))}" if findings.federation else ""
    console.print(f"{count_of(len(findings.lines), 'record')}{of}")


def _apps_of(findings: TranscriptReport, run: str) -> str:
    """The apps of a run, by name if this machine knows them; hashes stand next to the names."""
    apps = dict.fromkeys(line.app for line in findings.lines if line.run == run)
    names = [f"{_text(findings.apps.get(app, 'app'))} {app[:12]}" for app in apps]
    return f" ({', '.join(names)})"


def _table(lines: list[ExchangeLine]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("record", "run", "no.", "round", "type", "model", "roster", "in sum", "signed", "epsilon"):
        table.add_column(name, no_wrap=True)
    for line in lines:
        table.add_row(
            line.record[:8],
            _text(line.run[:8]),
            str(line.exchange),
            str(line.round),
            _text(line.message_type),
            (line.model or "none")[:8],
            str(line.roster),
            f"{line.survivors} of {line.cohort}",
            f"by {len(line.signers)}" if line.complete else "unfinished",
            f"{line.epsilon:.4g}" if line.epsilon is not None else "",
        )
    return table


def _text(text: str) -> str:
    """Text of the server's choice: no control characters, no markup."""
    return escape(clean(text))
