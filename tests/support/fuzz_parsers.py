"""Everything that reads a peer's bytes, each with real ones to begin from."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from pydantic import TypeAdapter, ValidationError
from uvicorn.server import ServerState

from client_app.exchange.task_reading import read_task
from client_app.http.errors import refusal
from client_app.ranks.messages import FROM_RANK, TO_RANK, Done, Failure, Greeting, LocalAnswer, RankTask, Ready
from client_app.records import ledger_entries, transcript
from fedcore.codec import decode, encode, encode_nothing
from fedcore.data.statistics import StatisticsQuery
from fedcore.errors import ConfigurationError, PeerError, ProtocolViolation, RoundFailed, Unauthorized
from fedcore.federation import ClientKit, OperatorKit, ServerKit
from fedcore.federation.authority import Authority
from fedcore.federation.chain import chain_text, load_chain, successors
from fedcore.federation.policy import Policy
from fedcore.federation.requests import Admission, JoinRequest
from fedcore.federation.transcript import TranscriptOut
from fedcore.federation.transcript.chain import Chain, keys_of
from fedcore.flower.app import AppBundle
from fedcore.run.exchange import encoding_of
from fedcore.state import ModelState
from fedcore.system.plain_json import from_plain
from fedcore.wire.base import Bytes, Message
from fedcore.wire.presence import RostersOut
from fedcore.wire.record_file import read_records
from fedcore.wire.signing import NonceCache, verify_headers
from fedcore.wire.tasks import Task
from server_app.http.authentication import client_of
from server_app.http.connection_limiter import Connection, ConnectionLimiter
from server_app.http.head_limits import GuardedProtocol
from server_app.runs.app.messages import FROM_APP, TO_APP, AppEnd, AppFailure, ExchangeCall, NodesCall, Start

from .fuzz_round import round_parsers
from .fuzz_seeds import Corpus, Recorded
from .fuzzing import Parser

_JOURNAL = b'{"event":"began","hash":""}\n{"event":"signed","hash":"%s","unfinished":"%s"}\n' % (b"a" * 64, b"b" * 64)
REFUSED = (ValidationError, ConfigurationError, PeerError)


def parsers(corpus: Corpus, scratch: Path) -> list[Parser]:
    """All of them. scratch: a folder, best in memory, for those that read files."""
    return [
        *_messages(corpus),
        *_heads(corpus),
        *_files(corpus, scratch),
        *_signed(corpus, scratch),
        *_processes(corpus),
        *_codec(corpus, scratch),
        *_texts(corpus, scratch),
        *round_parsers(corpus),
    ]


# --- control messages -----------------------------------------------------------------------------------------------


def _messages(corpus: Corpus) -> list[Parser]:
    """Every model that a route reads, or that a client or an operator's command reads."""
    found = [
        Parser(
            name=f"message {kind.__name__}",
            seeds=tuple(dict.fromkeys(texts))[:8],
            feed=kind.model_validate_json,
            documented=(ValidationError,),
            share=4.0,
        )
        for kind, texts in corpus.models.items()
        if issubclass(kind, Message)
    ]
    tasks = corpus.bodies("/v1/task", of_answers=True)
    wide = _wide(json.loads(tasks[0]))
    problem = b'{"type":"urn:fedcore:problem:busy","title":"t","status":503,"detail":"d","check":"x"}'
    found += [
        Parser(
            name="task",
            seeds=(*tasks[:2], wide),
            feed=lambda content: _digest(read_task(content, max_tensors=40)),
            documented=(ValueError, ProtocolViolation),
            share=0.05,
        ),
        Parser(
            name="problem",
            seeds=(problem,),
            feed=lambda content: refusal(500, content, of="it"),
            documented=(),
            share=4.0,
        ),
    ]
    return found


def _digest(task: Task) -> object:
    """What a client does with any task first."""
    return task.digest(), task.trains, task.subject_model


def _wide(task: dict[str, Any]) -> bytes:
    """A task with more tensors than are read at once."""
    layout = task["encoding"]["layout"]
    return json.dumps({**task, "encoding": {**task["encoding"], "layout": layout * 2000}}).encode()


# --- heads of requests ----------------------------------------------------------------------------------------------


def _heads(corpus: Corpus) -> list[Parser]:
    signed = [one for one in corpus.recorded if "signature" in one.headers][:12]
    keys = ServerKit.load(corpus.folder.server).rosters[-1].keys
    now = int(time.time())

    def verify(content: bytes) -> None:
        first, *lines = content.decode("latin-1").split("\n")
        method, _, target = first.partition(" ")
        headers = {line.partition(": ")[0].lower(): line.partition(": ")[2] for line in lines}
        verify_headers(
            method, target, headers, resolve_key=lambda name: keys[client_of(name)], now=now, nonces=NonceCache()
        )

    return [
        Parser(
            name="signature of a head",
            seeds=tuple(_lines(one) for one in signed),
            feed=verify,
            documented=(Unauthorized,),
            share=0.5,
        ),
        Parser(name="HTTP", seeds=tuple(map(_raw, signed)), feed=_Connection(), documented=()),
    ]


def _lines(one: Recorded) -> bytes:
    fields = ("content-digest", "signature-input", "signature")
    return "\n".join([f"{one.method} {one.path}", *(f"{name}: {one.headers[name]}" for name in fields)]).encode()


def _raw(one: Recorded) -> bytes:
    lines = [f"{one.method} {one.path} HTTP/1.1", *(f"{name}: {value}" for name, value in one.headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + one.body[:2000]


class _Transport(asyncio.Transport):
    """A connection that takes everything and is never slow. protocol: who has it."""

    closing = False
    protocol: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def receive(self, data: bytes) -> None:
        """Bytes arrive; of a long body into the buffer that is meant for them."""
        while data and isinstance(self.protocol, asyncio.BufferedProtocol) and not self.closing:
            buffer = memoryview(self.protocol.get_buffer(-1))
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            data = data[count:]
            self.protocol.buffer_updated(count)
        if data and isinstance(self.protocol, asyncio.Protocol) and not self.closing:
            self.protocol.data_received(data)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def write(self, data: Any) -> None: ...

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


async def _application(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and answers."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class _Connection:
    """The server's protocol class, over a connection that is made anew for each input; made when it is first fed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._socket = socket.socket()  # connected to nothing: what is sent goes to the transport
        weakref.finalize(self, self._socket.close)

    def __call__(self, content: bytes) -> None:
        if self._loop is None:
            logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
            self._loop = asyncio.new_event_loop()
            weakref.finalize(self, self._loop.close)
            self._config = uvicorn.Config(
                _application, http=GuardedProtocol, ws="none", lifespan="off", log_config=None
            )
            self._config.load()
        self._loop.run_until_complete(self._serve(content))

    async def _serve(self, content: bytes) -> None:
        errors: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        protocol = GuardedProtocol(
            config=self._config,
            server_state=ServerState(),
            app_state={},
            limiter=ConnectionLimiter(most=10, seconds=5.0),
            connection=Connection(sock=self._socket, address="127.0.0.1"),
        )
        protocol.connection_made(transport := _Transport())
        transport.protocol = protocol
        half = len(content) // 2
        for piece in (content[:half], content[half:]):
            if not transport.closing:
                transport.receive(piece)
                await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        protocol.connection_lost(None)
        await asyncio.sleep(0)
        if errors:
            raise errors[0].get("exception") or AssertionError(errors[0]["message"])


# --- files that a peer made -----------------------------------------------------------------------------------------


def _files(corpus: Corpus, scratch: Path) -> list[Parser]:
    path = scratch / "file"

    def stored(read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def feed(content: bytes) -> object:
            path.write_bytes(content)
            return read(path)

        return feed

    def model(source: Path) -> None:
        for tensor in ModelState.open(source).values():
            tensor.sum()

    models = corpus.bodies("/model", of_answers=True)
    secure = tuple(one for one in models if b"fedcore-records" not in one)[:2]
    plain = tuple(one for one in models if b"fedcore-records" in one)[:2]
    uploads = tuple(one for one in corpus.bodies("/update/parts/0") if b"fedcore-records" in one)[:2]
    return [
        Parser(name="safetensors", seeds=secure, feed=stored(model), documented=REFUSED, share=2.0),
        Parser(name="record file", seeds=plain + uploads, feed=stored(read_records), documented=REFUSED, share=2.0),
    ]


def _signed(corpus: Corpus, scratch: Path) -> list[Parser]:
    """Rosters, requests, admissions and the transcript: signed by the federation's authority or its members."""
    kit = ServerKit.load(corpus.folder.server)
    roster = kit.rosters[-1]
    client = ClientKit.load(corpus.folder.clients[0])
    request = JoinRequest.make("client-9", client.identity)
    path = scratch / "signed"

    def stored(read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def feed(content: bytes) -> object:
            path.write_bytes(content)
            return read(path)

        return feed

    def follow(content: bytes) -> None:
        successors(roster, RostersOut.model_validate_json(content).rosters, kit.authority)

    def records(content: bytes) -> None:
        chain = Chain()
        for signed in TranscriptOut.model_validate_json(content).records:
            chain.extend(signed, keys_of(kit.rosters))

    authority = Authority.load(corpus.folder.folder)
    newer = authority.revoke(["client-4"]).roster
    transcripts = corpus.bodies("/transcript", of_answers=True)
    full = max(transcripts, key=len)
    return [
        Parser(
            name="rosters",
            seeds=tuple(RostersOut(rosters=[one.to_json()]).model_dump_json().encode() for one in (newer, roster)),
            feed=follow, documented=REFUSED, share=2.0,
        ),
        Parser(
            name="rosters.json", seeds=(chain_text((roster, newer)).encode(),),
            feed=stored(lambda file: load_chain(file, kit.authority)), documented=REFUSED, share=0.5,
        ),
        Parser(name="request", seeds=(request.to_json().encode(),), feed=stored(JoinRequest.load), documented=REFUSED),
        Parser(
            name="admission", seeds=(authority.admission(1).to_json().encode(),),
            feed=stored(Admission.load), documented=REFUSED, share=0.5,
        ),
        Parser(name="transcript", seeds=(full,), feed=records, documented=REFUSED),
    ]  # fmt: skip


# --- other processes ------------------------------------------------------------------------------------------------


def _processes(corpus: Corpus) -> list[Parser]:
    task = Task.model_validate_json(corpus.bodies("/v1/task", of_answers=True)[0])
    asked = ExchangeCall(
        message_type="train", nodes=[1, 2], server_round=1, model="/m", arrays_key="arrays",
        configs={"config": {"a": 1}}, weight_key="num-examples", timeout=None, ahead={"train": 2},
    )  # fmt: skip
    start = Start(app="a", folder="/f", run="r", run_config={"x": 1}, aggregation="secure", question=None)
    lines: dict[str, tuple[TypeAdapter[Any], list[Message]]] = {
        "ServerApp to server": (FROM_APP, [NodesCall(), asked, AppEnd(model="/m"), AppFailure(reason="r")]),
        "server to ServerApp": (TO_APP, [start]),
        "rank to agent": (
            FROM_RANK,
            [
                Ready(app_sha256="ab"),
                LocalAnswer(examples=3, metrics={"loss": 1.0, "pair": [1.0]}, trained=True),
                Done(),
                Failure(kind="peer-lost", text="t", rank=1),
            ],
        ),
        "agent to rank": (
            TO_RANK,
            [
                Greeting(app="a", app_sha256="b", client_id=1, node_config={"a": 1}, local_folder=None, engine={}),
                RankTask(task=task, model="/m", out="/o"),
            ],
        ),
    }
    return [
        Parser(
            name=f"line from {name}",
            seeds=tuple(message.model_dump_json().encode() for message in messages),
            feed=adapter.validate_json,
            documented=(ValueError,),
            share=4.0,
        )
        for name, (adapter, messages) in lines.items()
    ]


# --- sums -----------------------------------------------------------------------------------------------------------


def _codec(corpus: Corpus, scratch: Path) -> list[Parser]:
    """An unmasked sum is what the clients made it; here it is words of which nothing is known."""
    tasks = [Task.model_validate_json(text) for text in corpus.bodies("/v1/task", of_answers=True)]
    task = next(task for task in tasks if task.aggregation == "secure")
    encoding = encoding_of(task)
    base_file = scratch / "base"
    base_file.write_bytes(
        next(one for one in corpus.bodies("/model", of_answers=True) if b"fedcore-records" not in one)
    )
    base = ModelState.open(base_file)
    size = encoding.words * 8

    def feed(content: bytes) -> None:
        words = np.frombuffer(content[:size].ljust(size, b"\0"), np.uint64).copy()
        decode(encoding, words, survivors=4, base=base)

    local = ModelState.from_arrays({name: value + value.dtype.type(1) for name, value in base.items()})
    update = encode(encoding, base=base, local=local, examples=10, metrics={"loss": 0.5}, randomness=os.urandom)
    nothing = encode_nothing(encoding, randomness=os.urandom)
    sums = (4 * update.words, 3 * update.words + nothing.words)
    return [
        Parser(
            name="sum of words", seeds=(*(one.tobytes() for one in sums), bytes(size)), feed=feed,
            documented=(*REFUSED, RoundFailed), share=0.5,
        )
    ]  # fmt: skip


# --- files of texts -------------------------------------------------------------------------------------------------


def _texts(corpus: Corpus, scratch: Path) -> list[Parser]:
    """Kits as they are handed out, apps as they are submitted, questions, and what a client wrote before."""
    folder = corpus.folder

    def toml(kit: Path, name: str, load: Callable[[Path], object]) -> Parser:
        copy = scratch / f"{kit.name}-{name}"
        copy.mkdir()
        for path in kit.iterdir():
            if path.is_file():
                (copy / path.name).write_bytes(path.read_bytes())
                os.chmod(copy / path.name, path.stat().st_mode)
        target = copy / name

        def feed(content: bytes) -> object:
            target.write_bytes(content)
            return load(target if load == Policy.load else copy)

        return Parser(
            name=f"{kit.name}/{name}", seeds=((kit / name).read_bytes(),), feed=feed, documented=REFUSED, share=0.05
        )

    bundle: TypeAdapter[dict[str, bytes]] = TypeAdapter(dict[str, Bytes])
    question: TypeAdapter[StatisticsQuery] = TypeAdapter(StatisticsQuery)
    asked = {"names": ["a", "b"], "low": [0.0, 1.0], "high": [1.0, 2.0], "bins": 16, "epsilon": 1.0, "delta": 1e-6}
    app = next(one for one in corpus.bodies("/v1/runs") if one)
    entry = b'{"event":"entered","run":"r","exchange":1}\n{"event":"left","run":"r","exchange":1}\n'
    anywhere = Path("journal")
    return [
        toml(folder.clients[0], "client.toml", ClientKit.load),
        toml(folder.clients[0], "policy.toml", Policy.load),
        toml(folder.server, "server.toml", ServerKit.load),
        toml(folder.operator, "operator.toml", OperatorKit.load),
        Parser(
            name="files of an app",
            seeds=(json.dumps(json.loads(app)["files"]).encode(),),
            feed=lambda content: AppBundle(bundle.validate_json(content)).sha256,
            documented=REFUSED,
        ),
        Parser(
            name="question",
            seeds=(json.dumps(asked).encode(),),
            feed=lambda content: from_plain(question, json.loads(content), what="the question"),
            documented=(ValueError, RecursionError, *REFUSED),
            share=2.0,
        ),
        Parser(
            name="ledger",
            seeds=(entry,),
            feed=lambda content: list(ledger_entries.read_entries(anywhere, content)),
            documented=REFUSED,
        ),
        Parser(
            name="journal of the transcript",
            seeds=(_JOURNAL,),
            feed=lambda content: list(transcript.read_entries(anywhere, content)),
            documented=REFUSED,
        ),
    ]
