"""The plain exchange: every client's update and metrics, readable by the server, one reply each."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

from fedcore.errors import EncodingError, PeerError
from fedcore.state import ModelState
from fedcore.wire import ManifestIn, MetricValue, ProblemKind
from server_app.blobs import discard
from server_app.exchange import Exchange
from server_app.problems import Rejection
from server_app.setup import ExchangeResult, ExchangeSetup, ReplyFile

INPUT: Final = "input"
_EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()


class PlainExchange(Exchange):
    """One stage: clients send a safetensors file and metrics, or metrics alone."""

    stages = (INPUT,)
    steps: Mapping[str, str] = {"manifest": INPUT, "update": INPUT}

    def __init__(self, setup: ExchangeSetup) -> None:
        super().__init__(setup)
        self._wants_model = setup.task.trains and setup.task.model is not None
        self._answered: dict[int, ReplyFile] = {}

    def missing(self) -> frozenset[int]:
        """Whom the exchange still waits for."""
        return self.cohort - self._answered.keys() - self.dropped.keys()

    def done(self) -> frozenset[int]:
        """Whose reply is here."""
        return frozenset(self._answered)

    def _seconds(self, stage: str) -> float:
        return self.setup.settings.step_seconds + self.task.seconds

    async def _begin(self, stage: str) -> None:
        (self.setup.folder / "uploads").mkdir(parents=True, exist_ok=True)

    async def _close(self, stage: str) -> None:
        """Nothing to do: too few replies have been noticed before."""

    def _lose(self, client: int) -> None:
        """Nothing to do: a reply that is here stays, one that is not is no longer missed."""

    def _release(self) -> None:
        """Nothing to do: the replies are files."""

    async def _finish(self) -> ExchangeResult:
        replies = tuple(reply for _, reply in sorted(self._answered.items()))
        return ExchangeResult(
            replies=replies,
            survivors=frozenset(self._answered),
            examples=sum(reply.examples for reply in replies),
            metrics=mean_metrics(replies),
            clipped=0,
        )

    # --- what clients send ----------------------------------------------------------------------

    def check_manifest(self, client: int, manifest: ManifestIn) -> None:
        """Raise Rejection unless examples and metrics are there, and the size can be right."""
        if manifest.examples is None or manifest.examples < 0 or manifest.values is None:
            raise Rejection(ProblemKind.MALFORMED, "in plain mode the manifest holds the examples and the metrics")
        lengths = {name: len(value) if isinstance(value, list) else 0 for name, value in manifest.values.items()}
        if lengths != {slot.name: slot.length for slot in manifest.metrics}:
            raise Rejection(ProblemKind.MALFORMED, "the names and lengths of the metrics are not those of values")
        self._check_size(manifest)

    def _check_size(self, manifest: ManifestIn) -> None:
        if not self._wants_model:
            if manifest.size or manifest.sha256 != _EMPTY_SHA256:
                raise Rejection(ProblemKind.MALFORMED, "this exchange asks for metrics and no model")
            return
        model = self.task.model
        limit = (model.size if model else 0) + self.setup.upload_slack_bytes
        if not 0 < manifest.size <= limit:
            raise Rejection(
                ProblemKind.TOO_LARGE if manifest.size else ProblemKind.MALFORMED,
                f"the update of this exchange has 1 to {limit} bytes",
            )

    async def take_manifest(self, client: int, manifest: ManifestIn, digest: bytes) -> None:
        """The announcement; where no model is asked for, it is the whole reply."""
        await super().take_manifest(client, manifest, digest)
        if not self._wants_model and client not in self._answered:
            self.require_step(client, "manifest")
            self._answer(client, manifest, None)

    async def take_update(self, client: int, chunks: AsyncIterator[bytes], sha256: bytes) -> None:
        """The client's model, a safetensors file of the right layout; Rejection where none was asked for."""
        if not self._wants_model:
            raise Rejection(ProblemKind.NOT_FOUND, "this exchange asks for metrics and no model")
        await super().take_update(client, chunks, sha256)

    async def _use_upload(self, client: int, manifest: ManifestIn, path: Path, sha256: bytes) -> None:
        try:
            await asyncio.to_thread(self._check_layout, path)
            await self._admit(client, manifest, path, sha256)
        except BaseException:
            discard(path)
            raise

    async def _admit(self, client: int, manifest: ManifestIn, path: Path, sha256: bytes) -> None:
        self.require_step(client, "update")
        self._admitted.add(client)
        try:
            await self.keep_receipt(client, "update", sha256)
            self._answer(client, manifest, path)
        finally:
            self._admitted.discard(client)
            self._answers.ring()

    def _check_layout(self, path: Path) -> None:
        if self.setup.model is None:
            return
        expected = ModelState.open(self.setup.model).layout
        try:
            expected.check_same(ModelState.open(path).layout, what="the update")
        except EncodingError as error:
            raise Rejection(ProblemKind.BAD_CONFIGURATION, str(error)) from None
        except PeerError:
            raise Rejection(ProblemKind.MALFORMED, "the update is not a sound safetensors file") from None

    def _answer(self, client: int, manifest: ManifestIn, path: Path | None) -> None:
        self.taken.add(client)
        self._answered[client] = ReplyFile(
            node=client,
            state=path,
            examples=manifest.examples or 0,
            metrics=dict(manifest.values or {}),
        )
        self._answers.ring()


def mean_metrics(replies: tuple[ReplyFile, ...]) -> dict[str, MetricValue]:
    """Means weighted by examples, to show beside the secure ones; lists element by element."""
    total = sum(reply.examples for reply in replies)
    if not total:
        return {}
    means: dict[str, MetricValue] = {}
    for name, first in replies[0].metrics.items():
        pairs = [(reply.examples / total, reply.metrics[name]) for reply in replies]
        if isinstance(first, list):
            rows = [[weight * item for item in _as_list(value)] for weight, value in pairs]
            means[name] = [sum(column) for column in zip(*rows, strict=True)]
        else:
            means[name] = sum(weight * _as_list(value)[0] for weight, value in pairs)
    return means


def _as_list(value: MetricValue) -> list[float]:
    return value if isinstance(value, list) else [value]
