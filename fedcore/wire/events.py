"""Events of a run, as typed values: one language of servers, simulators, baselines, records and screens.

The engine of a run emits these events in order. The server numbers, stamps and stores them (`Recorded`);
`fedcore.monitoring.run_record` builds from them what a report needs, `fedcore.monitoring.progress` what a person sees.
Clients have names in them, not numbers. Of updates, an event says only what their sum reveals to the server anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

from pydantic import Field

from fedcore.codec.privacy import PrivacyPlan
from fedcore.wire.base import Message, MetricValue, Moment, Scalar
from fedcore.wire.operator import RunInfo, RunStatus
from fedcore.wire.tasks import is_query, is_training

Aggregation = Literal["secure", "plain", "none"]
"""`none`: a baseline, in which nobody aggregates updates on a server's behalf."""


FigureSource = Literal["train", "evaluate", "server"]


class PrivacyTerms(Message):
    """What a run with differential privacy promises to each client.

    epsilon_budget: where the run stops, at `delta`; None for no budget.
    metric_bound: 0 if clients are asked for no evaluation.
    """

    mechanism: str
    noise_multiplier: float
    clip_norm: float
    metric_bound: float
    epsilon_budget: float | None
    delta: float

    @classmethod
    def of(cls, plan: PrivacyPlan | None) -> Self | None:
        """The terms of a plan; None for a run without one."""
        if plan is None:
            return None
        return cls(
            mechanism=plan.mechanism,
            noise_multiplier=plan.noise_multiplier,
            clip_norm=plan.clip_norm,
            metric_bound=plan.metric_bound,
            epsilon_budget=plan.epsilon if math.isfinite(plan.epsilon) else None,
            delta=plan.delta,
        )


class ClientsOnline(Message):
    """Who is connected, of the clients that the next exchange may ask, and who of them is not.

    expected: how many are wanted, or are there where they are more.
    reporting: who of those online tells why its local work fails; of the others only a count is in the sum.
    """

    kind: Literal["clients"] = "clients"
    online: list[str]
    expected: int
    absent: list[str] = Field(default_factory=list)
    reporting: list[str] = Field(default_factory=list)


class RunStarted(Message):
    """The first event of a run.

    rounds: how many the app plans, where its run config says so.
    """

    kind: Literal["started"] = "started"
    app: str
    aggregation: Aggregation
    rounds: int | None = None
    privacy: PrivacyTerms | None = None


class RunResumed(Message):
    """The run resumes: its ServerApp starts again, and gets the earlier answers to its earlier requests.

    steps: how many of its requests have their answer already.
    why: in words.
    """

    kind: Literal["resumed"] = "resumed"
    steps: int
    why: str


class ExchangeStarted(Message):
    """A cohort was asked.

    field_bits: of the packed update, None without one.
    model: SHA-256 of the global model's file.
    content: in plain mode, of the message that all clients fetch in its place; None if they are sent different ones.
    groups: into how many the cohort is to be cut; the exchange is the draw then, and the number that it goes by.
    """

    kind: Literal["exchange"] = "exchange"
    exchange: int
    server_round: int
    message_type: str
    attempt: int
    cohort: list[str]
    quorum: int
    field_bits: int | None
    aggregation: Aggregation
    model: str | None
    content: str | None = None
    groups: int = 1


class GroupStarted(Message):
    """A group of a drawn exchange was asked for its sum.

    exchange: its own number.
    drawn: that of the draw.
    """

    kind: Literal["group"] = "group"
    exchange: int
    drawn: int
    server_round: int
    group: int
    groups: int
    attempt: int
    cohort: list[str]
    quorum: int
    field_bits: int | None


class GroupEnded(Message):
    """A group has given its sum, or an attempt at it has failed for `reason`.

    retry: whether another one follows.
    bytes_up, bytes_down, update_bytes: of one that failed, as `ExchangeFailed`; those of the others are in
        `ExchangeDone`.
    """

    kind: Literal["group-ended"] = "group-ended"
    exchange: int
    drawn: int
    server_round: int
    group: int
    groups: int
    survivors: list[str]
    seconds: float
    reason: str = ""
    retry: bool = False
    bytes_up: dict[str, int] = Field(default_factory=dict)
    bytes_down: dict[str, int] = Field(default_factory=dict)
    update_bytes: dict[str, int] = Field(default_factory=dict)


class StageProgress(Message):
    """How far a stage is.

    seconds: since the exchange began.
    """

    kind: Literal["stage"] = "stage"
    exchange: int
    stage: str
    done: int
    expected: int
    seconds: float


NOT_NEEDED: Final = "not needed: enough faster clients had already finished"
"""Why a slow client is dropped that was selected in addition to those needed (`over-selection`)."""


class ClientDropped(Message):
    """A client is out of an exchange; exchange 0: out of the whole run."""

    kind: Literal["dropped"] = "dropped"
    exchange: int
    client: str
    stage: str
    reason: str


class ClientBlamed(Message):
    """A client violated the protocol, and is excluded from this run.

    reason: a `fedcore.secagg.Fault`.
    """

    kind: Literal["blamed"] = "blamed"
    exchange: int
    client: str
    stage: str
    reason: str


class ExchangeDone(Message):
    """An exchange was completed.

    examples: reported by all survivors together; with differential privacy the number of survivors.
    clipped: elements of all updates that were cut off, and lost_norm: what part of the updates' norm that was, 0 to 1,
        a mean weighted by examples; both 0 unless clipping = "warn".
    failures: survivors that contributed nothing, an estimate with differential privacy.
    metrics_agree: false where the clients' metrics have different names, so that there are none.
    seconds: its duration.
    virtual_seconds: the same on the virtual clock of simulated devices, with what was waited before it since the last
        one that was completed; None without such a clock.
    stage_seconds: by stage; of groups the longest.
    groups: how many sums there are of it; the metrics are their mean, weighted by examples.
    bytes_up, bytes_down: sent and received by each client, by name.
    update_bytes: of each client's update that is in a sum, by name (`fedcore.wire.uploads.Contribution`).
    epsilon_spent: of the whole run up to here, None without differential privacy.
    staleness: of a buffered training, how many models came between a survivor's start and its sum.
    """

    kind: Literal["exchange-done"] = "exchange-done"
    exchange: int
    server_round: int
    message_type: str
    aggregation: Aggregation
    survivors: list[str]
    examples: int
    metrics: dict[str, MetricValue]
    seconds: float
    virtual_seconds: float | None = None
    clipped: int = 0
    lost_norm: float = 0.0
    failures: int = 0
    metrics_agree: bool = True
    stage_seconds: dict[str, float] = Field(default_factory=dict)
    bytes_up: dict[str, int] = Field(default_factory=dict)
    bytes_down: dict[str, int] = Field(default_factory=dict)
    update_bytes: dict[str, int] = Field(default_factory=dict)
    epsilon_spent: float | None = None
    staleness: dict[str, int] = Field(default_factory=dict)
    groups: int = 1

    @property
    def trains(self) -> bool:
        """Whether the exchange made a new model."""
        return is_training(self.message_type)

    @property
    def evaluates(self) -> bool:
        """Whether its metrics say how good the model is, and are no sums of a query."""
        return not self.trains and not is_query(self.message_type)


class ExchangeFailed(Message):
    """An attempt at an exchange ended without a sum.

    retry: whether another one follows.
    bytes_up, bytes_down: sent and received anyway by each client, by name.
    update_bytes: as `ExchangeDone`, of a sum that others may know although the attempt failed.
    """

    kind: Literal["exchange-failed"] = "exchange-failed"
    exchange: int
    server_round: int
    reason: str
    retry: bool
    bytes_up: dict[str, int] = Field(default_factory=dict)
    bytes_down: dict[str, int] = Field(default_factory=dict)
    update_bytes: dict[str, int] = Field(default_factory=dict)


class ExchangeRepeated(Message):
    """An exchange is repeated: the updates of `large` of its `survivors` exceeded the scales.

    coarse: or too much of the update of the tensor of this name was rounding; "" if none was.
    bytes_up, bytes_down, update_bytes: as `ExchangeFailed`.
    """

    kind: Literal["exchange-repeated"] = "exchange-repeated"
    exchange: int
    server_round: int
    large: int
    survivors: int
    coarse: str = ""
    bytes_up: dict[str, int] = Field(default_factory=dict)
    bytes_down: dict[str, int] = Field(default_factory=dict)
    update_bytes: dict[str, int] = Field(default_factory=dict)


AttemptEnd: TypeAlias = ExchangeDone | ExchangeFailed | ExchangeRepeated | GroupEnded
"""What says how an attempt ended, and what travelled in it; of groups that gave their sums `ExchangeDone` says it."""


class FiguresFound(Message):
    """What a ServerApp made of the replies of a round, if that is more than their mean, or found by itself.

    source: what it is of: training or evaluation by the clients, or an evaluation at the server (Flower's
        `evaluate_fn`, whose round 0 is the first model).
    """

    kind: Literal["figures"] = "figures"
    server_round: int
    source: FigureSource
    metrics: dict[str, MetricValue]


class StatisticsFound(Message):
    """What a run that asks for statistics got: `fedcore.data.statistics.Statistics` as plain JSON."""

    kind: Literal["statistics"] = "statistics"
    statistics: dict[str, Any]


class TrafficCounted(Message):
    """All bytes of a run up to its end, as the kernel counted them for the connections of its clients and operators.

    Requests and answers of every kind with their heads, TLS, and the headers of TCP and IP. A run that another process
    led before has none.

    bytes_up, bytes_down: sent and received by each client, by name.
    operators_up, operators_down: of operators together.
    """

    kind: Literal["traffic"] = "traffic"
    bytes_up: dict[str, int]
    bytes_down: dict[str, int]
    operators_up: int
    operators_down: int


class AppPrinted(Message):
    """A line that the app printed."""

    kind: Literal["log"] = "log"
    line: str


class Warned(Message):
    """Something that the operator should know, and that does not stop the run."""

    kind: Literal["warning"] = "warning"
    line: str


class RunEnded(Message):
    """The last event of a run; a run that finished with a reason was ended early, by its privacy budget."""

    kind: Literal["ended"] = "ended"
    status: RunStatus
    reason: str = ""


RunEvent: TypeAlias = (
    ClientsOnline
    | RunStarted
    | RunResumed
    | ExchangeStarted
    | GroupStarted
    | GroupEnded
    | StageProgress
    | ClientDropped
    | ClientBlamed
    | ExchangeDone
    | ExchangeFailed
    | ExchangeRepeated
    | FiguresFound
    | StatisticsFound
    | TrafficCounted
    | AppPrinted
    | Warned
    | RunEnded
)
EventSink: TypeAlias = Callable[[RunEvent], None]


class Recorded(Message):
    """An event as a server keeps it.

    seq: its number in the run, from 1 on.
    seconds: since the run began, on a monotonic clock.
    time: by the wall clock.
    """

    seq: int
    seconds: float
    time: Moment
    event: Annotated[RunEvent, Field(discriminator="kind")]


class RunOut(RunInfo):
    """The state of a run, with its events after the one that was asked for, and how it was submitted."""

    run_config: dict[str, Scalar] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    events: list[Recorded]


def name_some(clients: Sequence[str]) -> str:
    """The first eight names, for a line that a person reads."""
    return ", ".join(clients[:8]) + (", ..." if len(clients) > 8 else "")


def ignore(event: RunEvent) -> None:
    """An `EventSink` for who does not want to know."""


def stamp(seq: int, seconds: float, time: datetime, event: RunEvent) -> Recorded:
    """Number an event and say when it happened; `time` must have a time zone."""
    return Recorded(seq=seq, seconds=round(seconds, 3), time=time, event=event)
