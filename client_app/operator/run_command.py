"""`fedcore run`: submit a run as operator, follow it to its end, fetch the model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import ssl
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import httpx
import tenacity
import typer
from rich.console import Console
from rich.markup import escape

from client_app.handshake import certificate_failure
from fedcore.config import JobSettings, override, parse_assignments
from fedcore.errors import (
    BudgetSpent,
    ConfigurationError,
    FedcoreError,
    PeerError,
    Refused,
    RunFailed,
    ServerUnreachable,
    StorageFull,
    Unauthorized,
)
from fedcore.events import Recorded, RunOut
from fedcore.federation import OperatorKit
from fedcore.flower.app import FlowerApp
from fedcore.flower.bundle import AppBundle
from fedcore.progress import PLAIN_WARNING, ProgressView, epsilon_line
from fedcore.record import RunRecord
from fedcore.system.files import replacing
from fedcore.wire import ModelRef, Problem, RunIn, RunStatus

POLL_SECONDS = 20
FOLLOW_PAUSE = 0.2
INTERRUPTED = 130


def run(
    app: Annotated[Path, typer.Argument(metavar="APP_DIR", help="Folder of a Flower app.")],
    server: Annotated[str, typer.Option(help="URL of the server; by default the one in the operator's kit.")] = "",
    operator: Annotated[
        Path, typer.Option(envvar="FEDCORE_OPERATOR", help="The operator's kit: token, CA and the server's address.")
    ] = Path("federation/operator"),
    run_config: Annotated[
        list[str] | None, typer.Option("--run-config", help="key=value over \\[tool.flwr.app.config]; repeatable.")
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="key=value over \\[tool.fedcore]; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the final model is saved.")] = Path("model.safetensors"),
    connect_seconds: Annotated[float, typer.Option(help="How long to try to reach the server.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines, then a summary.")] = False,
) -> None:
    """Submit a run as operator, follow it, and save the model as safetensors. Ctrl-C cancels the run.

    Example: fedcore run examples/digits --operator fed/operator --run-config num-server-rounds=5
    """
    _check_out(out)
    kit = OperatorKit.load(operator)
    if server:
        kit = replace(kit, server_url=server.rstrip("/"))
    submission = make_submission(app, parse_assignments(run_config or []), parse_assignments(set_ or []))
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
        context = ssl.create_default_context(cafile=str(self.kit.ca_file))
        self._http = httpx.Client(
            base_url=self.kit.server_url,
            headers={"Authorization": f"Bearer {self.kit.token}"},
            verify=context,
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

    def fetch_model(self, run: str, model: ModelRef, out: Path) -> None:
        """Download the final model to `out`, which stays as it is unless the digest is the announced one."""
        digest = hashlib.sha256()
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                replacing(out, mode=0o600, durable=True) as file,
                self._http.stream("GET", f"/v1/runs/{run}/model") as answer,
            ):
                _raise_problem(answer)
                for chunk in answer.iter_bytes(1 << 20):
                    digest.update(chunk)
                    file.write(chunk)
                if digest.hexdigest() != model.sha256:
                    raise PeerError("the model that the server sent does not have the digest that it announced")
        except OSError as error:
            raise StorageFull(f"cannot write {out}: {error.strerror}") from error
        except httpx.TransportError as error:
            raise self._failure(error) from error

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        retry = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_unreachable),
            wait=tenacity.wait_exponential_jitter(initial=0.2, max=3.0),
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
        url = self.kit.server_url
        if (refused := certificate_failure(error)) is not None:
            return Unauthorized(
                f"the server at {url} is not the one of this kit ({refused}); check server-url and ca.crt"
            )
        return ServerUnreachable(
            f"no fedcore server answers at {url}: {error}; "
            "is it running (fedcore server --federation DIR), and is the address right?"
        )


def _unreachable(error: BaseException) -> bool:
    """A server that is not there yet is worth waiting for; a certificate that does not verify is not."""
    return isinstance(error, httpx.TransportError) and certificate_failure(error) is None


def _check_out(out: Path) -> None:
    """Refuse a path that no model can be saved to now, and not after hours of training."""
    if out.is_dir():
        raise ConfigurationError(f"--out: {out} is a folder; name the file for the model")
    parent = next(path for path in out.absolute().parents if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise ConfigurationError(f"--out: no file can be made in {parent}; name another place for the model")


def _raise_problem(answer: httpx.Response) -> None:
    if answer.is_success:
        return
    answer.read()
    try:
        problem = Problem.model_validate_json(answer.content)
    except ValueError:
        raise Refused(
            answer.status_code, "http", "the server answered with an error that is no problem document"
        ) from None
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        raise Unauthorized(f"the server does not accept the operator's token: {problem.detail}")
    raise Refused(answer.status_code, problem.kind, problem.detail)


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
        raise typer.Exit(INTERRUPTED) from None
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
