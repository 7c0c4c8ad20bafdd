"""The plain exchange: every client's update and metrics, readable by the server, one reply each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fedcore.errors import EncodingError, PeerError
from fedcore.state import ModelState
from fedcore.wire import ManifestIn, MetricValue, ProblemKind
from server_app.exchanges.context import ExchangeResult, ExchangeSetup, ReplyFile
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.uploads import UpdateLimits
from server_app.http.problems import Rejection

INPUT: Final = "input"


class PlainExchange(Exchange):
    """One stage: clients send a safetensors file and metrics, or metrics alone."""

    stages = (INPUT,)
    steps: Mapping[str, str] = {"part": INPUT, "manifest": INPUT}

    def __init__(self, setup: ExchangeSetup) -> None:
        model = setup.task.model if setup.task.trains else None
        longest = model.size + setup.upload_slack_bytes if model else 0
        super().__init__(setup, UpdateLimits(longest=longest, exact=not model))
        self._wants_model = model is not None
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
        self.uploads.open()

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

    def check_manifest(self, manifest: ManifestIn) -> None:
        """Raise Rejection unless examples and metrics are there."""
        if manifest.examples is None or manifest.examples < 0 or manifest.values is None:
            raise Rejection(ProblemKind.MALFORMED, "in plain mode the manifest holds the examples and the metrics")
        lengths = {name: len(value) if isinstance(value, list) else 0 for name, value in manifest.values.items()}
        if lengths != {slot.name: slot.length for slot in manifest.metrics}:
            raise Rejection(ProblemKind.MALFORMED, "the names and lengths of the metrics are not those of values")

    async def _use_update(self, client: int, manifest: ManifestIn, digest: bytes) -> None:
        """The receipt, and the reply; where no model is asked for, the manifest is all of it."""
        path = await self.uploads.publish(client, manifest.size) if self._wants_model else None
        self.require_step(client, "manifest")
        self._admitted.add(client)  # from here on the file stays, even if the client is given up
        try:
            if path is not None:
                await asyncio.to_thread(self._check_layout, path)
            await self.keep_receipt(client, "manifest", digest)
            self.uploads.keep(client)
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
