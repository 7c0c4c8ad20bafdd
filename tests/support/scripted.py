"""A server under the test's control, over real TLS, with a real `ServerRound` and real peers; it can lie.

`Scripted` serves one exchange to client 1. The other clients of the cohort are `ClientSession`s beside it, and their
updates are constant. A test sets `lies[route]`, a function that changes what client 1 is told on that route.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI, Request, Response

from client_app.exchange.client import Client
from client_app.exchange.models import prepare_state_dir
from client_app.http.errors import tls_context
from client_app.http.http_transport import HttpTransport, signer
from client_app.http.retry import Retry
from client_app.output import Output
from client_app.ranks.messages import LocalAnswer
from client_app.records.ledger import Ledger
from client_app.records.pending_update import PendingUpdate
from client_app.records.result_cache import ResultCache
from client_app.records.transcript import ClientTranscript
from fedcore.codec import CodecSettings, Decoded, decode, encode, first_encoding
from fedcore.errors import Unauthorized, WrongClock
from fedcore.federation import ClientKit, FederationFolder, Policy, Roster, provision
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.transcript import ExchangeRecord, SignedRecord, TranscriptOut, record_hash
from fedcore.run.exchange import encoding_of, round_parameters
from fedcore.run.settings import JobSettings
from fedcore.secagg import (
    ClientSession,
    KeyShares,
    Randomness,
    ServerRound,
    apply_masks,
)
from fedcore.state import ModelState, sha256_file
from fedcore.wire import secagg_codec
from fedcore.wire.chunks import update_digest
from fedcore.wire.forms import our_version
from fedcore.wire.presence import JoinIn, JoinOut, RostersOut, WorkIn
from fedcore.wire.secagg import (
    AdvertisementIn,
    CohortOut,
    ConsistencyIn,
    DeliveryOut,
    KeySharesIn,
    SignaturesOut,
    SurvivorsOut,
    UnmaskIn,
)
from fedcore.wire.signing import NonceCache, verify_headers
from fedcore.wire.tasks import ModelRef, Protection, Task
from fedcore.wire.uploads import ManifestIn, PartsOut, WithdrawIn
from support.encodings import encoding_to_json
from support.messages import head, save_message
from support.ports import reserved_port
from support.serving import serving

CLIENTS = 4
APP = "ab" * 32
PROTECTION = Protection(degree=3, threshold=3, corrupt=0, agreement="x25519-mlkem768")
QUICK = Retry(stuck_seconds=60.0, first_pause=0.02, longest_pause=0.1)
Lie = Callable[[Any], Any]


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationFolder]:
    """Four clients of one's own, in sums of three at least."""
    with reserved_port() as port:
        yield provision(
            tmp_path_factory.mktemp("federation") / "fed",
            name="testing",
            clients=CLIENTS,
            now=datetime.now(UTC),
            hosts=["127.0.0.1"],
            port=port,
            policy=Policy.own(CLIENTS),
        )


@pytest.fixture(scope="session")
def kits(federation: FederationFolder) -> dict[int, ClientKit]:
    return {number: ClientKit.load(folder) for number, folder in enumerate(federation.clients, start=1)}


@pytest.fixture
def kit(federation: FederationFolder, tmp_path: Path) -> Path:
    """A copy of client 1's kit, for the test to spoil."""
    folder = tmp_path / "kit"
    shutil.copytree(federation.clients[0], folder)
    return folder


@dataclass
class Shift:
    """Local work without a process: adds `by` to every tensor, or reports metrics alone."""

    by: float = 1.0
    examples: int = 10
    metrics: dict[str, Any] = field(default_factory=lambda: {"loss": 0.5})
    goes_on: asyncio.Event | None = None
    """What it waits for before it ends; None for nothing."""
    calls: int = 0
    aggregated_rounds: list[int] = field(default_factory=list)
    cancelled: bool = False
    forgets: bool = False
    """Reports that no model was trained, whatever was asked."""
    error: Exception | None = None

    async def run(self, task: Task, model: Path | None, out: Path, *, aggregated_round: int = 0) -> LocalAnswer:
        self.calls += 1
        self.aggregated_rounds.append(aggregated_round)
        try:
            if self.goes_on is not None:
                await self.goes_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if self.error is not None:
            raise self.error
        if task.aggregation == "plain":
            shutil.copyfile(model or os.devnull, out)
            return LocalAnswer(examples=self.examples, metrics=self.metrics, trained=True)
        if task.trains and model is not None:
            state = ModelState.open(model)
            ModelState.from_arrays({name: value + np.float32(self.by) for name, value in state.items()}).save(out)
        return LocalAnswer(examples=self.examples, metrics=self.metrics, trained=task.trains and not self.forgets)


@dataclass
class Scripted:
    """One server and the exchange that it offers to client 1."""

    federation: FederationFolder
    kits: dict[int, ClientKit]
    model: Path
    task: Task
    lies: dict[str, Lie] = field(default_factory=dict)
    answers: deque[Response] = field(default_factory=deque)
    """Answers that are given to the next requests instead, whatever they are."""
    failed: str = ""
    """Why the exchange is over, once it is."""
    drops: dict[int, str] = field(default_factory=dict)
    """Peers that fall silent before the named route."""
    cheats: dict[int, Callable[[ClientSession, KeyShares], KeyShares]] = field(default_factory=dict)
    """Peers that deal something else than they should."""
    truth: Task | None = None
    """What the peers are told, where that is something else."""
    randomness: Randomness = os.urandom
    """What the peers draw from."""
    requests: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    """The client's port in every request: another one is another connection."""
    heard: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Method, path with query, and body of every request."""
    contexts: list[str] = field(default_factory=list)
    """The header traceparent of every request, "" for none."""
    bodies: dict[str, bytes] = field(default_factory=dict)
    parts: dict[int, bytes] = field(default_factory=dict)
    withdrawals: list[WithdrawIn] = field(default_factory=list)
    joins: int = 0
    joined_with: JoinIn | None = None
    """What the client said when it joined last."""
    told: list[WorkIn] = field(default_factory=list)
    """What it said of its work."""
    heartbeat_seconds: float = 0.2
    heartbeats: list[dict[str, Any]] = field(default_factory=list)
    tasks: deque[Task] = field(default_factory=deque)
    no_task: dict[str, str] = field(default_factory=dict)
    """What heads the answer that there is none."""
    polling: int = 0
    """Requests for a task that are open."""
    polls: list[dict[str, str]] = field(default_factory=list)
    decoded: Decoded | None = None
    records: list[SignedRecord] = field(default_factory=list)
    """The transcript; an honest one unless a test changes it."""
    head: str = ""
    """The hash of its last record."""
    rosters: list[Roster] = field(default_factory=list)
    """Those after the one that every kit was made with."""
    nonces: NonceCache = field(default_factory=NonceCache)
    not_yet: int = 1
    """How many polls get 204 before each answer; 0 also answers a step with what it leads to, in the same request."""
    _polled: dict[str, int] = field(default_factory=dict)
    _round: ServerRound | None = None
    _peers: dict[int, ClientSession] = field(default_factory=dict)
    _sum: Any = None

    # --- the exchange --------------------------------------------------------------------------------------------

    def open(self) -> None:
        """The round as the peers know it."""
        task = self.truth or self.task
        digest = bytes.fromhex(task.model.sha256) if task.model else None
        parameters = round_parameters(
            task, federation="testing", roster_hash=self.kits[1].roster.hash(), model_hash=digest
        )
        self._round = ServerRound(parameters=parameters, roster=self.kits[1].roster.keys)
        self._peers = {
            peer: ClientSession(
                parameters=parameters,
                client_id=peer,
                identity=self.kits[peer].identity,
                roster=self.kits[peer].roster.keys,
                min_cohort=2,
                min_threshold=2,
                randomness=self.randomness,
            )
            for peer in task.cohort
            if peer != 1
        }

    def use(self, *rosters: Roster) -> None:
        """Go on with the last of these rosters, which follow each other."""
        self.rosters += rosters
        self.kits = {number: replace(kit, roster=rosters[-1]) for number, kit in self.kits.items()}

    def go_on(self, task: Task) -> None:
        """Offer one more exchange, after those that are in the transcript."""
        self.task = task.model_copy(update={"previous": self.head})
        self.repeat()

    def repeat(self) -> None:
        """Offer the same exchange as if it had never been."""
        self.decoded, self._round, self._polled = None, None, {}

    def keep_record(self) -> None:
        """Add the record of an exchange that a quorum has signed."""
        outcome = self.round.outcome()
        roster = self.kits[1].roster
        record = ExchangeRecord.of(self.task, federation="testing", roster_hash=roster.hash(), outcome=outcome)
        signatures = dict(self.round.signatures().signatures)
        self.records.append(SignedRecord(record=record, complete=True, signatures=signatures))
        self.head = record_hash(outcome, complete=True)

    def records_after(self, known: str) -> Response:
        """The records after the one with this hash."""
        hashes = [signed.record.task["previous"] for signed in self.records] + [self.head]
        if known not in hashes:
            return problem(404, "not-found", "there is no such record")
        return self.say("transcript", TranscriptOut(records=self.records[hashes.index(known) :], more=False))

    @property
    def round(self) -> ServerRound:
        assert self._round is not None
        return self._round

    def peers(self, route: str) -> dict[int, ClientSession]:
        """Those that are still there when `route` is due."""
        for peer, when in self.drops.items():
            if when == route:
                self._peers.pop(peer, None)
        return self._peers

    def put_advertisement(self, body: bytes) -> None:
        sent = AdvertisementIn.model_validate_json(body)
        if self._round is None:
            self.open()
        if self.truth is None:
            self.round.receive_advertisement(secagg_codec.advertisement_from_wire(1, sent))
        for peer in self.peers("advertisement").values():
            self.round.receive_advertisement(peer.advertise())
        self.round.close_stage()

    def cohort(self) -> CohortOut:
        shown = self.round.advertised(1 if self.truth is None else 2)
        if self.truth is not None:  # the server keeps the client in a room of its own and says nothing of it
            own = AdvertisementIn.model_validate_json(self.bodies["advertisement"])
            members = (secagg_codec.advertisement_from_wire(1, own), *shown.members)
            shown = replace(shown, ids=(1, *shown.ids), members=members)
        return secagg_codec.cohort_to_wire(shown, self.task.cohort)

    def put_key_shares(self, body: bytes) -> None:
        sent = KeySharesIn.model_validate_json(body)
        self.round.receive_shares(secagg_codec.key_shares_from_wire(1, sent, *self.round.receivers(1)))
        for number, peer in self.peers("key-shares").items():
            dealt = peer.share_keys(self.round.advertised(number))
            self.round.receive_shares(self.cheats[number](peer, dealt) if number in self.cheats else dealt)
        self.round.close_stage()
        for number, peer in self.peers("delivery").items():
            peer.receive_shares(self.round.delivery(number))

    def delivery(self) -> DeliveryOut:
        return secagg_codec.delivery_to_wire(self.round.delivery(1), self.task.cohort)

    def update(self) -> bytes:
        """The parts that came, in order."""
        return b"".join(content for _, content in sorted(self.parts.items()))

    def held(self) -> PartsOut:
        return PartsOut(parts={index: hashlib.sha256(part).hexdigest() for index, part in self.parts.items()})

    def put_manifest(self, body: bytes) -> None:
        manifest = ManifestIn.model_validate_json(body)
        body = self.update()
        digests = [hashlib.sha256(content).digest() for _, content in sorted(self.parts.items())]
        assert manifest.digest == update_digest(len(body), digests).hex()
        assert manifest.size == len(body)
        if self.task.aggregation == "plain":
            return
        self._sum = np.frombuffer(body, "<u8").copy()
        self.round.receive_input(1, hashlib.sha256(body).digest())
        for number, peer in self.peers("update").items():
            words = self.peer_words()
            peer.mask(words)
            self._sum += words
            self.round.receive_input(number, hashlib.sha256(words).digest())
        self.round.close_stage()

    def peer_words(self) -> Any:
        """What every peer sends: two on every tensor, ten examples, the same metrics."""
        encoding = self.encoding()
        base = ModelState.open(self.model) if encoding.layout else None
        local = ModelState.from_arrays({k: v + np.float32(2) for k, v in base.items()}) if base else None
        metrics = {"loss": 0.5}
        return encode(encoding, base=base, local=local, examples=10, metrics=metrics, randomness=os.urandom).words

    def encoding(self) -> Any:
        return encoding_of(self.task)

    def survivors_or_not_yet(self) -> SurvivorsOut | None:
        """Clients ask early, while they train, to hear whether the exchange goes on."""
        return self.survivors() if "manifest" in self.bodies else None

    def survivors(self) -> SurvivorsOut:
        return secagg_codec.survivors_to_wire(self.round.survivors(), self.task.cohort)

    def put_consistency(self, body: bytes) -> None:
        sent = ConsistencyIn.model_validate_json(body)
        if "survivors" not in self.lies:
            self.round.receive_consistency(secagg_codec.consistency_from_wire(1, sent))
        for peer in self.peers("consistency").values():
            self.round.receive_consistency(peer.sign_survivors(self.round.survivors()))
        self.round.close_stage()
        self.keep_record()

    def signatures(self) -> SignaturesOut:
        return secagg_codec.signatures_to_wire(self.round.signatures())

    def put_unmask(self, body: bytes) -> None:
        sent = UnmaskIn.model_validate_json(body)
        self.round.receive_unmask(secagg_codec.unmask_from_wire(1, sent, *self.round.owners(1)))
        for peer in self.peers("unmask").values():
            self.round.receive_unmask(peer.unmask(self.round.signatures()))
        self.round.close_stage()
        apply_masks(self._sum, self.round.mask_terms())
        encoding = self.encoding()
        self.decoded = decode(
            encoding,
            self._sum,
            survivors=len(self.round.survivors().survivors),
            base=ModelState.open(self.model) if encoding.layout else None,
        )

    # --- HTTP ----------------------------------------------------------------------------------------------------

    async def handle(self, request: Request) -> Response:
        """Every route: check the signature, then answer from the script."""
        body = await request.body()
        route = request.url.path.rsplit("/", 1)[-1]
        if "/update/parts/" in request.url.path:
            route = f"part {route}"
        self.requests.append(f"{request.method} {route}")
        self.heard.append((request.method, _target(request), body))
        self.contexts.append(request.headers.get("traceparent", ""))
        self.lines.append(request.client.port if request.client else 0)
        try:
            self.authenticate(request, body)
        except Unauthorized as error:
            return problem(401, "wrong-clock" if isinstance(error, WrongClock) else "unauthorized", str(error))
        if self.failed and "/exchanges/" in request.url.path and route != "withdrawal":
            return problem(409, "round-failed", self.failed)
        if self.answers:
            return self.answers.popleft()
        return await (self.get(route, request) if request.method == "GET" else self.take(route, body))

    def authenticate(self, request: Request, body: bytes) -> None:
        verified = verify_headers(
            request.method,
            _target(request),
            request.headers,
            resolve_key=lambda key_id: self.kits[int(key_id.removeprefix("client-"))].roster.keys[
                int(key_id.removeprefix("client-"))
            ],
            now=int(time.time()),
            nonces=self.nonces,
        )
        if hashlib.sha256(body).digest() != verified.content_sha256:
            raise Unauthorized("the body is another than the signed one")

    async def take(self, route: str, body: bytes) -> Response:
        self.bodies[route] = body
        if route.startswith("part "):
            self.parts[int(route.removeprefix("part "))] = body
        match route:
            case "join":
                self.joins += 1
                self.joined_with = JoinIn.model_validate_json(body)
                answer = JoinOut(
                    federation="testing",
                    name="client-1",
                    version=our_version(),
                    heartbeat_seconds=self.heartbeat_seconds,
                    roster=self.kits[1].roster.version,
                    roster_sha256=self.kits[1].roster.hash().hex(),
                )
                return self.say("join", answer)
            case "work":
                self.told.append(WorkIn.model_validate_json(body))
            case "heartbeat":
                self.heartbeats.append(json.loads(body))
            case "withdrawal":
                self.withdrawals.append(WithdrawIn.model_validate_json(body))
            case "advertisement" | "key-shares" | "manifest" | "consistency" | "unmask":
                getattr(self, f"put_{route.replace('-', '_')}")(body)
        following = {"advertisement": "cohort", "key-shares": "key-shares", "consistency": "consistency"}
        if self.task.aggregation == "secure":
            following["manifest"] = "survivors"
        if route in following and not self.not_yet:
            return self.answer(following[route])
        return Response(status_code=204)

    async def ask_next(self, task: Task) -> None:
        """Have the next agent asked for a task: not by a request that an agent before it left open when it ended."""
        while self.polling:  # noqa: ASYNC110 - a count of the server's own, in its loop
            await asyncio.sleep(0.01)
        self.tasks.append(task)

    async def get(self, route: str, request: Request) -> Response:
        if route == "task":
            self.polls.append(dict(request.query_params))
            self.polling += 1
            await asyncio.sleep(0.05)
            self.polling -= 1
            return self.say("task", self.tasks.popleft()) if self.tasks else Response(None, 204, self.no_task)
        if route == "model":
            content = self.model.read_bytes()
            if "model" in self.lies:
                content = self.lies["model"](content)
            return content if isinstance(content, Response) else Response(content)
        if route == "rosters":
            after = int(request.query_params["after"])
            return self.say("rosters", RostersOut(rosters=[r.to_json() for r in self.rosters if r.version > after]))
        if route == "transcript":
            return self.records_after(request.query_params["after"])
        if "/key-shares/" in request.url.path:
            return self.say("dealing", secagg_codec.dealing_to_wire(self.round.dealing(1, int(route))))
        if route == "parts":
            return self.say("parts", self.held())
        self._polled[route] = self._polled.get(route, 0) + 1
        if self._polled[route] <= self.not_yet:
            return Response(status_code=204)
        return self.answer(route)

    def answer(self, route: str) -> Response:
        """What a route has to say now."""
        sources = {
            "cohort": self.cohort,
            "key-shares": self.delivery,
            "survivors": self.survivors_or_not_yet,
            "consistency": self.signatures,
        }
        answer = sources[route]()
        return Response(status_code=204) if answer is None else self.say(route, answer)

    def say(self, route: str, answer: Any) -> Response:
        """An honest answer, or what the test makes of it."""
        if route in self.lies:
            answer = self.lies[route](answer)
        if isinstance(answer, Response):
            return answer
        return Response(answer.model_dump_json(), media_type="application/json")

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Listen on the kits' address while the context lasts."""
        app = FastAPI()
        app.add_route("/{path:path}", self.handle, methods=["GET", "PUT", "POST"])
        async with listening(app, self.federation):
            yield


def listening(app: Any, federation: FederationFolder) -> AbstractAsyncContextManager[None]:
    """An ASGI app on the address of the federation's kits, with its certificate."""
    return serving(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=int(federation.server_url.rsplit(":", 1)[1]),
            ssl_certfile=str(federation.server / "server.crt"),
            ssl_keyfile=str(federation.server / "server.key"),
            log_level="critical",
            timeout_keep_alive=600,  # one that ends while a request is on its way looks like a server that is away
            lifespan="off",
            ws="none",
        )
    )


def _target(request: Request) -> str:
    query = f"?{request.url.query}" if request.url.query else ""
    return request.scope["raw_path"].decode() + query


def problem(status: int, kind: str, detail: str, **members: str) -> Response:
    document = {"type": f"urn:fedcore:problem:{kind}", "title": kind, "status": status, "detail": detail, **members}
    return Response(json.dumps(document), status_code=status, media_type="application/problem+json")


@pytest.fixture
def make_task(tmp_path: Path) -> Callable[..., Task]:
    """A task that trains a small model; `tmp_path`/global.safetensors is that model."""
    values = np.linspace(-1, 1, 1000, dtype=np.float32)
    model = ModelState.from_arrays({"bias": values[:10].copy(), "weight": values.reshape(20, 50)})
    path = tmp_path / "global.safetensors"
    model.save(path)

    def make(**changes: Any) -> Task:
        if changes.get("aggregation") == "plain":
            save_message(path, model)
            changes = {"message": head(), **changes}
        layout = model.layout if changes.get("message_type", "train") == "train" else None
        fields: dict[str, Any] = {
            "run": "run one/../x",
            "exchange": 1,
            "attempt": 1,
            "server_round": 1,
            "message_type": "train",
            "aggregation": "secure",
            "app_sha256": APP,
            "run_config": {},
            "settings": JobSettings(w_max=100).for_clients(),
            "arrays_key": "arrays",
            "configs": {},
            "weight_key": "num-examples",
            "model": ModelRef(sha256=sha256_file(path), size=path.stat().st_size),
            "cohort": [1, 2, 3, 4],
            "quorum": 3,
            "protection": PROTECTION,
            "encoding": encoding_to_json(first_encoding(CodecSettings(w_max=100), layout, CLIENTS)),
            "roster": 1,
            "seconds": 3600.0,
        }
        return Task(**{**fields, **changes})

    return make


@pytest.fixture
def script(
    federation: FederationFolder, kits: dict[int, ClientKit], make_task: Callable[..., Task], tmp_path: Path
) -> Scripted:
    """An honest server that offers one secure training exchange."""
    return Scripted(federation=federation, kits=kits, model=tmp_path / "global.safetensors", task=make_task())


@pytest.fixture
def log() -> StringIO:
    """What the client says to its owner."""
    return StringIO()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(prepare_state_dir(tmp_path / "state")) as opened:
        yield opened


@pytest.fixture
def retry() -> Retry:
    """The client's patience; a test may parametrize it."""
    return QUICK


@pytest.fixture
def notices() -> list[str]:
    """What the transport says of requests that it sends again."""
    return []


@pytest.fixture
async def client(
    federation: FederationFolder,
    kits: dict[int, ClientKit],
    ledger: Ledger,
    tmp_path: Path,
    log: StringIO,
    retry: Retry,
    notices: list[str],
) -> AsyncIterator[Client]:
    """Client 1, with local work that takes no process."""
    kit = kits[1]
    transport = HttpTransport(
        urls=kit.servers, tls=tls_context(kit.ca_file), sign=signer(kit), retry=retry, notice=notices.append
    )
    with ClientTranscript(tmp_path / "state", kit.roster) as transcript, ResultCache(tmp_path / "state") as results:
        async with transport:
            yield Client(
                kit=kit,
                app_sha256=APP,
                agreed=AppAgreement(run_config={}, settings=JobSettings()),
                transport=transport,
                work=Shift(),
                ledger=ledger,
                transcript=transcript,
                state_dir=tmp_path / "state",
                results=results,
                pending=PendingUpdate(tmp_path / "state"),
                output=Output(name=kit.name, stream=log),
            )


@pytest.fixture
def allow() -> Callable[..., Client]:
    """A client whose owner has another policy."""

    def changed(client: Client, **policy: Any) -> Client:
        kit = replace(client.kit, policy=Policy.own(CLIENTS, **{"min_cohort": 2, "min_threshold": 2, **policy}))
        return replace(client, kit=kit)

    return changed


@pytest.fixture
def listening_to(federation: FederationFolder) -> Callable[[Any], Any]:
    """Serve an ASGI app of the test's own on the kits' address."""
    return lambda app: listening(app, federation)
