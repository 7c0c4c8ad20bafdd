"""One run as its operator sees it: submitted, followed with its progress, its model saved."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape

from client_app.operator.client import OperatorClient, make_submission
from fedcore.config import parse_assignments
from fedcore.errors import BudgetSpent, Refused, RunFailed, ServerUnreachable
from fedcore.events import Recorded, RunOut
from fedcore.federation import OperatorKit
from fedcore.progress import PLAIN_WARNING, ProgressView, epsilon_line
from fedcore.record import RunRecord
from fedcore.wire import RunIn, RunStatus


def run_app(
    app: Path,
    operator: Path,
    *,
    server: str,
    run_config: Sequence[str],
    settings: Sequence[str],
    out: Path,
    connect_seconds: float,
    as_json: bool,
) -> None:
    """Do what `fedcore run` is asked to, with its output; raises FedcoreError."""
    kit = OperatorKit.load(operator)
    if server:
        kit = replace(kit, server_url=server.rstrip("/"))
    submission = make_submission(app, parse_assignments(run_config), parse_assignments(settings))
    with OperatorClient(kit, connect_seconds=connect_seconds) as client:
        record, final = _submit_and_follow(client, submission, as_json)
        summary = {"run": final.run, "app": final.app, **record.summary(), "model": None}
        if final.status is not RunStatus.FINISHED:
            if as_json:
                _print_summary(record, summary, as_json)
            raise RunFailed(f"run {final.run} {final.status}: {final.reason or 'no reason given'}")
        if final.model is not None:
            client.fetch_model(final.run, final.model, out)
            summary["model"] = str(out)
    _print_summary(record, summary, as_json)
    if final.reason:  # finished, but by its privacy budget
        raise typer.Exit(BudgetSpent.exit_code)


def _submit_and_follow(client: OperatorClient, submission: RunIn, as_json: bool) -> tuple[RunRecord, RunOut]:
    console = Console(stderr=as_json)
    record = RunRecord()
    state = client.submit(submission)
    run_id = state.run
    try:
        with ProgressView(console, "federated") as view:
            for state in client.follow(run_id):
                for event in state.events:
                    record.add(event.event, event.seconds)
                    _show(event, view, as_json)
    except KeyboardInterrupt:
        console.print(f"cancelling run {run_id}")
        with contextlib.suppress(ServerUnreachable, Refused):
            client.cancel(run_id)
        raise
    return record, state


def _show(event: Recorded, view: ProgressView, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(event.model_dump_json() + "\n")
        sys.stdout.flush()
    else:
        view.show(event.event)


def _print_summary(record: RunRecord, summary: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    console = Console()
    metrics = "  ".join(f"{name} {value:.4f}" for name, value in summary["metrics"].items() if isinstance(value, float))
    console.print(f"run {summary['run']}: {summary['rounds']} rounds, {escape(metrics)}", highlight=False)
    if summary["model"]:
        console.print(f"model saved to {escape(summary['model'])}", highlight=False, soft_wrap=True)
    if record.privacy is not None:
        line = epsilon_line(record.privacy, record.epsilon_spent() or 0.0)
        console.print(line, highlight=False, soft_wrap=True)
    if summary["aggregation"] == "plain":
        console.print(f"[yellow]{PLAIN_WARNING}[/]")
