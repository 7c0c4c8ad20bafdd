"""A simulation that goes on where it was killed: what its ServerApp asked for and was answered, kept on disk.

As on a server (`server_app/runs/journal.py`, ADR 28) the ServerApp itself cannot be written down. It is started again,
and hears the same answers while it asks for the same; the first request without an answer is carried out. What else a
run consists of (`snapshot`) is kept with each answer. An answer and all that goes with it is one file, put in its place
in one rename: a process that is killed at any instant leaves it there or not.

The folder: `run.json` says which run it is; `steps/N.json` are the answers, in `steps/N` lie their models and records,
and the Contexts of the clients that worked for them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from pydantic import TypeAdapter

from fedcore.errors import ConfigurationError
from fedcore.flower.grid.grid import ExchangeBackend
from fedcore.flower.grid.plain_request import PlainRequest
from fedcore.flower.serverside import seed_generators
from fedcore.run.exchange import ExchangeReply, ExchangeRequest
from fedcore.run.plain import PlainReply
from fedcore.run.settings import JobSettings
from fedcore.simulation.checkpoint.generators import restore_generators, save_generators
from fedcore.simulation.checkpoint.snapshot import RunCheckpoint
from fedcore.simulation.downloads import Downloads
from fedcore.simulation.models import model_ref
from fedcore.state import ModelState, sha256_file
from fedcore.system.files import Lock, make_private_folder, write_file
from fedcore.system.version import fedcore_version
from fedcore.wire.events import EventSink, FiguresFound, RunEvent, RunResumed
from fedcore.wire.uploads import ReplyError

RUN_FILE: Final = "run.json"
FORMAT: Final = 3
"""Of the folder: each part of a run writes its own state."""
_EVENT: Final[TypeAdapter[RunEvent]] = TypeAdapter(RunEvent)
_DIFFERS: Final = (
    "the ServerApp was started again and did not do the same again: its request {number} differs in {fields}. What it "
    "draws from the clock or the system's randomness is another each time; let it use random, numpy.random or torch, "
    "which are seeded"
)


@dataclass(slots=True, kw_only=True)
class StateFolder:
    """The folder of one run. secret: what the keys of its simulated clients are derived from."""

    path: Path
    secret: bytes
    _lock: Lock

    @classmethod
    def open(cls, path: Path, what: Mapping[str, str]) -> StateFolder:
        """Begin a run in a folder, or resume the one that is there; raises ConfigurationError if it is another.

        what: tells one run from another, each entry a word or a hash. A run that ended
        before its first exchange leaves its folder to any other.
        """
        path = path.absolute()  # ServerApps run in a folder of their own
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"--state: {path} cannot be a folder: {error.strerror}") from None
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context(Lock(path, taken=f"--state: another simulation is at work in {path}"))
            secret = _secret_of(path, what)
            stack.pop_all()
        return cls(path=path, secret=secret, _lock=lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others have the folder."""
        self._lock.close()

    @property
    def steps(self) -> Path:
        """Where the answers are."""
        return self.path / "steps"


def _secret_of(path: Path, what: Mapping[str, str]) -> bytes:
    """The secret of the run that a folder is of, and this run's own from here on where it is of none."""
    file = path / RUN_FILE
    if not file.exists():
        if any(path.iterdir()):
            raise ConfigurationError(
                f"--state: {path} holds something else than the state of a simulation", check="other-content"
            )
        return _begin(path, what)
    try:
        found = json.loads(file.read_text())
        secret, kept, form = bytes.fromhex(found["secret"]), dict(found["what"]), found.get("format", 1)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"--state: {file} cannot be read: {error!r}") from None
    if form != FORMAT:
        raise ConfigurationError(
            f"--state: another version of fedcore wrote {path}, and this one cannot read it: its format is {form}, not "
            f"{FORMAT}. Name another folder, or go on with the fedcore that began the run",
            check="other-format",
        )
    if not (differs := [name for name in {**kept, **what} if kept.get(name) != what.get(name)]):
        return secret
    if _did_nothing(path / "steps"):
        return _begin(path, what)
    raise ConfigurationError(
        f"--state: {path} holds another run: {', '.join(differs)} differ. Name another folder, or resume the "
        "run with the options that it began with",
        check="other-run",
    )


def _begin(path: Path, what: Mapping[str, str]) -> bytes:
    shutil.rmtree(path / "steps", ignore_errors=True)
    (path / "steps").mkdir()
    secret = secrets.token_bytes(32)
    write_file(
        path / RUN_FILE,
        json.dumps({"format": FORMAT, "secret": secret.hex(), "what": dict(what)}),
        mode=0o600,
        durable=True,
    )
    return secret


def _did_nothing(steps: Path) -> bool:
    """Whether a run was over before its first exchange, since it was refused, say."""
    answers = (json.loads(file.read_text()) for file in steps.glob("*.json"))
    return all(answer["request"]["op"] == "nodes" for answer in answers)


@dataclass(slots=True)
class EventRecorder:
    """Passes the events of a run on, and records those that are not saved yet."""

    to: EventSink
    _events: list[RunEvent] | None = None

    def begin(self) -> None:
        """Record from here on."""
        self._events = []

    def __call__(self, event: RunEvent) -> None:
        if self._events is not None:
            self._events.append(event)
        self.to(event)

    def take(self) -> list[Any]:
        """The events since the last time, as JSON."""
        events, self._events = self._events or [], []
        return [event.model_dump(mode="json") for event in events]


@dataclass(slots=True, kw_only=True)
class Resumable:
    """The backend of a ServerApp that keeps each answer of the simulation, and gives those again that are kept.

    backend
        Answers what no earlier process has answered.
    downloads
        How models get to the clients: the next difference is taken to what was sent last, live or before.
    name
        Of the run; the generators of the process are seeded by it.
    """

    backend: ExchangeBackend
    downloads: Downloads
    folder: StateFolder
    checkpoint: RunCheckpoint
    events: EventRecorder
    name: str
    _steps: list[dict[str, Any]] = field(default_factory=list, init=False)
    _number: int = field(default=0, init=False)

    def begin(self) -> None:
        """Seed what apps draw from, emit the events of before, and put the simulation where it was."""
        self._read_steps()
        seed_generators(self.name)
        if self._steps:
            self._restore()
        self.checkpoint.restore_clients()  # also if there are none: an executor that cannot says so before the run
        self.events.begin()

    def _read_steps(self) -> None:
        while (file := self.folder.steps / f"{len(self._steps) + 1}.json").exists():
            self._steps.append(json.loads(file.read_text()))
        for leftover in self.folder.steps.iterdir():  # of an answer that was not kept to its end
            if leftover.is_dir() and int(leftover.name) > len(self._steps):
                shutil.rmtree(leftover)

    def _restore(self) -> None:
        why = f"{len(self._steps)} requests of the ServerApp have their answer in {self.folder.path}"
        self.events(RunResumed(steps=len(self._steps), why=why))
        for number, step in enumerate(self._steps, start=1):
            for event in step["events"]:
                self.events(_EVENT.validate_python(event))
            self.checkpoint.restore(step.pop("checkpoint"), self.folder.steps / str(number))

    def nodes(self) -> list[int]:
        """As `ExchangeBackend`."""
        found: list[int] = self._answer(
            {"op": "nodes"}, self.backend.nodes, lambda nodes, _: nodes, lambda kept, _: kept
        )
        return found

    def waits(self, nodes: int, setting: str, present: int) -> None:
        """As `ExchangeBackend`."""
        self.backend.waits(nodes, setting, present)

    def exchange(self, request: ExchangeRequest) -> list[ExchangeReply]:
        """As `ExchangeBackend`."""
        model = model_ref(request.model)
        asked = {
            "op": "exchange",
            "message_type": request.message_type,
            "nodes": list(request.nodes),
            "server_round": request.server_round,
            "model": model.sha256 if model else None,
            "configs": {key: dict(value) for key, value in request.configs.items()},
            "timeout": request.timeout,
        }
        self.downloads.of(request)  # also of what was answered before: the next difference is taken to it
        found: list[ExchangeReply] = self._answer(asked, lambda: self.backend.exchange(request), _keep_sums, _kept_sums)
        return found

    def ask(self, request: PlainRequest) -> list[PlainReply]:
        """As `ExchangeBackend`."""
        contents = _hashes(request)
        asked = {
            "op": "plain-exchange",
            "server_round": request.server_round,
            "questions": [[one.node, one.message_type, contents[one.content]] for one in request.messages],
            "timeout": request.timeout,
        }
        found: list[PlainReply] = self._answer(asked, lambda: self.backend.ask(request), _keep_replies, _kept_replies)
        return found

    def report_figures(self, figures: FiguresFound) -> None:
        """As `ExchangeBackend`; those before the last kept answer are among the events that were kept."""
        if self._number >= len(self._steps):
            self.backend.report_figures(figures)

    def _answer(
        self,
        asked: dict[str, Any],
        live: Callable[[], Any],
        keep: Callable[[Any, Path], Any],
        kept: Callable[[Any, Path], Any],
    ) -> Any:
        self._number += 1
        request = json.loads(json.dumps(asked))
        folder = self.folder.steps / str(self._number)
        if self._number <= len(self._steps):
            step = self._steps[self._number - 1]
            if fields := [key for key in request if request[key] != step["request"].get(key)]:
                raise ConfigurationError(_DIFFERS.format(number=self._number, fields=", ".join(fields)))
            restore_generators(step["generators"])
            return kept(step["answer"], folder)
        answer = live()
        folder.mkdir()
        step = {"request": request, "answer": keep(answer, folder), "generators": save_generators()}
        step["events"] = self.events.take()
        step["checkpoint"] = self.checkpoint.save(folder)
        write_file(self.folder.steps / f"{self._number}.json", json.dumps(step), durable=True)
        self._steps.append({})  # the number of steps is all that is needed of it
        self.checkpoint.remove_superseded(folder)
        return answer


def identity_of(settings: JobSettings, options: Mapping[str, object]) -> dict[str, str]:
    """What tells one run from another: a hash of each option that decides it, by its name.

    Raises ConfigurationError for a run that cannot be kept.
    """
    if settings.buffered:
        raise ConfigurationError(
            "--state: a run without rounds cannot be kept, since clients are always at work in it",
            check="without-rounds",
        )
    parts = {"fedcore": fedcore_version(), **options, "settings": sorted(settings.to_mapping().items())}
    return {name: hashlib.sha256(repr(part).encode()).hexdigest() for name, part in parts.items()}


def _keep_sums(replies: list[ExchangeReply], place: Path) -> Any:
    kept = []
    for number, reply in enumerate(replies):
        state = reply.model()
        if state is not None:
            state.save(place / f"{number}.safetensors")
        sums = {"node": reply.node, "examples": reply.examples, "metrics": dict(reply.metrics)}
        kept.append({**sums, "state": state is not None})
    return kept


def _kept_sums(kept: Any, place: Path) -> list[ExchangeReply]:
    return [
        ExchangeReply(
            node=one["node"],
            state=ModelState.open(place / f"{number}.safetensors") if one["state"] else None,
            examples=one["examples"],
            metrics=one["metrics"],
        )
        for number, one in enumerate(kept)
    ]


def _keep_replies(replies: list[PlainReply], place: Path) -> Any:
    kept = []
    for reply in replies:
        if reply.content is not None:
            reply.save(place / f"{reply.node}.reply")
        error = reply.error.model_dump(mode="json") if reply.error is not None else None
        told = {"node": reply.node, "examples": reply.examples, "metrics": dict(reply.metrics), "error": error}
        kept.append({**told, "content": reply.content is not None})
    return kept


def _kept_replies(kept: Any, place: Path) -> list[PlainReply]:
    return [
        PlainReply(
            node=one["node"],
            content=place / f"{one['node']}.reply" if one["content"] else None,
            error=ReplyError.model_validate(one["error"]) if one["error"] else None,
            examples=one["examples"],
            metrics=one["metrics"],
        )
        for one in kept
    ]


def _hashes(request: PlainRequest) -> list[str]:
    folder = make_private_folder()
    try:
        hashes = []
        for content in request.contents:
            content.save(folder / "content")
            hashes.append(sha256_file(folder / "content"))
        return hashes
    finally:
        shutil.rmtree(folder)
