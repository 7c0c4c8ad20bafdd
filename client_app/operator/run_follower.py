"""Display of a run while the operator follows it, and its results at the end."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer
from rich.console import Console

from client_app.operator.client import POLL_SECONDS, OperatorClient
from client_app.operator.download import fetch_results
from fedcore.cli.card import write_card_next_to
from fedcore.errors import BudgetSpent, FedcoreError, RunFailed
from fedcore.monitoring.formatting import contribution_text, count_of, size
from fedcore.monitoring.output_paths import OutputPaths, saved_lines, server_line
from fedcore.monitoring.progress import PLAIN_WARNING, ProgressView, ended_line, epsilon_line
from fedcore.monitoring.promise import promise_of
from fedcore.monitoring.run_record import RunRecord
from fedcore.monitoring.trackers import Track, TrackedRun, Tracking
from fedcore.system.terminal import escape, visible_json
from fedcore.system.tracing import trace_name
from fedcore.wire.events import EventSink, Recorded, RunOut, RunStarted, ignore
from fedcore.wire.operator import RunStatus
from fedcore.wire.uploads import in_all

LIVE_SECONDS: Final = 2.0
"""How long the server may hold a request for a live table."""
MOST_SITES: Final = 200
"""Most sites for which the live table shows the status of each; beyond that, the answers are too large."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Output of a run: text for a person, or JSON lines on standard output for a program."""

    as_json: bool

    @property
    def console(self) -> Console:
        """For text; standard error if standard output has the JSON."""
        return Console(stderr=self.as_json)

    def note(self, text: str) -> None:
        """Print a line for the person only."""
        self.console.print(escape(text), highlight=False, soft_wrap=True)

    def begin(self, run: str) -> None:
        """Print the first line: the run's id, and that of its trace."""
        if self.as_json:
            _write({"run": run, "trace_id": trace_name(run)})
        else:
            self.note(f"run {run}")


def follow(
    client: OperatorClient, run: str, screen: Screen, *, first: int = 1, sink: EventSink = ignore
) -> tuple[RunRecord, RunOut]:
    """Show a run until it ends; returns its record and its final state.

    Args:
        client: of the operator.
        run: its id.
        screen: where it is shown.
        first: number of the first event to show.
        sink: gets every event.
    """
    record = RunRecord()

    def away(why: str) -> None:
        end = "" if why.endswith("?") else "."
        screen.note(f"{why}{end} The run continues without this command, which reconnects once the server answers")

    with ProgressView(screen.console, "federated", live=not screen.as_json) as view:
        for state in client.follow(run, on_away=away, seconds=LIVE_SECONDS if view.live else POLL_SECONDS):
            for event in state.events:
                record.add(event.event, event.seconds)
                sink(event.event)
                if event.seq >= first:
                    _show(event, view, screen)
            if not state.events and state.position:
                view.wait(f"number {state.position} in the queue")
            if view.live and not state.status.final:
                _update_clients(client, run, view)
    return record, state


def _update_clients(client: OperatorClient, run: str, view: ProgressView) -> None:
    """Fetch the status of each site for the table, which otherwise shows what the events say."""
    if view.sites <= MOST_SITES:
        with contextlib.suppress(FedcoreError):
            view.hear(client.clients_of(run, once=True).clients)


def save_results(
    client: OperatorClient, record: RunRecord, final: RunOut, out: Path | None, screen: Screen, tracking: Tracking
) -> None:
    """Save the results of an ended run, and print a summary. Raises RunFailed, or Exit if its budget ended it.

    Args:
        client: of the operator.
        record: of the run.
        final: its final state.
        out: where the model is saved, None to save nothing.
        screen: where the summary is printed.
        tracking: gets the saved files.
    """
    summary = {"run": final.run, "app": final.app, **record.summary(), "model": None, "results": {}}
    if out is not None:
        if final.model is not None:
            client.fetch_model(final.run, final.model, out)
            summary["model"] = str(out)
            tracking.keep(out)
            summary["card"] = str(write_card_next_to(out, record, final.settings))
        summary |= fetch_results(
            client.files(final.run), OutputPaths.next_to(out), partial(client.fetch_file, final.run)
        )
    if final.status is not RunStatus.FINISHED:
        if screen.as_json:
            _write(summary)
        else:
            _print_lines(Console(), [*_checkpoint_line(final, out), *saved_lines(summary)])
        raise RunFailed(f"run {final.run} {final.status}: {final.reason or 'no reason given'}")
    _print_summary(record, summary, screen.as_json, str(final.settings.get("best-model", "")))
    if final.reason:  # finished, but by its privacy budget
        raise typer.Exit(BudgetSpent.exit_code)


def _checkpoint_line(final: RunOut, out: Path | None) -> list[str]:
    if final.model is None:
        return []
    rounds = "1 round is" if final.rounds == 1 else f"{final.rounds} rounds are"
    line = f"the model is a checkpoint: the run did not finish, {rounds} in it"
    return [line if out is not None else f"{line}; to download it: fedcore runs model {final.run}"]


def _show(event: Recorded, view: ProgressView, screen: Screen) -> None:
    if screen.as_json:
        sys.stdout.write(visible_json(event.model_dump_json()) + "\n")
        sys.stdout.flush()
    else:
        view.show(event.event, event.seconds)
        if isinstance(event.event, RunStarted) and event.event.aggregation == "secure":
            screen.note(promise_of(event.event.privacy))


def _print_summary(record: RunRecord, summary: Mapping[str, Any], as_json: bool, best_model: str) -> None:
    if as_json:
        _write(summary)
        return
    console = Console()
    ended = ended_line(f"run {summary['run']}", summary["rounds"], summary["metrics"], best_model=best_model)
    lines = [ended, server_line(summary["results"]), _updates_line(record), _traffic_line(record)]
    _print_lines(console, [*filter(None, lines), *saved_lines(summary)])
    if record.privacy is not None:
        line = epsilon_line(record.privacy, record.epsilon_spent() or 0.0)
        console.print(line, highlight=False, soft_wrap=True)
    if summary["aggregation"] == "plain":
        console.print(f"[yellow]{PLAIN_WARNING}[/]")


def _updates_line(record: RunRecord) -> str:
    """What the sites gave, in the figures that their owners and the transcript have too."""
    sites = record.contributions()
    if not sites:
        return ""
    each = {contribution_text(gave) for gave in sites.values()}
    who = count_of(len(sites), "site") if len(sites) > 1 else next(iter(sites))
    if len(each) == 1:
        return f"{who}, each {each.pop()}" if len(sites) > 1 else f"{who} {each.pop()}"
    gave = in_all(sites.values())
    return f"{who}, updates of {size(gave.update_bytes)}; each site's: fedcore runs show RUN"


def _traffic_line(record: RunRecord) -> str:
    """All bytes of the run, next to which those of its exchanges are named."""
    if record.traffic is None:
        return ""
    up, down = (sum(sizes.values()) for sizes in (record.traffic.bytes_up, record.traffic.bytes_down))
    own_up, own_down = (each * len(record.traffic.bytes_up) for each in record.bytes_per_client())
    return (
        f"the clients sent {size(up)} and received {size(down)} in all, of which exchanges took {size(own_up)} and "
        f"{size(own_down)}"
    )


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)


def _write(content: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(content) + "\n")
    sys.stdout.flush()


def begin_tracking(client: OperatorClient, run: str, tracks: Sequence[Track], screen: Screen) -> Tracking:
    """Open the trackers for a run of the server; without trackers it asks for nothing."""

    def warn(line: str) -> None:
        screen.note(f"warning: {line}")

    if not tracks:
        return Tracking(warn)
    state = client.state_of(run)
    tracked = TrackedRun(
        name=run,
        run=run,
        app=state.app,
        app_sha256=state.app_sha256,
        run_config=state.run_config,
        settings=state.settings,
        tags={"aggregation": state.aggregation},
    )
    return Tracking.begin(tracks, tracked, warn)
