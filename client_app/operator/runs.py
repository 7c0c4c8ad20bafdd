"""Output of `fedcore runs`: a list, one run, its events."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console

from client_app.operator.client import OperatorClient
from client_app.operator.resolve_run import resolve_run
from client_app.operator.run_follower import Screen, begin_tracking, follow, save_results
from fedcore.errors import ConfigurationError
from fedcore.monitoring.event_lines import event_line
from fedcore.monitoring.formatting import contribution_text
from fedcore.monitoring.run_record import RunRecord
from fedcore.monitoring.trackers import Track
from fedcore.system.terminal import escape, visible, visible_json
from fedcore.wire.events import AppPrinted, RunOut
from fedcore.wire.operator import RunClientsOut, RunInfo, RunStatus
from fedcore.wire.uploads import NOTHING, Contribution

_HEADINGS = ("RUN", "STATUS", "APP", "ROUNDS", "SUBMITTED", "LASTED", "EPSILON")
_EVENTS = {"events"}


def show_list(client: OperatorClient, *, limit: int, before: str, status: str, as_json: bool) -> None:
    """Print the newest runs; raises ConfigurationError for an unknown status."""
    if status and status not in set(RunStatus):
        raise ConfigurationError(f"--status: {status!r} is unknown; choose one of {', '.join(RunStatus)}")
    page = client.list_runs(limit=limit, before=resolve_run(client, before) if before else "", status=status)
    if as_json:
        typer.echo(visible_json(page.model_dump_json(indent=2)))
        return
    rows = [_row(info, datetime.now(UTC)) for info in page.runs]
    _table([_HEADINGS, *rows] if rows else [])
    if page.more:
        typer.echo(f"older ones: fedcore runs list --before {page.runs[-1].run}")
    elif not rows:
        typer.echo("no runs")


def show_run(client: OperatorClient, word: str, *, as_json: bool) -> None:
    """Print one run, without its events."""
    run = resolve_run(client, word)
    state, clients = client.show(run), client.clients_of(run)
    gave = _contributions(state)
    if as_json:
        content = state.model_dump(mode="json", exclude=_EVENTS) | {
            "now": clients.model_dump(mode="json"),
            "contributions": {name: one.model_dump() for name, one in gave.items()},
        }
        typer.echo(json.dumps(content, indent=2))
        return
    console = Console()
    for name, value in _facts(state, datetime.now(UTC)):
        if value:
            console.print(f"{name:<10} {escape(value)}", highlight=False, soft_wrap=True)
    for line in _clients(clients, gave):
        console.print(escape(line), highlight=False, soft_wrap=True)


def attach_to(
    client: OperatorClient, word: str, *, first: int, out: Path | None, as_json: bool, tracks: Sequence[Track] = ()
) -> None:
    """Follow a run to its end; Ctrl-C leaves the run alone. Raises RunFailed as `fedcore run` does."""
    run, screen = resolve_run(client, word), Screen(as_json)
    screen.begin(run)
    with begin_tracking(client, run, tracks, screen) as tracking:
        try:
            record, final = follow(client, run, screen, first=first, sink=tracking)
        except KeyboardInterrupt:
            back, end = f"fedcore runs attach {run}", f"fedcore runs stop {run}"
            screen.note(f"run {run} continues; to come back: {back}, to cancel it: {end}")
            raise
        save_results(client, record, final, out, screen, tracking)


def stop_run(client: OperatorClient, word: str, *, as_json: bool) -> None:
    """Cancel a run, unless it has ended, and print its status."""
    run = resolve_run(client, word)
    before = client.state_of(run)
    if before.status.final:
        now, text = before, f"run {run} had ended already: {before.status}"
    else:
        client.cancel(run)
        now = client.state_of(run)
        text = f"run {run} {now.status}"
        if now.model is not None:
            text += f"; a checkpoint of {now.rounds} rounds is saved: fedcore runs model {run}"
    typer.echo(visible_json(now.model_dump_json(exclude=_EVENTS, indent=2)) if as_json else visible(text))


def print_logs(client: OperatorClient, word: str, *, app_only: bool, as_json: bool) -> None:
    """Print the events of a run so far."""
    for item in client.show(resolve_run(client, word)).events:
        if app_only and not isinstance(item.event, AppPrinted):
            continue
        moment = item.time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
        if as_json:
            line = visible_json(item.model_dump_json())
        elif app_only and isinstance(item.event, AppPrinted):
            line = f"{moment} {item.seq:>5}  {visible(item.event.line)}"
        else:
            line = f"{moment} {item.seq:>5}  {event_line(item.event)}"
        sys.stdout.write(line + "\n")


def _row(info: RunInfo, now: datetime) -> tuple[str, ...]:
    status = info.status.value + (f" (number {info.position})" if info.position else "")
    epsilon = "" if info.epsilon is None else f"{info.epsilon:.3f}"
    return info.run, status, info.app, str(info.rounds), _moment(info.submitted_at), _duration(info, now), epsilon


def _facts(state: RunOut, now: datetime) -> Iterator[tuple[str, str]]:
    yield "run", state.run
    yield "status", state.status.value + (f": {state.reason}" if state.reason else "")
    yield "queue", f"number {state.position}" if state.position else ""
    yield "app", f"{state.app} {state.app_sha256}"
    yield "mode", state.aggregation
    yield "submitted", _moment(state.submitted_at)
    yield "started", _moment(state.started_at)
    yield "ended", _moment(state.ended_at)
    yield "lasted", _duration(state, now)
    yield "rounds", str(state.rounds)
    yield "epsilon", "" if state.epsilon is None else f"{state.epsilon:.3f}"
    if state.model is not None:
        what = "final" if state.status is RunStatus.FINISHED else f"checkpoint of {state.rounds} rounds"
        yield "model", f"{what}, {state.model.size} bytes, sha256 {state.model.sha256}"
    yield "run config", " ".join(f"{key}={value}" for key, value in state.run_config.items())


def _contributions(state: RunOut) -> dict[str, Contribution]:
    """What each site gave, by its name."""
    record = RunRecord()
    for item in state.events:
        record.add(item.event, item.seconds)
    return record.contributions()


def _clients(now: RunClientsOut, gave: Mapping[str, Contribution]) -> Iterator[str]:
    if now.exchange:
        groups = f", in {now.groups} groups" if now.groups > 1 else ""
        yield f"exchange   {now.exchange}, round {now.server_round}{groups}, stage {now.stage}"
    for client in now.clients:
        own = contribution_text(gave.get(client.name, NOTHING))
        yield f"  {client.name:<24} {client.state:<10} {own}{f'; {client.why}' if client.why else ''}"
    state = "no member" if now.clients else ""  # of a run that is over the server names nobody
    for name in sorted(gave.keys() - {client.name for client in now.clients}):
        yield f"  {name:<24} {state:<10} {contribution_text(gave[name])}"


def _table(rows: Sequence[Sequence[str]]) -> None:
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _moment(time: datetime | None) -> str:
    return "" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _duration(info: RunInfo, now: datetime) -> str:
    """How long a run has been running: hours, minutes, seconds."""
    if info.started_at is None or (info.ended_at is None and info.status is not RunStatus.RUNNING):
        return ""
    seconds = round(((info.ended_at or now) - info.started_at).total_seconds())
    hours, rest = divmod(max(seconds, 0), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
