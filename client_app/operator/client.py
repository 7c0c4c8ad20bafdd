"""The operator's side of the API: HTTPS with the kit's CA, and a bearer token."""

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

from client_app.http.errors import is_away, leads_elsewhere, may_pass, refusal, tls_context, unanswered
from fedcore.errors import FedcoreError, PeerError, Refused, ServerUnreachable, StorageFull, Unauthorized
from fedcore.federation import OperatorKit, Roster
from fedcore.federation.transcript import SignedRecord, TranscriptOut, next_head, record_hash
from fedcore.system.files import replacing
from fedcore.wire.control import ModelRef, RostersOut
from fedcore.wire.events import RunOut
from fedcore.wire.operator import RosterIn, RosterOut, RunClientsOut, RunFilesOut, RunIn, RunsOut, ServerOut
from fedcore.wire.watch import LinkIn, LinkOut, LinksOut

POLL_SECONDS = 20
FOLLOW_PAUSE = 0.2
AWAY_SECONDS = 3600.0
"""How long whoever follows a run waits for a server that is away, beyond the time of one request."""
AWAY_PAUSE = 1.0


def operator_client(folder: Path, server: str, connect_seconds: float) -> OperatorClient:
    """The client of the kit in `folder`; `server` goes in place of the address in it, "" for that one."""
    kit = OperatorKit.load(folder)
    if server:
        kit = replace(kit, servers=(server.rstrip("/"),))
    return OperatorClient(kit, connect_seconds=connect_seconds)


@dataclass(slots=True)
class OperatorClient:
    """The operator's side of the API: HTTPS with the kit's CA, and a bearer token.

    connect_seconds: how long servers may be away; the kit's addresses are tried in turn.
    transport: in place of sockets.
    """

    kit: OperatorKit
    connect_seconds: float = field(default=30.0, kw_only=True)
    transport: httpx.BaseTransport | None = field(default=None, kw_only=True)
    _http: httpx.Client = field(init=False)
    _at: int = field(default=0, init=False)

    def __enter__(self) -> OperatorClient:
        self._http = httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {self.kit.token}"},
            verify=tls_context(self.kit.ca_file),
            timeout=httpx.Timeout(60.0, read=POLL_SECONDS + 40.0),
            trust_env=False,
            transport=self.transport,
        )
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def submit(self, submission: RunIn) -> RunOut:
        """Hand in a run. The server may just be starting, so connecting is tried for a while.

        It is not sent again once a server may have taken it: there would be two runs.
        """
        content = submission.model_dump(mode="json")
        return RunOut.model_validate_json(self._request("POST", "/v1/runs", repeats=_not_taken, json=content).content)

    def send_model(self, path: Path, sha256: str) -> None:
        """Hand in the model that the next run starts from."""
        size = {"Content-Length": str(path.stat().st_size), "Content-Type": "application/octet-stream"}
        with path.open("rb") as file:
            self._request("PUT", f"/v1/models/{sha256}", content=_Blocks(file), headers=size)

    def resume(self, run: str) -> RunOut:
        """Let a run go on that ended before its time."""
        return RunOut.model_validate_json(self._request("POST", f"/v1/runs/{run}/resume").content)

    def list_runs(self, *, limit: int, before: str = "", status: str = "") -> RunsOut:
        """Runs, the newest first."""
        asked = {"limit": str(limit)} | ({"before": before} if before else {}) | ({"status": status} if status else {})
        return RunsOut.model_validate_json(self._request("GET", "/v1/runs", params=asked).content)

    def show(self, run: str, *, after: int = 0) -> RunOut:
        """A run as it stands, with its events after number `after`."""
        answer = self._request("GET", f"/v1/runs/{run}", params={"after": after})
        return RunOut.model_validate_json(answer.content)

    def clients_of(self, run: str, *, once: bool = False) -> RunClientsOut:
        """Where each client stands in a run. once: a failure is not tried again."""
        again = _never if once else None
        return RunClientsOut.model_validate_json(self._request("GET", f"/v1/runs/{run}/clients", repeats=again).content)

    def members(self) -> ServerOut:
        """Who is connected, of the members of the newest roster."""
        return ServerOut.model_validate_json(self._request("GET", "/v1/clients").content)

    def follow(
        self, run: str, *, on_away: Callable[[str], None] = lambda _: None, seconds: float = POLL_SECONDS
    ) -> Iterator[RunOut]:
        """The state of the run with its new events, again and again, until it has ended.

        seconds: how long the server may hold a request that there is no news for.

        A server that is away is asked for `AWAY_SECONDS`, from the event on that was the last one here: the run goes on
        without whoever follows it. on_away: told why, once each time.
        """
        after, since = 0, 0.0
        while True:
            try:
                answer = self._request("GET", f"/v1/runs/{run}", params={"after": after, "wait": seconds})
            except (ServerUnreachable, Refused) as error:
                if not isinstance(error, ServerUnreachable) and not is_away(error):
                    raise
                now = time.monotonic()
                if not since:
                    since = now
                    on_away(str(error))
                if now - since > AWAY_SECONDS:
                    raise
                time.sleep(AWAY_PAUSE)
                continue
            since = 0.0
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
        known = self.members().roster
        missing = RosterIn(rosters=[roster.to_json() for roster in chain if roster.version > known])
        if not missing.rosters:  # an older chain than the server's is refused by name, too
            missing = RosterIn(rosters=[chain[-1].to_json()])
        answer = self._request("PUT", "/v1/roster", json=missing.model_dump(mode="json"))
        return RosterOut.model_validate_json(answer.content)

    def make_link(self, asked: LinkIn) -> LinkOut:
        """A read-only link to the server's page; its token is told this once."""
        return LinkOut.model_validate_json(self._request("POST", "/v1/links", json=asked.model_dump()).content)

    def links(self) -> LinksOut:
        """The read-only links that are good."""
        return LinksOut.model_validate_json(self._request("GET", "/v1/links").content)

    def revoke_link(self, link: str) -> None:
        """End a link, and the sessions of all who came by it."""
        self._request("DELETE", f"/v1/links/{quote(link, safe='')}")

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
                after = _head_after(after, page.records)

    def files(self, run: str) -> RunFilesOut:
        """What the ServerApp of a run that has ended left."""
        return RunFilesOut.model_validate_json(self._request("GET", f"/v1/runs/{run}/files").content)

    def fetch_file(self, run: str, path: str, sha256: str, out: Path) -> None:
        """Download one of these files to `out`, likewise."""
        self._download(f"/v1/runs/{run}/files/{quote(path)}", sha256, out)

    def fetch_model(self, run: str, model: ModelRef, out: Path) -> None:
        """Download the final model to `out`, which stays as it is unless the digest is the announced one."""
        self._download(f"/v1/runs/{run}/model", model.sha256, out)

    def fetch_best_model(self, run: str, out: Path) -> None:
        """Download the best model so far, which the server may replace at any time and announces with its answer."""
        self._download(f"/v1/runs/{run}/model?which=best", None, out)

    def _download(self, address: str, sha256: str | None, out: Path) -> None:
        """sha256: None for the one that the answer's ETag names."""
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
                if digest.hexdigest() != (sha256 or answer.headers.get("ETag", "").strip('"')):
                    raise PeerError(f"{address} did not come with the digest that the server announced")
        except OSError as error:
            raise StorageFull(f"cannot write {out}: {error.strerror}") from error
        except httpx.TransportError as error:
            raise self._failure(error) from error

    def _request(
        self, method: str, path: str, *, repeats: Callable[[BaseException], bool] | None = None, **arguments: Any
    ) -> httpx.Response:
        """An answer that is no problem. repeats: which failures a request may be sent again after; by default any."""

        def attempt() -> httpx.Response:
            try:
                answer = self._http.request(method, path, **arguments)
                _raise_problem(answer)
            except (httpx.TransportError, Refused) as error:
                if leads_elsewhere(error):
                    self._go_on()
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
            if repeats is not None and not repeats(error) and may_pass(error):
                raise ServerUnreachable(
                    "the answer of the server was lost, so the run may be in its queue or not; look before you submit "
                    "it again: fedcore runs list",
                    check="answer-lost",
                ) from error
            raise self._failure(error) from error

    @property
    def _url(self) -> str:
        return self.kit.servers[self._at]

    def _go_on(self) -> None:
        """Use the next address of the federation."""
        self._at = (self._at + 1) % len(self.kit.servers)
        self._http.base_url = self._url

    def _failure(self, error: httpx.TransportError) -> FedcoreError:
        failure = unanswered(" or ".join(self.kit.servers), error)
        if isinstance(failure, Unauthorized):
            return failure
        return ServerUnreachable(
            f"{failure}; is it running (fedcore server --federation DIR), and is the address right?"
        )


def _not_taken(error: BaseException) -> bool:
    """Whether no server can have carried out a request that failed so."""
    if isinstance(error, Refused):
        return error.status == httpx.codes.SERVICE_UNAVAILABLE
    return isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)


def _never(_: BaseException) -> bool:
    return False


class _Blocks:
    """The blocks of a file, from its beginning each time: a request may have to be sent again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def __iter__(self) -> Iterator[bytes]:
        self._file.seek(0)
        while block := self._file.read(1 << 20):
            yield block


def _raise_problem(answer: httpx.Response) -> None:
    if not answer.is_success:
        raise refusal(answer.status_code, answer.read(), of="the operator's token")


def _head_after(head: str, records: Sequence[SignedRecord]) -> str:
    """The head of the transcript after these records, which come after `head`."""
    for signed in records:
        task = signed.record.announced()
        head = next_head(head, task.previous, record_hash(signed.record.outcome(task), complete=signed.complete))
    return head
