"""One exchange, from the task to the last share, as this client sees it.

Secure (docs/protocol.md): the keys are exchanged (R0, R1) while the worker trains; then the update is encoded, masked
and uploaded (R2), the survivors are signed (R3) and the shares released (R4). Plain: train, upload. Whatever a step
raises ends the exchange for this client; the caller withdraws from it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn, Protocol, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from client_app.admission import check_encoding, check_privacy, check_task, derive_parameters
from client_app.eligibility import Eligibility
from client_app.ledger import Ledger
from client_app.output import Output
from client_app.ranks.messages import LocalAnswer
from client_app.transport import LONG_POLL_SECONDS, Transport
from client_app.upload import Parts, read_parts, send_parts
from fedcore import conversions
from fedcore.codec import AnyEncoding, encode, release_of
from fedcore.errors import AppError, EncodingError, FedcoreError, ProtocolViolation, RoundFailed
from fedcore.federation import ClientKit
from fedcore.federation.eligibility import EligibilityRules
from fedcore.parts import PART_BYTES, update_digest
from fedcore.secagg import (
    Check,
    ClientSession,
    Randomness,
)
from fedcore.state import ModelState, sha256_file
from fedcore.system.concurrency import guarded, in_thread
from fedcore.wire import (
    CohortOut,
    DeliveryOut,
    ManifestIn,
    Message,
    MetricSlots,
    SignaturesOut,
    SurvivorsOut,
    Task,
)

OTHERS_SECONDS: Final = 900.0
"""How much longer than its own training time a client waits for the rest of an exchange."""

POLL_PAUSE: Final = 0.05
"""Seconds between two polls, so that a server that does not hold them gets no busy loop out of its clients."""

Out = TypeVar("Out", bound=Message)


class LocalWork(Protocol):
    """Who runs the ClientApp: `client_app.ranks.group.RankGroup`."""

    async def run(self, task: Task, model: Path | None, out: Path) -> LocalAnswer:
        """Run one task for at most `task.seconds`; the new model goes to `out`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What an exchange needs of its client.

    app_sha256: the app that the owner agreed to. state_dir: where models and updates lie while they are needed.
    randomness: for the protocol and the stochastic rounding. threads: for masking.
    eligibility: whether the owner lets the machine train now.
    """

    kit: ClientKit
    app_sha256: str
    transport: Transport
    work: LocalWork
    ledger: Ledger
    state_dir: Path
    output: Output
    randomness: Randomness = os.urandom
    threads: int = 1
    others_seconds: float = OTHERS_SECONDS
    clock: Callable[[], float] = time.monotonic
    eligibility: Eligibility = field(default_factory=lambda: Eligibility.of(EligibilityRules()))


async def take_part(task: Task, client: Client) -> None:
    """Take part in one exchange; raises what ended it early.

    The exchange's number is used up first, so that nothing after it can happen twice. A client whose owner does not let
    the machine train leaves before, or while it trains; once its update is on its way it stays to the end, which takes
    little, and spares the others the work that a dropout costs them.
    """
    client.eligibility.check()
    client.ledger.enter(task.run, task.exchange)
    check_task(task, client.kit, client.app_sha256)
    with _scratch(client.state_dir) as folder:
        exchange = _Exchange(task=task, client=client, folder=folder)
        try:
            async with asyncio.timeout(task.seconds + client.others_seconds):
                await (exchange.secure() if task.aggregation == "secure" else exchange.plain())
        except TimeoutError:
            raise RoundFailed("the server did not bring the exchange to an end in time") from None


def exchange_path(run: str, exchange: int) -> str:
    """The path that all of an exchange's routes begin with."""
    return f"/v1/runs/{quote(run, safe='')}/exchanges/{exchange}"


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """The steps of one exchange."""

    task: Task
    client: Client
    folder: Path
    _started: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self.client.clock()

    async def secure(self) -> None:
        """R0 to R4."""
        model, model_hash = await self._model()
        encoding = check_encoding(self.task, model)
        await in_thread(check_privacy, self.task, encoding, self.client.kit.policy, self.client.ledger.spent)
        session = self._session(model_hash)
        try:
            local = await self._train(session, model)
            words, metrics = await self._encode(encoding, model, local)
            if (release := release_of(encoding)) is not None:
                await in_thread(self.client.ledger.spend, self.task.run, self.task.exchange, release)
            await self._upload(session, words, metrics)
            await self._unmask(session)
        finally:
            session.abandon()

    async def plain(self) -> None:
        """Train or evaluate, and send what came out as it is."""
        model, _ = await self._model()
        local = await self._work(model)
        manifest = ManifestIn(
            digest=update_digest(0, ()).hex(),
            size=0,
            metrics=_slots(_metric_names(local)),
            examples=local.examples,
            values=dict(local.metrics),
        )
        if local.trained:
            size = self._new_model.stat().st_size
            digest = await self._send(read_parts(self._new_model), size, "sent")
            manifest = manifest.model_copy(update={"digest": digest, "size": size})
        await self._put("manifest", manifest)

    # --- the local work -----------------------------------------------------------------------------------------

    @property
    def _new_model(self) -> Path:
        return self.folder / "local.safetensors"

    async def _model(self) -> tuple[ModelState | None, bytes | None]:
        """The global model and the SHA-256 of the very file that it was read from."""
        reference = self.task.model
        if reference is None:
            return None, None
        started = self.client.clock()
        path = self.client.state_dir / "models" / f"{reference.sha256}.safetensors"
        if not path.exists() or await in_thread(sha256_file, path) != reference.sha256:
            _empty(path.parent)
            await self.client.transport.download(
                self._path("model"), path, size=reference.size, sha256=reference.sha256
            )
            self._say("model", f"received {_size(reference.size)}", started)
        try:
            return ModelState.open(path), bytes.fromhex(reference.sha256)
        except FedcoreError as error:
            raise ProtocolViolation("model-malformed", str(error)) from None

    async def _train(self, session: ClientSession, model: ModelState | None) -> LocalAnswer:
        """The local work, with R0 and R1 beside it; ends at once when the exchange does."""
        keyed = asyncio.Event()

        async def protocol() -> NoReturn:
            await self._exchange_keys(session)
            keyed.set()
            await self._watch()

        async def work() -> LocalAnswer:
            local = await self._work(model)
            await keyed.wait()
            return local

        return await guarded(work(), protocol())

    async def _watch(self) -> NoReturn:
        """Notice, while the worker still trains, that the exchange has failed or goes on without this client."""
        await self._poll("survivors", SurvivorsOut)
        raise ProtocolViolation(Check.OWN_ID_MISSING, "the survivors are named before this client sent its vector")

    async def _work(self, model: ModelState | None) -> LocalAnswer:
        started = self.client.clock()
        work = self.client.work.run(self.task, model.path if model else None, self._new_model)
        local = await guarded(work, self.client.eligibility.lost())
        if local.trained != self.task.trains:
            raise AppError("the worker returned a model that was not asked for, or none where one was")
        self._say(self.task.message_type, f"{local.examples} examples {_metrics_text(local)}", started)
        return local

    async def _encode(
        self, encoding: AnyEncoding, model: ModelState | None, local: LocalAnswer
    ) -> tuple[NDArray[np.uint64], list[MetricSlots]]:
        """The update as words, clipped and rounded, ready to be masked."""
        state = ModelState.open(self._new_model) if local.trained else None
        started = self.client.clock()
        encoded = await in_thread(
            encode,
            encoding,
            base=model if self.task.trains else None,
            local=state,
            examples=local.examples,
            metrics=local.metrics,
            randomness=self.client.randomness,
            threads=self.client.threads,
        )
        notes = [f"{encoding.field_bits}-bit fields"]
        notes += [f"{encoded.clipped} elements clipped"] if encoded.clipped else []
        notes += ["shrunk to the L2 bound"] if encoded.shrunk else []
        self._say("encode", ", ".join(notes), started)
        return encoded.words, _slots(encoded.metric_names)

    # --- the protocol -------------------------------------------------------------------------------------------

    def _session(self, model_hash: bytes | None) -> ClientSession:
        kit = self.client.kit
        return ClientSession(
            parameters=derive_parameters(self.task, kit, model_hash),
            client_id=kit.client_id,
            identity=kit.identity,
            roster=kit.roster.keys,
            min_cohort=kit.policy.min_cohort,
            min_threshold=kit.policy.min_threshold,
            randomness=self.client.randomness,
        )

    async def _exchange_keys(self, session: ClientSession) -> None:
        """R0 and R1: nothing in them depends on the update."""
        started = self.client.clock()
        cohort = self.task.cohort
        keys = conversions.advertisement_to_wire(session.advertise())
        listed = await self._step("advertisement", keys, "cohort", CohortOut)
        dealt = await in_thread(session.share_keys, conversions.cohort_from_wire(listed, cohort))
        answer = conversions.key_shares_to_wire(dealt)
        delivered = await self._step("key-shares", answer, "key-shares", DeliveryOut)
        delivery = conversions.delivery_from_wire(delivered, cohort)
        await in_thread(session.receive_shares, delivery)
        self._say("keys", f"exchanged with {len(delivery.shares)} of {len(delivery.sharers)} clients", started)

    async def _upload(self, session: ClientSession, words: NDArray[np.uint64], metrics: list[MetricSlots]) -> None:
        """R2: mask in place and send, part by part; then say that this was all."""
        parts = await in_thread(
            session.mask_parts, words, part_words=PART_BYTES // words.itemsize, threads=self.client.threads
        )
        digest = await self._send(parts, words.nbytes, "masked and sent")
        await self._put("manifest", ManifestIn(digest=digest, size=words.nbytes, metrics=metrics))

    async def _unmask(self, session: ClientSession) -> None:
        """R3 and R4: agree on who survived, then release one share for each, once."""
        shown = await self._poll("survivors", SurvivorsOut)
        survivors = conversions.survivors_from_wire(shown, self.task.cohort)
        agreed = conversions.consistency_to_wire(session.sign_survivors(survivors))
        collected = await self._step("consistency", agreed, "consistency", SignaturesOut)
        released = await in_thread(session.unmask, conversions.signatures_from_wire(collected))
        # On disk before it is on the wire: no restart can make these shares leave twice.
        await in_thread(self.client.ledger.unmask, self.task.run, self.task.exchange)
        await self._put("unmask", conversions.unmask_to_wire(released))
        self._say("done", f"in the sum of {len(survivors.survivors)} clients", self._started)

    # --- the wire -----------------------------------------------------------------------------------------------

    def _path(self, route: str) -> str:
        return f"{exchange_path(self.task.run, self.task.exchange)}/{route}"

    async def _put(self, route: str, message: Message) -> None:
        await self.client.transport.send("PUT", self._path(route), message)

    async def _step(self, route: str, message: Message, following: str, answer: type[Out]) -> Out:
        """Send a message and get what it leads to, in the same request if that comes soon."""
        found = await self.client.transport.put(self._path(route), message, answer, wait=LONG_POLL_SECONDS)
        return found if found is not None else await self._poll(following, answer)

    async def _poll(self, route: str, answer: type[Out]) -> Out:
        """Ask until the server has an answer; `take_part` bounds how long."""
        while True:
            found = await self.client.transport.get(self._path(route), answer, wait=LONG_POLL_SECONDS)
            if found is not None:
                return found
            await asyncio.sleep(POLL_PAUSE)

    async def _send(self, parts: Parts, size: int, done: str) -> str:
        """The update, part by part; returns the digest for its manifest."""
        started = self.client.clock()
        digest = await send_parts(self.client.transport, self._path("update/parts"), parts, size=size)
        self._say("upload", f"{done} {_size(size)}", started)
        return digest

    def _say(self, stage: str, text: str, since: float) -> None:
        self.client.output.info(stage, text, seconds=round(self.client.clock() - since, 3))


@contextmanager
def _scratch(state_dir: Path) -> Iterator[Path]:
    """A private folder for one exchange, removed after it."""
    folder = Path(tempfile.mkdtemp(prefix="exchange-", dir=state_dir))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def prepare_state_dir(folder: Path) -> Path:
    """Make the agent's folder, readable by its owner alone, and remove what an earlier start left in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "models").mkdir(mode=0o700, exist_ok=True)
    for left in folder.glob("exchange-*"):
        shutil.rmtree(left, ignore_errors=True)
    return folder


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def _metric_names(local: LocalAnswer) -> tuple[tuple[str, int | None], ...]:
    """Names and lengths of the metrics in the codec's order, None for a plain number."""
    lengths = {name: len(value) if isinstance(value, list) else None for name, value in local.metrics.items()}
    return tuple(sorted(lengths.items()))


def _slots(names: tuple[tuple[str, int | None], ...]) -> list[MetricSlots]:
    """What the manifest tells about the metrics; on the wire a length of 0 stands for a plain number."""
    for name, length in names:
        if length == 0 or not 1 <= len(name) <= 200:
            raise EncodingError(f"metric {name[:200]!r} is an empty list, or its name is not 1 to 200 characters long")
    return [MetricSlots(name=name, length=length or 0) for name, length in names]


def _size(size: int) -> str:
    return f"{size / 1e6:.2f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _metrics_text(local: LocalAnswer) -> str:
    """The client's own metrics, for its own log: they leave the machine inside the sum only."""
    return " ".join(f"{name}={value:.4g}" for name, value in local.metrics.items() if isinstance(value, int | float))
