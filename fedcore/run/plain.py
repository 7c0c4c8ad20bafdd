"""What the two sides of a plain exchange share: what a client is told, what it answers, and what an error is called.

Nothing of a message's content is in here: it is a record file (`fedcore.wire.record_file`), which the server passes
on unread.
"""

from __future__ import annotations

import math
import shutil
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from fedcore.errors import CohortTooSmall, FedcoreError
from fedcore.run.settings import JobSettings
from fedcore.wire.base import MetricValue, Scalar
from fedcore.wire.tasks import MessageHead, ModelRef, Task
from fedcore.wire.uploads import ReplyError

if TYPE_CHECKING:
    from fedcore.wire.record_file import RecordLocation
else:
    # Only a path comes from another process; pydantic reads this when it checks that.
    RecordLocation = Path

INPUT: Final = "input"
"""The one stage of a plain exchange."""

# Flower's codes (flwr.common.constant.ErrorCode), of which the server and the agent know the numbers alone.
APP_RAISED: Final = 2
MESSAGE_UNAVAILABLE: Final = 3
NODE_UNAVAILABLE: Final = 5
APP_CRASHED: Final = 8
UNKNOWN: Final = 0

_MOST_REASON: Final = 9000
_MOST_METRICS: Final = 256
_LONGEST_LIST: Final = 4096
_LONGEST_NAME: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """What one client is sent: a message's type and head, and the record file with its content."""

    message_type: str
    head: MessageHead
    content: Path
    reference: ModelRef

    def to(self, task: Task) -> Task:
        """The task of the exchange as this client gets it."""
        return task.model_copy(
            update={"message_type": self.message_type, "message": self.head, "model": self.reference}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainReply:
    """What one client answered: a record file, or what would be one, or an error in its place.

    examples, metrics
        What its MetricRecords say, for the record of the run.
    """

    node: int
    content: RecordLocation | None = None
    error: ReplyError | None = None
    examples: int = 0
    metrics: Mapping[str, MetricValue]

    @classmethod
    def failed(cls, node: int, error: ReplyError) -> PlainReply:
        """An error in place of a reply."""
        return cls(node=node, error=error, metrics={})

    @property
    def size(self) -> int:
        """Bytes of the record file, 0 for an error."""
        if isinstance(self.content, Path):
            return self.content.stat().st_size
        return self.content.size if self.content is not None else 0

    def save(self, path: Path) -> None:
        """Leave a record file at `path`."""
        if isinstance(self.content, Path):
            shutil.copyfile(self.content, path)
        elif self.content is not None:
            self.content.save(path)


def plain_task(
    *,
    settings: JobSettings,
    run: str,
    exchange: int,
    attempt: int,
    server_round: int,
    message_type: str,
    cohort: Sequence[int],
    app_sha256: str,
    run_config: Mapping[str, Scalar],
    weight_key: str,
    timeout: float | None,
    roster: int = 1,
) -> Task:
    """What all clients of a plain exchange are told; `OutgoingMessage.to` adds what each of them is sent.

    message_type
        Of the first of them.
    timeout
        Seconds that the ServerApp waits; None for as long as it takes.
    """
    return Task(
        run=run,
        exchange=exchange,
        attempt=attempt,
        server_round=server_round,
        message_type=message_type,
        aggregation="plain",
        app_sha256=app_sha256,
        run_config=dict(run_config),
        settings=settings.for_clients(),
        arrays_key="",
        configs={},
        weight_key=weight_key,
        model=None,
        cohort=sorted(cohort),
        quorum=settings.quorum or 1,
        protection=None,
        encoding=None,
        roster=roster,
        previous="",
        seconds=min(settings.train_seconds, timeout or settings.train_seconds),
    )


def error_of(error: BaseException) -> ReplyError:
    """An exception of the app's own code, as its line of the traceback; a FedcoreError as what it says."""
    return app_raised(str(error) if isinstance(error, FedcoreError) else traceback.format_exception_only(error)[-1])


def app_raised(line: str) -> ReplyError:
    """The app's own code raised; `line` is the last of the traceback."""
    return reply_error(APP_RAISED, line.strip())


def reply_error(code: int, reason: str | None) -> ReplyError:
    """An error whose reason is cut where it is too long for a manifest."""
    if reason is not None and len(reason) > _MOST_REASON:
        reason = f"{reason[:_MOST_REASON]}..."
    return ReplyError(code=code, reason=reason)


def check_quorum(answered: int, quorum: int) -> None:
    """Raise CohortTooSmall if fewer clients than a quorum that was set have replied; 0 for none."""
    if answered < quorum:
        raise CohortTooSmall(INPUT, answered, quorum)


def bounded_metrics(values: Mapping[str, Any]) -> dict[str, MetricValue]:
    """The metrics that a manifest has room for: names, lists and their number are bounded there."""
    bounded: dict[str, MetricValue] = {}
    for name, value in values.items():
        numbers = value if isinstance(value, list) else [value]
        fits = 1 <= len(name) <= _LONGEST_NAME and 1 <= len(numbers) <= _LONGEST_LIST
        if fits and len(bounded) < _MOST_METRICS and all(map(_is_small, numbers)):
            bounded[name] = [float(number) for number in value] if isinstance(value, list) else float(value)
    return bounded


def whole_examples(value: Any) -> int | None:
    """A number of examples, None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return round(value) if 0 <= value < 2**63 else None


class Weighed(Protocol):
    """A client's reply, or a sum: metrics of some examples."""

    @property
    def examples(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, MetricValue]: ...


def mean_metrics(replies: Sequence[Weighed]) -> dict[str, MetricValue]:
    """Mean of every metric that all replies have, weighted by examples; lists element by element."""
    weights = [reply.examples for reply in replies]
    if not sum(weights):
        return {}
    means: dict[str, Any] = {}
    for name in replies[0].metrics:
        values = [reply.metrics.get(name) for reply in replies]
        if None not in values and len({np.shape(value) for value in values}) == 1:  # type: ignore[arg-type]
            means[name] = np.average(values, axis=0, weights=weights)  # type: ignore[arg-type]
    return {name: mean.tolist() if isinstance(mean, np.ndarray) else float(mean) for name, mean in means.items()}


def _is_small(number: Any) -> bool:
    return isinstance(number, int | float) and not (isinstance(number, int) and abs(number) >= 2**1000)
