"""HTTP client of the operator's API, with the kit's CA and a bearer token."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

import httpx
import tenacity

from client_app.http.errors import is_away, leads_elsewhere, may_pass, next_server, refusal, tls_context, unanswered
from client_app.http.proxied import proxies_for
from client_app.http.silence import ANSWER_SECONDS, connect_seconds
from fedcore.errors import FedcoreError, PeerError, Refused, ServerUnreachable, StorageFull, Unauthorized
from fedcore.federation import OperatorKit, Roster
from fedcore.federation.transcript import SignedRecord, TranscriptOut, next_head, record_hash
from fedcore.system.files import replacing
from fedcore.system.tracing import Traces
from fedcore.wire.events import RunOut
from fedcore.wire.operator import RosterIn, RosterOut, RunClientsOut, RunFilesOut, RunIn, RunsOut, ServerOut
from fedcore.wire.presence import RostersOut
from fedcore.wire.tasks import ModelRef
from fedcore.wire.watch import LinkIn, LinkOut, LinksOut, SessionOut, session_cookie

POLL_SECONDS = 5
FOLLOW_PAUSE = 0.2
AWAY_SECONDS = 3600.0
"""How long `follow` waits for a server that is away, beyond the time of one request."""
AWAY_PAUSE = 1.0
_LAST_EVENT = 2**31 - 1


def headers_of(kit: OperatorKit) -> dict[str, str]:
    """What says who asks: a session, or a bearer token."""
    if kit.session:
        return {"Cookie": f"{session_cookie(kit.authority)}={kit.session}", "X-Fedcore": "1"}
    return {"Authorization": f"Bearer {kit.token}"}


def operator_client(folder: Path, server: str, connect_seconds: float) -> OperatorClient:
    """Client for the kit in `folder`; `server` replaces the kit's address unless it is ""."""
    kit = OperatorKit.load(folder)
    if server:
        kit = replace(kit, servers=(server.rstrip("/"),))
    return OperatorClient(kit, connect_seconds=connect_seconds)


@dataclass(slots=True)
class OperatorClient:
    """Client of the operator's API; use as a context manager."""

    kit: OperatorKit
    connect_seconds: float = field(default=30.0, kw_only=True)
    """How long servers may be away; the kit's addresses are tried in turn."""
    transport: httpx.BaseTransport | None = field(default=None, kw_only=True)
    """In place of sockets."""
    traces: Traces = field(default_factory=Traces, kw_only=True)
    """Give requests their headers."""
    _http: httpx.Client = field(init=False)
    _at: int = field(default=0, init=False)

    def __enter__(self) -> OperatorClient:
        tls = tls_context(self.kit.ca_file)
        self._http = httpx.Client(
            base_url=self._url,
            headers=headers_of(self.kit),
            verify=tls,
            timeout=httpx.Timeout(60.0, connect=connect_seconds(len(self.kit.servers))),
            trust_env=False,
            transport=self.transport,
            mounts=proxies_for(self.kit.servers, tls) if self.transport is None else None,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def submit(self, submission: RunIn) -> RunOut:
        """Submit a run. The server may be starting, so connecting is retried for a while.

        The request is not repeated once a server may have accepted it: there would be two runs.
        """
        content = submission.model_dump(mode="json")
        return RunOut.model_validate_json(
            self._request("POST", "/v1/runs", repeats=_was_not_accepted, json=content).content
        )

    def send_model(self, path: Path, sha256: str) -> None:
        """Upload the model that the next run starts from."""
        size = {"Content-Length": str(path.stat().st_size), "Content-Type": "application/octet-stream"}
        with path.open("rb") as file:
            self._request("PUT", f"/v1/models/{sha256}", content=_Blocks(file), headers=size)

    def resume(self, run: str) -> RunOut:
        """Resume a run that failed, was cancelled or interrupted."""
        return RunOut.model_validate_json(self._request("POST", f"/v1/runs/{run}/resume").content)

    def list_runs(self, *, limit: int, before: str = "", status: str = "") -> RunsOut:
        """List runs, the newest first."""
        query = {"limit": str(limit)} | ({"before": before} if before else {}) | ({"status": status} if status else {})
        return RunsOut.model_validate_json(self._request("GET", "/v1/runs", params=query).content)

    def show(self, run: str, *, after: int = 0) -> RunOut:
        """The state of a run, with its events after number `after`."""
        answer = self._request("GET", f"/v1/runs/{run}", params={"after": after})
        return RunOut.model_validate_json(answer.content)

    def state_of(self, run: str) -> RunOut:
        """The state of a run, without its events."""
        return self.show(run, after=_LAST_EVENT)

    def clients_of(self, run: str, *, once: bool = False) -> RunClientsOut:
        """The status of each client in a run; with `once` a failure is not retried."""
        again = _never if once else None
        answer = self._request("GET", f"/v1/runs/{run}/clients", repeats=again, timeout=self._within(0.0))
        return RunClientsOut.model_validate_json(answer.content)

    def members(self) -> ServerOut:
        """The members of the newest roster, and which are connected."""
        return ServerOut.model_validate_json(self._request("GET", "/v1/clients").content)

    def follow(
        self, run: str, *, on_away: Callable[[str], None] = lambda _: None, seconds: float = POLL_SECONDS
    ) -> Iterator[RunOut]:
        """Yield the state of the run with its new events, until it has ended.

        If the server is away, this retries for `AWAY_SECONDS` and continues after the last event.

        Args:
            run: its id.
            on_away: gets the reason, once for each outage, when each server was tried.
            seconds: how long the server may hold a request without news.
        """
        after, since, failures = 0, 0.0, 0
        while True:
            try:
                answer = self._request(
                    "GET",
                    f"/v1/runs/{run}",
                    repeats=_never,
                    params={"after": after, "wait": seconds},
                    timeout=self._within(seconds),
                )
            except (ServerUnreachable, Refused) as error:
                if not isinstance(error, ServerUnreachable) and not is_away(error):
                    raise
                now, failures = time.monotonic(), failures + 1
                since = since or now
                if failures == len(self.kit.servers):
                    on_away(str(error))
                if now - since > AWAY_SECONDS:
                    raise
                time.sleep(AWAY_PAUSE)
                continue
            since, failures = 0.0, 0
            state = RunOut.model_validate_json(answer.content)
            yield state
            if state.events:
                after = state.events[-1].seq
                # Events come in bursts; nobody needs them one request at a time.
                time.sleep(FOLLOW_PAUSE)
            elif state.status.final:
                return

    def cancel(self, run: str) -> None:
        """Cancel a run."""
        self._request("POST", f"/v1/runs/{run}/cancel")

    def publish(self, chain: Sequence[Roster]) -> RosterOut:
        """Upload the rosters that the server lacks; it checks them, and names what it refuses."""
        known = self.members().roster
        missing = RosterIn(rosters=[roster.to_json() for roster in chain if roster.version > known])
        if not missing.rosters:  # the server refuses an older chain than its own by name
            missing = RosterIn(rosters=[chain[-1].to_json()])
        answer = self._request("PUT", "/v1/roster", json=missing.model_dump(mode="json"))
        return RosterOut.model_validate_json(answer.content)

    def whoami(self) -> SessionOut:
        """Who asks, by which role."""
        return SessionOut.model_validate_json(self._request("GET", "/v1/session").content)

    def sign_out(self) -> None:
        """End the kit's session."""
        self._request("DELETE", "/v1/session")

    def make_link(self, link: LinkIn) -> LinkOut:
        """Make a read-only link to the server's page; only this answer has its token."""
        return LinkOut.model_validate_json(self._request("POST", "/v1/links", json=link.model_dump()).content)

    def links(self) -> LinksOut:
        """The valid read-only links."""
        return LinksOut.model_validate_json(self._request("GET", "/v1/links").content)

    def revoke_link(self, link: str) -> None:
        """Revoke a link, and end the sessions that it opened."""
        self._request("DELETE", f"/v1/links/{quote(link, safe='')}")

    def rosters(self) -> list[Roster]:
        """Every roster of the federation, verified with the kit's authority key."""
        answer = RostersOut.model_validate_json(self._request("GET", "/v1/operator/rosters").content)
        return [Roster.received(text, self.kit.authority) for text in answer.rosters]

    def records(self) -> Iterator[SignedRecord]:
        """The server's transcript from its beginning."""
        after, more = "", True
        while more:
            content = self._request("GET", "/v1/operator/transcript", params={"after": after}).content
            page = TranscriptOut.model_validate_json(content)
            yield from page.records
            more = page.more and bool(page.records)
            if more:
                after = _head_after(after, page.records)

    def files(self, run: str) -> RunFilesOut:
        """The files that the ServerApp of an ended run left."""
        return RunFilesOut.model_validate_json(self._request("GET", f"/v1/runs/{run}/files").content)

    def fetch_file(self, run: str, path: str, sha256: str, out: Path) -> None:
        """Download one of these files to `out`, which stays as it is unless the digest matches."""
        self._download(f"/v1/runs/{run}/files/{quote(path)}", sha256, out)

    def fetch_model(self, run: str, model: ModelRef, out: Path) -> None:
        """Download the final model to `out`, which stays as it is unless the digest matches."""
        self._download(f"/v1/runs/{run}/model", model.sha256, out)

    def fetch_best_model(self, run: str, out: Path) -> None:
        """Download the best model so far, whose digest comes with the answer, since the server may replace it."""
        self._download(f"/v1/runs/{run}/model?which=best", None, out)

    def _download(self, address: str, sha256: str | None, out: Path) -> None:
        """Download a file; a `sha256` of None means the digest in the answer's ETag."""
        digest = hashlib.sha256()
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                replacing(out, mode=0o600, durable=True) as file,
                self._http.stream("GET", address) as answer,
            ):
                self._raise_problem(answer)
                for chunk in answer.iter_bytes(1 << 20):
                    digest.update(chunk)
                    file.write(chunk)
                if digest.hexdigest() != (sha256 or answer.headers.get("ETag", "").strip('"')):
                    raise PeerError(f"{address} did not come with the digest that the server announced")
        except OSError as error:
            raise StorageFull(f"cannot write {out}: {error.strerror}") from error
        except httpx.TransportError as error:
            raise self._failure(error) from error

    def _request(
        self, method: str, path: str, *, repeats: Callable[[BaseException], bool] | None = None, **arguments: Any
    ) -> httpx.Response:
        """A successful answer; `repeats` says after which failures the request is sent again, by default any."""
        headers = {**self.traces.headers(path), **arguments.pop("headers", {})}

        def attempt() -> httpx.Response:
            try:
                answer = self._http.request(method, path, headers=headers, **arguments)
                self._raise_problem(answer)
            except (httpx.TransportError, Refused) as error:
                if leads_elsewhere(error):
                    self._go_on(error)
                raise
            return answer

        retry = tenacity.Retrying(
            retry=tenacity.retry_if_exception(
                lambda error: (may_pass(error) or leads_elsewhere(error)) and (repeats is None or repeats(error))
            ),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=3.0),
            stop=tenacity.stop_after_delay(self.connect_seconds),
            reraise=True,
        )
        try:
            return retry(attempt)
        except httpx.TransportError as error:
            if repeats is _was_not_accepted and not repeats(error) and may_pass(error):
                raise ServerUnreachable(
                    "the server's answer was lost, so the run may be in its queue or not; look before you submit it "
                    "again: fedcore runs list",
                    check="answer-lost",
                ) from error
            raise self._failure(error) from error

    def _raise_problem(self, answer: httpx.Response) -> None:
        if not answer.is_success:
            of = "the session of `fedcore login`" if self.kit.session else "the operator's token"
            raise refusal(answer.status_code, answer.read(), of=of)

    def _within(self, seconds: float) -> httpx.Timeout:
        """For a request that a server may hold for so many seconds: a frozen one is noticed soon after."""
        return httpx.Timeout(60.0, connect=connect_seconds(len(self.kit.servers)), read=seconds + ANSWER_SECONDS)

    @property
    def _url(self) -> str:
        return self.kit.servers[self._at]

    def _go_on(self, error: Exception) -> None:
        """Switch to the leader's address, or to the next one."""
        self._at = next_server(self.kit.servers, self._at, error)
        self._http.base_url = self._url

    def _failure(self, error: httpx.TransportError) -> FedcoreError:
        failure = unanswered(self.kit.servers, error)
        if isinstance(failure, Unauthorized):
            return failure
        return ServerUnreachable(
            f"{failure}; is it running (fedcore server --federation DIR), and is the address right?"
        )


def _was_not_accepted(error: BaseException) -> bool:
    """Whether no server can have accepted a request that failed so."""
    if isinstance(error, Refused):
        return error.status == httpx.codes.SERVICE_UNAVAILABLE
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)


def _never(_: BaseException) -> bool:
    return False


class _Blocks:
    """The blocks of a file, from its beginning each time, since a request may be sent again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while block := self._file.read(1 << 20):
            yield block


def _head_after(head: str, records: Sequence[SignedRecord]) -> str:
    """The head of the transcript after these records, which come after `head`."""
    for signed in records:
        task = signed.record.announced()
        head = next_head(head, task.previous, record_hash(signed.record.outcome(task), complete=signed.complete))
    return head
