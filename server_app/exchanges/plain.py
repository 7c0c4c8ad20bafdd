"""The plain exchange: every client gets a message of its own, and its reply goes to the ServerApp as it is.

Messages and replies are record files, which the server passes on unread. A client that has none to send gives an
error instead; the exchange succeeds with the clients that answered, unless a quorum is set.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from fedcore.errors import RoundFailed
from fedcore.run.engine.outcome import ExchangeOutcome, StoredReply
from fedcore.run.plain import INPUT, MESSAGE_UNAVAILABLE, NODE_UNAVAILABLE, OutgoingMessage, check_quorum, reply_error
from fedcore.wire.events import ClientDropped
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import ModelRef, Task
from fedcore.wire.uploads import ManifestIn, ReplyError, WithdrawalReason
from server_app.exchanges.at_rest import intact, update_digest_of
from server_app.exchanges.context import ExchangeContext
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.transfers import UpdateLimits
from server_app.members.presence import MOVED_ON
from server_app.rejection import Rejection

LONGEST_REPLY_BYTES: Final = 1 << 40
"""Far beyond any reply: the disk, of which a reserve stays free, is what really bounds them."""
NO_REPLY: Final = "its app has no reply"
"""Begins the reason of a client whose app failed; what follows are the app's words."""
_REFUSALS: Final = frozenset({WithdrawalReason.POLICY, WithdrawalReason.APP_MISMATCH})


class PlainExchange(Exchange):
    """One stage: clients send a record file, or an error.

    messages
        What each client of the cohort is sent.
    timeout
        Seconds after which the ServerApp takes no more replies; None if it waits for all.
    """

    stage_names = (INPUT,)
    steps: Mapping[str, str] = {"part": INPUT, "manifest": INPUT}
    updates_folder = "replies"

    def __init__(
        self, context: ExchangeContext, messages: Mapping[int, OutgoingMessage], *, timeout: float | None = None
    ) -> None:
        super().__init__(context, UpdateLimits(longest=LONGEST_REPLY_BYTES, exact=False))
        self._messages = messages
        self._drops_late = timeout is not None and timeout <= context.task.seconds
        self._replies: dict[int, StoredReply] = {}

    @property
    def common_content(self) -> str | None:
        """SHA-256 of what all clients are sent; None if they are sent different contents."""
        sent = {self._messages[client].reference.sha256 for client in self.task.cohort}
        return sent.pop() if len(sent) == 1 else None

    def seconds_for(self, stage: str) -> float:
        """For the local work and the upload together."""
        return self.context.settings.step_seconds + self.task.seconds

    def deadline_of(self, client: int, end: float) -> float:
        """A ServerApp that takes no late replies gives nobody more time."""
        return end if self._drops_late else self.deadline_with_work(client, end)

    def begin(self, stage: str) -> None:
        """There is nothing to prepare."""

    async def finish(self) -> ExchangeOutcome:
        """The replies as they are, and errors in place of those that are missing."""
        self._check_refusals()
        for client in self.task.cohort:
            if client not in self._replies and not (client in self.late and self._drops_late):
                self._replies[client] = StoredReply(node=client, error=self._absence(client))
        replies = tuple(reply for _, reply in sorted(self._replies.items()))
        answered = tuple(reply.node for reply in replies if reply.error is None)
        check_quorum(len(answered), self.context.settings.quorum)
        return self.make_outcome(replies=replies, survivors=answered)

    def _absence(self, client: int) -> ReplyError:
        code = MESSAGE_UNAVAILABLE if client in self.late else NODE_UNAVAILABLE
        return reply_error(code, f"{self.services.names[client]}: {self.clients.reasons.get(client, 'has left')}")

    def _check_refusals(self) -> None:
        """No client's error, but an exchange that cannot be: all refuse it, or are beyond it. Raises RoundFailed."""
        if self.clients.common_reason() in _REFUSALS:
            raise RoundFailed("no client takes part")
        if all(self.clients.reasons.get(client) == MOVED_ON for client in self.task.cohort):
            raise RoundFailed(f"every client {MOVED_ON}")

    def _is_lost(self) -> bool:
        quorum = self.context.settings.quorum
        failed = sum(reply.error is not None for reply in self._replies.values())
        return bool(quorum) and self._present() - failed < quorum

    # --- what clients ask and send --------------------------------------------------------------

    def task_for(self, client: int) -> Task | None:
        """The task with the message to this client."""
        task = super().task_for(client)
        return self._messages[client].to(task) if task is not None else None

    def model_for(self, client: int) -> tuple[Path, ModelRef] | None:
        """The content of the message to this client."""
        message = self._messages[client]
        return message.content, message.reference

    def check_manifest(self, manifest: ManifestIn) -> None:
        """Raise Rejection unless there is a file of a size that can be, or an error in its place."""
        if manifest.error is None:
            self.uploads.limits.check_size(manifest.size)
        elif manifest.size:
            raise Rejection(ProblemKind.MALFORMED, "a reply is a file or an error, not both")

    async def add_update(self, client: int, manifest: ManifestIn) -> None:
        """The reply, or the error in its place."""
        self._note(client, manifest)
        if manifest.error is not None:
            event = ClientDropped(
                exchange=self.task.exchange,
                client=self.services.names[client],
                stage=self.stages.current,
                reason=f"{NO_REPLY}: {manifest.error.reason or f'error {manifest.error.code}'}",
            )
            self.context.add_event(event)

    async def restore_updates(
        self, folded: Mapping[str, Any] | None, waiting: frozenset[int], manifests: Mapping[int, ManifestIn]
    ) -> None:
        """See that the replies are what their clients signed."""
        for client in sorted(waiting):
            if manifests[client].size:
                what = f"the reply of {self.services.names[client]} in exchange {self.task.exchange}"
                key, digest = self.uploads.key(client), manifests[client].digest
                await intact(self.services.objects, key, what, digest, update_digest_of)

    def replay(self, client: int, step: str, body: bytes) -> None:
        """The reply whose manifest was kept."""
        self._note(client, ManifestIn.model_validate_json(body))

    def _note(self, client: int, manifest: ManifestIn) -> None:
        if manifest.size:
            self.usage.updates[client] = manifest.size
        self._replies[client] = StoredReply(
            node=client,
            content=self.uploads.key(client) if manifest.size else None,
            digest=manifest.digest if manifest.size else "",
            error=manifest.error,
            examples=manifest.examples or 0,
            metrics=dict(manifest.values),
        )
