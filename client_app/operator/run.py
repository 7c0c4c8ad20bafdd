"""One run as its operator sees it: submitted, followed with its progress, its model saved."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import tenacity
import typer
from rich.console import Console
from rich.markup import escape

from client_app.http import may_pass, refusal, tls_context, unanswered
from client_app.operator.results import fetch_results
from fedcore.config import JobSettings, override, parse_assignments
from fedcore.errors import (
    BudgetSpent,
    FedcoreError,
    PeerError,
    Refused,
    RunFailed,
    ServerUnreachable,
    StorageFull,
    Unauthorized,
)
from fedcore.events import Recorded, RunOut
from fedcore.federation import OperatorKit, Roster
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.progress import PLAIN_WARNING, ProgressView, epsilon_line, metrics_text
from fedcore.record import RunRecord
from fedcore.results_home import Home, saved_lines, server_line
from fedcore.system.files import replacing
from fedcore.transcript import SignedRecord, TranscriptOut, record_hash
from fedcore.wire import ModelRef, RosterIn, RosterOut, RostersOut, RunFilesOut, RunIn, RunStatus, ServerOut

POLL_SECONDS = 20
FOLLOW_PAUSE = 0.2


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
        if final.model is not None:
            client.fetch_model(final.run, final.model, out)
            summary["model"] = str(out)
        fetch = partial(client.fetch_file, final.run)
        summary |= fetch_results(client.files(final.run), Home.beside(out), fetch)
        if final.status is not RunStatus.FINISHED:
            if as_json:
                _print_summary(record, summary, as_json)
            else:
                _print_lines(Console(), saved_lines(summary))
            raise RunFailed(f"run {final.run} {final.status}: {final.reason or 'no reason given'}")
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
    metrics = metrics_text(summary["metrics"])
    shown = [f"run {summary['run']}: {summary['rounds']} rounds, {metrics}", server_line(summary["results"])]
    _print_lines(console, [*filter(None, shown), *saved_lines(summary)])
    if record.privacy is not None:
        line = epsilon_line(record.privacy, record.epsilon_spent() or 0.0)
        console.print(line, highlight=False, soft_wrap=True)
    if summary["aggregation"] == "plain":
        console.print(f"[yellow]{PLAIN_WARNING}[/]")


def _print_lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        console.print(escape(line), highlight=False, soft_wrap=True)


def make_submission(app: Path, run_config: Mapping[str, Any], settings: Mapping[str, Any]) -> RunIn:
    """Check an app and its settings here, before anything is sent; raises ConfigurationError."""
    flower = FlowerApp.load(app)
    override(flower.run_config, run_config, "the run config")
    JobSettings.from_mapping({**flower.settings.to_mapping(), **settings}, where="--set")
    bundle = AppBundle.from_folder(app)
    return RunIn(
        app_sha256=bundle.sha256, files=dict(bundle.files), run_config=dict(run_config), settings=dict(settings)
    )


@dataclass(slots=True)
class OperatorClient:
    """The operator's side of the API: HTTPS with the kit's CA, and a bearer token."""

    kit: OperatorKit
    connect_seconds: float = field(default=30.0, kw_only=True)
    _http: httpx.Client = field(init=False)

    def __enter__(self) -> OperatorClient:
        self._http = httpx.Client(
            base_url=self.kit.server_url,
            headers={"Authorization": f"Bearer {self.kit.token}"},
            verify=tls_context(self.kit.ca_file),
            timeout=httpx.Timeout(60.0, read=POLL_SECONDS + 40.0),
            trust_env=False,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def submit(self, submission: RunIn) -> RunOut:
        """Hand in a run. The server may just be starting, so connecting is tried for a while."""
        return RunOut.model_validate_json(
            self._request("POST", "/v1/runs", json=submission.model_dump(mode="json")).content
        )

    def follow(self, run: str) -> Iterator[RunOut]:
        """The state of the run with its new events, again and again, until it has ended."""
        after = 0
        while True:
            answer = self._request("GET", f"/v1/runs/{run}", params={"after": after, "wait": POLL_SECONDS})
            state = RunOut.model_validate_json(answer.content)
            yield state
            if state.events:
                after = state.events[-1].seq
                # Events come in bursts; nobody needs them one request at a time.
                time.sleep(FOLLOW_PAUSE)
            elif state.status.final:
                return

    def cancel(self, run: str) -> None:
        """End the run."""
        self._request("POST", f"/v1/runs/{run}/cancel")

    def publish(self, chain: Sequence[Roster]) -> RosterOut:
        """Hand over the rosters that the server lacks; it checks them itself, and says by name what it refuses."""
        known = ServerOut.model_validate_json(self._request("GET", "/v1/clients").content).roster
        missing = RosterIn(rosters=[roster.to_json() for roster in chain if roster.version > known])
        if not missing.rosters:  # an older chain than the server's is refused by name, too
            missing = RosterIn(rosters=[chain[-1].to_json()])
        answer = self._request("PUT", "/v1/roster", json=missing.model_dump(mode="json"))
        return RosterOut.model_validate_json(answer.content)

    def rosters(self) -> list[Roster]:
        """Every roster of the federation, verified under the authority's key of the kit."""
        answer = RostersOut.model_validate_json(self._request("GET", "/v1/operator/rosters").content)
        return [Roster.received(text, self.kit.authority) for text in answer.rosters]

    def records(self) -> Iterator[SignedRecord]:
        """The server's transcript from its beginning, as the server tells it."""
        after, more = "", True
        while more:
            content = self._request("GET", "/v1/operator/transcript", params={"after": after}).content
            page = TranscriptOut.model_validate_json(content)
            yield from page.records
            more = page.more and bool(page.records)
            if more:
                last = page.records[-1].record
                after = record_hash(last.outcome(last.announced()), complete=page.records[-1].complete)

    def files(self, run: str) -> RunFilesOut:
        """What the ServerApp of a run that has ended left."""
        return RunFilesOut.model_validate_json(self._request("GET", f"/v1/runs/{run}/files").content)

    def fetch_file(self, run: str, path: str, sha256: str, out: Path) -> None:
        """Download one of these files to `out`, likewise."""
        self._download(f"/v1/runs/{run}/files/{quote(path)}", sha256, out)

    def fetch_model(self, run: str, model: ModelRef, out: Path) -> None:
        """Download the final model to `out`, which stays as it is unless the digest is the announced one."""
        self._download(f"/v1/runs/{run}/model", model.sha256, out)

    def _download(self, address: str, sha256: str, out: Path) -> None:
        digest = hashlib.sha256()
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                replacing(out, mode=0o600, durable=True) as file,
                self._http.stream("GET", address) as answer,
            ):
                _raise_problem(answer)
                for chunk in answer.iter_bytes(1 << 20):
                    digest.update(chunk)
                    file.write(chunk)
                if digest.hexdigest() != sha256:
                    raise PeerError(f"{address} did not come with the digest that the server announced")
        except OSError as error:
            raise StorageFull(f"cannot write {out}: {error.strerror}") from error
        except httpx.TransportError as error:
            raise self._failure(error) from error

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        retry = tenacity.Retrying(
            retry=tenacity.retry_if_exception(may_pass),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=3.0),
            stop=tenacity.stop_after_delay(self.connect_seconds),
            reraise=True,
        )
        try:
            answer: httpx.Response = retry(self._http.request, method, path, **arguments)
        except httpx.TransportError as error:
            raise self._failure(error) from error
        _raise_problem(answer)
        return answer

    def _failure(self, error: httpx.TransportError) -> FedcoreError:
        failure = unanswered(self.kit.server_url, error)
        if isinstance(failure, Unauthorized):
            return failure
        return ServerUnreachable(
            f"{failure}; is it running (fedcore server --federation DIR), and is the address right?"
        )


def _raise_problem(answer: httpx.Response) -> None:
    if not answer.is_success:
        raise refusal(answer.status_code, answer.read(), of="the operator's token")
