"""Members of a federation that speak the protocol with real sessions, and without training.

A `Member` signs requests, masks and uploads what a test gives it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from fedcore.codec import BoundedEncoding, encode, encode_nothing, steps_of
from fedcore.codec.bounded.proofs import NormWitness, statement_of
from fedcore.errors import ProtocolViolation
from fedcore.federation import ClientKit
from fedcore.run.exchange import encoding_of, round_parameters
from fedcore.run.groups import is_draw, make_ticket
from fedcore.secagg import ClientSession, KeyShares, ShareDelivery
from fedcore.state import ModelState
from fedcore.wire import secagg_codec
from fedcore.wire.base import Message
from fedcore.wire.chunks import PART_BYTES, update_digest
from fedcore.wire.forms import our_version
from fedcore.wire.presence import JoinIn, WorkIn, WorkState
from fedcore.wire.problems import ProblemDocument
from fedcore.wire.secagg import CohortOut, DealingOut, DeliveryOut, SignaturesOut, SurvivorsOut
from fedcore.wire.signing import sign_headers
from fedcore.wire.tasks import DrawTicketIn, Task
from fedcore.wire.uploads import ComplaintIn, ManifestIn, WithdrawalReason, WithdrawIn

from .hostile import sign_again
from .messages import model_in, save_message

POLL_SECONDS = 30.0
"""The longest that the server lets a request wait."""
POLLS = 3
"""How often a member asks for what should come at once; a machine may be busy."""


class Failure(AssertionError):
    """A request that the server refused, with its problem document."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.problem = ProblemDocument.model_validate_json(response.content)
        super().__init__(f"{response.status_code} {self.problem.kind}: {self.problem.detail}")
        self.status = response.status_code
        self.kind = self.problem.kind
        self.check = (self.problem.model_extra or {}).get("check", "")


@dataclass
class Local:
    """What a member contributes: `by` is added to every float, `counted` to every integer."""

    by: float = 1.0
    examples: int = 10
    counted: int = 1
    fails: bool = False
    """Whether it contributes nothing."""
    stretch: int = 1
    """How many times as long as its update is what it masks, although it claims the update's norm."""
    spoils: bool = False
    """Whether zeros take the place of its proof."""
    metrics: dict[str, Any] = field(default_factory=lambda: {"loss": 0.5})

    def train(self, model: ModelState) -> ModelState:
        arrays = {
            name: value + (np.float32(self.by) if value.dtype.kind == "f" else self.counted)
            for name, value in model.items()
        }
        return ModelState.from_arrays({name: np.asarray(value, model[name].dtype) for name, value in arrays.items()})


class Member:
    """One client of the roster, over any httpx client; each step of an exchange is a method."""

    def __init__(self, kit: ClientKit, http: httpx.AsyncClient, folder: Path) -> None:
        self.kit = kit
        self.id = kit.client_id
        self.http = http
        self.local = Local()
        self.task: Task | None = None
        self.session: ClientSession | None = None
        self.sent: dict[str, bytes] = {}
        self.place: DrawTicketIn | None = None
        self.work: Task | None = None
        self.base = folder
        self.witness: NormWitness | None = None
        self._folder = folder
        self._model: ModelState | None = None

    # --- requests -------------------------------------------------------------------------------

    def signed(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        key: Ed25519PrivateKey | None = None,
        key_id: str | None = None,
        now: float | None = None,
        digest: bytes | None = None,
    ) -> dict[str, str]:
        return sign_headers(
            method,
            path,
            digest or hashlib.sha256(body).digest(),
            key_id=key_id or f"client-{self.id}",
            key=key or self.kit.identity,
            now=int(now if now is not None else time.time()),
            nonce=os.urandom(12).hex(),
        )

    async def ask(self, method: str, path: str, body: Message | bytes = b"", **options: Any) -> httpx.Response:
        """A signed request; Failure where the answer is a problem."""
        raw = body if isinstance(body, bytes) else body.model_dump_json().encode()
        kind = "application/octet-stream" if "/update/parts/" in path else "application/json"
        headers = {"Content-Type": kind, **self.signed(method, path, raw, **options)}
        response = await self.http.request(method, path, content=raw, headers=headers)
        if response.status_code >= 400:
            raise Failure(response)
        return response

    async def put(self, step: str, body: Message | bytes) -> None:
        """A step of the exchange; what was sent is kept for repetition."""
        self.sent[step] = body if isinstance(body, bytes) else body.model_dump_json().encode()
        await self.ask("PUT", self.at(step), body)

    async def get(self, step: str) -> bytes:
        return (await self._poll(self.at(step))).content

    async def _poll(self, path: str) -> httpx.Response:
        """What `path` answers once it has something to say."""
        for _ in range(POLLS):
            response = await self.ask("GET", f"{path}{'&' if '?' in path else '?'}wait={POLL_SECONDS:g}")
            if response.status_code == 200:
                return response
        raise AssertionError(f"nothing came from {path}")

    def at(self, step: str) -> str:
        assert self.task is not None
        return f"/v1/runs/{self.task.run}/exchanges/{self.task.exchange}/{step}"

    async def join(self, app_sha256: str) -> None:
        await self.ask("POST", "/v1/join", JoinIn(app_sha256=app_sha256, version=our_version()))

    # --- an exchange ----------------------------------------------------------------------------

    async def enter(self) -> Task:
        """Take the next task, fetch its model, make a session."""
        last, work = self.task, self.work
        known = f"?run={last.run}&after={last.exchange}" if last else ""
        if work is not None and work.version is not None:
            known += f"{'&' if known else '?'}work={work.run}&version={work.version.number}"
        task = self.task = Task.model_validate_json((await self._poll(f"/v1/task{known}")).content)
        assert task.version is None, "it is work"
        if task.buffer is not None:
            self._model = ModelState.open(self.base)
        elif task.model is not None and not is_draw(task):
            self._model = await self._fetch(task)
        if task.aggregation == "secure" and not is_draw(task):
            self.session = ClientSession(
                parameters=round_parameters(
                    task,
                    federation=self.kit.federation,
                    roster_hash=self.kit.roster.hash(),
                    model_hash=bytes.fromhex(task.model.sha256) if task.model else None,
                ),
                client_id=self.id,
                identity=self.kit.identity,
                roster=self.kit.roster.keys,
                min_cohort=2,
                min_threshold=2,
            )
        return task

    async def _fetch(self, task: Task) -> ModelState | None:
        assert task.model is not None
        response = await self.ask("GET", self.at("model"))
        assert hashlib.sha256(response.content).hexdigest() == task.model.sha256
        assert response.headers["etag"] == f'"{task.model.sha256}"'
        path = self._folder / f"{self.id}-{task.exchange}.safetensors"
        path.write_bytes(response.content)
        return model_in(path) if task.aggregation == "plain" else ModelState.open(path)

    async def take_work(self) -> Task:
        """Take work for a later sum, and fetch the model that it begins from."""
        last = self.work.version if self.work is not None else None
        known = f"?work={self.work.run}&version={last.number}" if self.work is not None and last is not None else ""
        if self.task is not None:
            known += f"{'&' if known else '?'}run={self.task.run}&after={self.task.exchange}"
        task = self.work = Task.model_validate_json((await self._poll(f"/v1/task{known}")).content)
        assert task.version is not None, "an exchange is open"
        response = await self.ask("GET", f"/v1/runs/{task.run}/versions/{task.version.number}/model")
        assert hashlib.sha256(response.content).hexdigest() == task.version.sha256
        self.base = self._folder / f"{self.id}-base.safetensors"
        self.base.write_bytes(response.content)
        return task

    async def say(self, state: WorkState, withdrawal: WithdrawIn | None = None) -> None:
        """Tell the server how the work stands."""
        assert self.work is not None
        assert self.work.version is not None
        said = WorkIn(run=self.work.run, version=self.work.version, state=state, withdrawal=withdrawal)
        await self.ask("PUT", "/v1/work", said)

    async def draw(self) -> None:
        """Enter and answer a draw."""
        task = await self.enter()
        assert is_draw(task), "another exchange is open"
        self.place = make_ticket(self.kit.federation, task.digest(), self.kit.identity)
        await self.put("place", self.place)

    async def advertise(self) -> None:
        await self.put("advertisement", secagg_codec.advertisement_to_wire(self._session.advertise()))

    async def share(self) -> None:
        answer = CohortOut.model_validate_json(await self.get("cohort"))
        made = self._session.share_keys(secagg_codec.cohort_from_wire(answer, self.cohort))
        await self.put("key-shares", secagg_codec.key_shares_to_wire(made))

    async def share_falsely(self, change: Callable[[KeyShares], KeyShares], *, signs: bool = True) -> None:
        """R1 by a cheat, which signs what `change` makes of its message, unless it leaves the signature out."""
        answer = CohortOut.model_validate_json(await self.get("cohort"))
        session = self._session
        honest = session.share_keys(secagg_codec.cohort_from_wire(answer, self.cohort))
        made = sign_again(session, change(honest)) if signs else replace(change(honest), signature=bytes(64))
        await self.put("key-shares", secagg_codec.key_shares_to_wire(made))

    async def receive(self) -> None:
        """Take the shares, or leave with a complaint, as a client's agent does."""
        answer = DeliveryOut.model_validate_json(await self.get("key-shares"))
        delivery = secagg_codec.delivery_from_wire(answer, self.cohort)
        try:
            self._session.receive_shares(delivery)
        except ProtocolViolation as refusal:
            await self._complain(delivery, refusal)
            raise

    async def _complain(self, delivery: ShareDelivery, refusal: ProtocolViolation) -> None:
        dealer = refusal.peer or 0
        shown = DealingOut.model_validate_json((await self.ask("GET", self.at(f"key-shares/{dealer}"))).content)
        made = self._session.complain(delivery, secagg_codec.dealing_from_wire(dealer, shown))
        await self.leave_with(secagg_codec.complaint_to_wire(made), refusal.check)

    async def leave_with(self, complaint: ComplaintIn, check: str = "share-unsealing") -> None:
        """Withdraw with a complaint."""
        reason = WithdrawIn(reason=WithdrawalReason.PROTOCOL_VIOLATION, check=check, complaint=complaint)
        await self.ask("POST", self.at("withdrawal"), reason)

    @property
    def _start(self) -> str:
        assert self.work is not None
        return self.work.model_sha256

    @property
    def cohort(self) -> list[int]:
        assert self.task is not None
        return self.task.cohort

    def vector(self) -> tuple[bytes, ManifestIn]:
        """The masked vector and its manifest; a session masks once."""
        assert self.task is not None
        encoding = encoding_of(self.task)
        trains = encoding.layout is not None and self._model is not None
        encoded = (
            encode_nothing(encoding, randomness=os.urandom)
            if self.local.fails
            else encode(
                encoding,
                base=self._model if trains else None,
                local=self.local.train(self._model) if trains and self._model else None,
                examples=self.local.examples,
                metrics=self.local.metrics,
                randomness=os.urandom,
                factor=self.task.updates_of([self.id])[self.id, self._start] if self.task.buffer else 1.0,
            )
        )
        pads = self._witness(encoding, encoded.words) if isinstance(encoding, BoundedEncoding) else None
        self._session.mask(encoded.words)
        body = encoded.words.tobytes()
        return body, ManifestIn(digest=digest_of(body), size=len(body), pads=pads)

    def _witness(self, encoding: BoundedEncoding, words: NDArray[np.uint64]) -> bytes:
        """The commitment to the pads of a vector, which becomes as much longer as this member cheats."""
        self.witness = NormWitness.of(encoding, words, os.urandom)
        if self.local.stretch != 1:
            lanes = words[: encoding.packed_words].view(np.uint32)[: encoding.coordinates]
            lanes += (steps_of(encoding, words).ravel()[: lanes.size] * (self.local.stretch - 1)).astype(np.uint32)
        return self.witness.pads.commitment

    async def upload(self) -> None:
        body, manifest = self.vector()
        await self.send(body)
        await self.put("manifest", manifest)

    async def end_upload(self, *, wait: float) -> httpx.Response:
        """Upload, and wait for what the answer to the manifest may hold."""
        body, manifest = self.vector()
        await self.send(body)
        return await self.ask("PUT", f"{self.at('manifest')}?wait={wait:g}", manifest)

    async def send(self, body: bytes) -> None:
        """An update, part by part."""
        for index, part in enumerate(parts_of(body)):
            await self.put(f"update/parts/{index}", part)

    async def sign(self) -> None:
        answer = SurvivorsOut.model_validate_json(await self.get("survivors"))
        made = self._session.sign_survivors(secagg_codec.survivors_from_wire(answer, self.cohort))
        proof = await self._proof() if self.witness is not None else b""
        await self.put("consistency", secagg_codec.consistency_to_wire(made, proof))

    async def _proof(self) -> bytes:
        """The proof of the norm, or what a member that cannot make one sends in its place."""
        assert self.witness is not None
        witness, outcome = self.witness, self._session.outcome
        if self.local.spoils:
            return bytes(statement_of(witness.encoding).proof_bytes)
        return await asyncio.to_thread(witness.prove, outcome, self.id, os.urandom)

    async def unmask(self) -> None:
        answer = SignaturesOut.model_validate_json(await self.get("consistency"))
        made = self._session.unmask(secagg_codec.signatures_from_wire(answer))
        await self.put("unmask", secagg_codec.unmask_to_wire(made))

    async def secure(self, *, until: str = "") -> None:
        """All steps of a secure exchange; leaves without a word before the step `until`."""
        steps: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self.advertise, self.share, self.receive, self.upload, self.sign, self.unmask,
        )  # fmt: skip
        for step in steps:
            if step.__name__ == until:
                return
            await step()

    def plain_manifest(self) -> tuple[bytes, ManifestIn]:
        """The reply as a record file, and its manifest."""
        assert self.task is not None
        path = self._folder / f"{self.id}-local.safetensors"
        trains = self.task.trains and self._model is not None
        metrics = {**self.local.metrics, "num-examples": self.local.examples}
        save_message(path, self.local.train(self._model) if trains and self._model is not None else None, metrics)
        body = path.read_bytes()
        return body, ManifestIn(
            digest=digest_of(body),
            size=len(body),
            examples=self.local.examples,
            values=self.local.metrics,
        )

    async def plain(self) -> None:
        """A whole plain exchange."""
        body, manifest = self.plain_manifest()
        await self.send(body)
        await self.put("manifest", manifest)

    async def withdraw(self, reason: WithdrawalReason = WithdrawalReason.WORKER_DIED) -> None:
        await self.leave(WithdrawIn(reason=reason))

    async def leave(self, said: WithdrawIn) -> None:
        await self.ask("POST", self.at("withdrawal"), said)

    @property
    def _session(self) -> ClientSession:
        assert self.session is not None
        return self.session


async def withdraw_all(members: Iterable[Member]) -> None:
    """Everybody leaves; the exchange may be over before the last one has said so."""
    for said in await asyncio.gather(*(member.withdraw() for member in members), return_exceptions=True):
        assert said is None or (isinstance(said, Failure) and said.problem.kind == "round-failed"), said


def parts_of(body: bytes) -> list[bytes]:
    """An update as it is cut for its way up."""
    return [body[start : start + PART_BYTES] for start in range(0, len(body), PART_BYTES)]


def digest_of(body: bytes) -> str:
    """What a manifest says of an update."""
    return update_digest(len(body), (hashlib.sha256(part).digest() for part in parts_of(body))).hex()
