"""The plain exchange: every client's update and metrics, readable by the server, one reply each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fedcore.errors import EncodingError, PeerError
from fedcore.exchange import ExchangeReply, mean_metrics
from fedcore.state import ModelState
from fedcore.wire import ManifestIn, ProblemKind
from server_app.exchanges.context import ExchangeContext, ExchangeResult
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.uploads import UpdateLimits
from server_app.http.problems import Rejection

INPUT: Final = "input"
HEADER_SLACK_BYTES: Final = 1 << 20
"""How much longer than the model an update may be: its header may be laid out differently."""


class PlainExchange(Exchange):
    """One stage: clients send a safetensors file and metrics, or metrics alone."""

    stage_names = (INPUT,)
    steps: Mapping[str, str] = {"part": INPUT, "manifest": INPUT}

    def __init__(self, context: ExchangeContext) -> None:
        model = context.task.model if context.task.trains else None
        longest = model.size + HEADER_SLACK_BYTES if model else 0
        super().__init__(context, UpdateLimits(longest=longest, exact=not model))
        self._replies: dict[int, ExchangeReply] = {}

    def seconds_for(self, stage: str) -> float:
        """For the local work and the upload together."""
        return self.context.settings.step_seconds + self.task.seconds

    def begin(self, stage: str) -> None:
        """Make room for the updates."""
        self.uploads.open()

    async def finish(self) -> ExchangeResult:
        """The replies as they are."""
        replies = tuple(reply for _, reply in sorted(self._replies.items()))
        return ExchangeResult(
            replies=replies,
            survivors=frozenset(self._replies),
            examples=sum(reply.examples for reply in replies),
            metrics=mean_metrics(replies),
        )

    # --- what clients send ----------------------------------------------------------------------

    def check_manifest(self, manifest: ManifestIn) -> None:
        """Raise Rejection unless examples and metrics are there."""
        if manifest.examples is None or manifest.examples < 0 or manifest.values is None:
            raise Rejection(ProblemKind.MALFORMED, "in plain mode the manifest holds the examples and the metrics")
        lengths = {name: len(value) if isinstance(value, list) else 0 for name, value in manifest.values.items()}
        if lengths != {slot.name: slot.length for slot in manifest.metrics}:
            raise Rejection(ProblemKind.MALFORMED, "the names and lengths of the metrics are not those of values")

    async def check_update(self, path: Path) -> None:
        """Raise Rejection unless the file holds the tensors of the model that was sent out."""
        await asyncio.to_thread(self._check_layout, path)

    def _check_layout(self, path: Path) -> None:
        if self.context.model is None:
            return
        expected = ModelState.open(self.context.model).layout
        try:
            expected.check_same(ModelState.open(path).layout, what="the update")
        except EncodingError as error:
            raise Rejection(ProblemKind.BAD_CONFIGURATION, str(error)) from None
        except PeerError:
            raise Rejection(ProblemKind.MALFORMED, "the update is not a sound safetensors file") from None

    async def add_update(self, client: int, manifest: ManifestIn, path: Path | None) -> None:
        """The reply; where no model is asked for, the manifest is all of it."""
        self._replies[client] = ExchangeReply(
            node=client,
            state=path,
            examples=manifest.examples or 0,
            metrics=dict(manifest.values or {}),
        )
