"""What the two sides of an exchange must derive alike: the encoding, and the parameters that ctx binds.

The server (or the simulator) makes a `Task` from an `ExchangeRequest`; every client derives the same
`RoundParameters` from the task, but with the model and the roster that it holds itself. Where the server lied to one of
them, the two ctx differ and no signature verifies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, Self

from pydantic import InstanceOf, PlainSerializer

from fedcore.codec import (
    MOST_FAILURES,
    AnyEncoding,
    CodecSettings,
    Decoded,
    Encoding,
    MetricName,
    ScaleTrack,
    Statistics,
    auto_field_bits,
    first_encoding,
    private_encoding,
    rotation_seed,
)
from fedcore.config import JobSettings
from fedcore.errors import ConfigurationError, EncodingError, UsageError
from fedcore.privacy import PrivacyPlan
from fedcore.secagg import Agreement, RoundParameters, cohort_graph, corrupt_clients, default_quorum
from fedcore.state import Layout, ModelState
from fedcore.wire import (
    Buffer,
    Cut,
    Group,
    MetricValue,
    ModelRef,
    Place,
    Protection,
    Scalar,
    Task,
    Version,
    is_query,
    is_training,
)

NO_MODEL = b"\x00" * 32
COHORT: Final = 0
"""The node of a reply that is the whole cohort's."""

MOST_IN_SUM: Final = 1 << 53
"""What the sum of a query's numbers has to stay below: with 8 bits for fractions, and so that it is exact."""

QUERY_VALUES: Final = 4096
"""Most numbers in the reply to a query. Nobody knows their names before, so the vector has room for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRequest:
    """One `send_and_receive` of a ServerApp: the same content for every node.

    nodes: client ids. model: None where the message holds no ArrayRecord. configs: every ConfigRecord by its key,
    bytes as {"base64": ...}. weight_key: the metric that holds the number of examples. ahead: message type -> how many
    nodes the strategy asks in a round, as it was when it sent its first message; empty where nobody knows. base: the
    model that the mean of changes is added to, where clients get another one close to it (download-bits); None for
    `model` itself.
    """

    message_type: str
    nodes: tuple[int, ...]
    server_round: int
    model: ModelState | None
    arrays_key: str
    configs: Mapping[str, Mapping[str, Any]]
    weight_key: str
    timeout: float | None = None
    ahead: Mapping[str, int] = field(default_factory=dict)
    base: ModelState | None = None


def _path_of(state: ModelState | Path | None) -> str | None:
    path = state.path if isinstance(state, ModelState) else state
    if state is not None and path is None:
        raise UsageError("a model that is only in memory cannot be sent to another process")
    return str(path) if path else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeReply:
    """One reply: the whole cohort's weighted mean (node 0) in secure mode, one client's answer in plain mode.

    To a query the metrics are the sums over the cohort, and each client is one example.

    state: None where no model was asked for. The path of a safetensors file stands for a state that nobody has needed
    yet, and in JSON for any state, so that a reply can be sent to another process.
    """

    node: int
    state: Annotated[InstanceOf[ModelState] | Path | None, PlainSerializer(_path_of)]
    examples: int
    metrics: Mapping[str, MetricValue]

    @classmethod
    def of_cohort(cls, decoded: Decoded) -> Self:
        """What a secure exchange replies."""
        return cls(node=COHORT, state=decoded.state, examples=decoded.examples, metrics=decoded.metrics)

    def model(self) -> ModelState | None:
        """The state, mapped where it is a file."""
        return ModelState.open(self.state) if isinstance(self.state, Path) else self.state


class Told(Protocol):
    """What of a sum the next encoding is made from, as in `fedcore.codec.Decoded`."""

    @property
    def names(self) -> tuple[MetricName, ...] | None:
        """The names of the metrics; None where they differ."""

    @property
    def statistics(self) -> Statistics:
        """About magnitudes."""


@dataclass(slots=True)
class EncodingPlan:
    """Chooses the encoding of each exchange of a run; remembers what the sums so far told.

    That is the names of the metrics by the kind of message, and the magnitudes of updates by the layout of the model.

    privacy: what the run promises to each client; None where it is not differentially private. least_cohort: fewest
    clients that a secure sum may be made of, as their policies ask for.
    """

    settings: JobSettings
    least_cohort: int = 2
    privacy: PrivacyPlan | None = field(init=False)
    _tracks: dict[bytes, ScaleTrack] = field(default_factory=dict)
    _names: dict[str, tuple[MetricName, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.privacy = PrivacyPlan.of(self.settings)

    def encoding(
        self,
        message_type: str,
        layout: Layout | None,
        n: int,
        members: int | None = None,
        *,
        whole: bool = False,
        model: str = "",
    ) -> AnyEncoding:
        """The encoding for a cohort of `n` clients; without noise, the first one of a layout has 64-bit fields.

        members, whole: as in `quorum_for`. With `whole` the scales are those of the attempt before, whose sum stayed
        closed, or larger ones: clients answer for one model at rising scales only. model: SHA-256, hex, of the model
        that is trained from, which decides how compressed updates are rotated.
        """
        codec = codec_settings(self.settings, message_type, n)
        sizes = n, self.least_cohort, members
        if is_query(message_type):
            self._check_query(codec, n)
            return first_encoding(codec, None, n, failures=failures_for(self.settings, *sizes, whole=whole))
        names = self._names.get(message_type, self.settings.metrics_of(is_training(message_type)))
        protection = protection_for(self.settings, *sizes, whole=whole) if self.privacy else None
        if self.privacy is not None and protection is not None:
            quorum = quorum_for(self.settings, *sizes, whole=whole)
            clients, metrics = noise_clients(n, quorum, protection), () if layout else names or ()
            return private_encoding(codec, layout, n, plan=self.privacy, noise_clients=clients, metrics=metrics)
        failures = failures_for(self.settings, *sizes, whole=whole)
        if layout is None:
            return first_encoding(codec, layout, n, metrics=names, failures=failures)
        rotation = rotation_seed(model) if codec.compresses else ""
        return self._track(layout).encoding(
            codec, layout, n, metrics=names, failures=failures, again=whole, rotation=rotation
        )

    def learn(self, message_type: str, encoding: AnyEncoding, told: Told) -> None:
        """Keep what the sum of an exchange told about the names of metrics, and about magnitudes."""
        if told.names is not None and not is_query(message_type):  # another query holds other numbers
            self._names[message_type] = told.names
        if isinstance(encoding, Encoding) and encoding.layout is not None:
            self._track(encoding.layout).learn(told.statistics)

    def learn_overflow(self, message_type: str, encoding: AnyEncoding, statistics: Statistics) -> None:
        """Make the next encoding of the model hold the updates that this one had too little room for."""
        if isinstance(encoding, Encoding) and encoding.layout is not None:
            self._track(encoding.layout).learn_overflow(encoding, statistics)

    def _track(self, layout: Layout) -> ScaleTrack:
        return self._tracks.setdefault(layout.digest(), ScaleTrack())

    def _check_query(self, codec: CodecSettings, n: int) -> None:
        if self.privacy is not None:
            raise ConfigurationError(
                "a run with differential privacy of each client (dp-epsilon, dp-noise-multiplier) cannot answer a "
                "query, whose sum would have no noise; ask in a run of its own, without these settings"
            )
        if n * math.ceil(codec.metric_max) >= MOST_IN_SUM:
            raise ConfigurationError(
                f"the sum of {n} clients' numbers of up to query-max = {codec.metric_max:g} each could overflow; set "
                f"query-max to at most {MOST_IN_SUM // n - 1}"
            )


def codec_settings(settings: JobSettings, message_type: str, n: int) -> CodecSettings:
    """The part of a job's settings that the codec needs for one kind of message, for a cohort of `n` clients.

    In a query every client weighs 1, so that the numbers of their replies add up. Raises EncodingError where no width
    of fields has room for so many.
    """
    exact = _codec_settings(settings, n)
    if not is_query(message_type):
        return exact
    return replace(exact, w_max=1, metric_max=settings.query_max, max_metrics=QUERY_VALUES)


def _codec_settings(settings: JobSettings, n: int) -> CodecSettings:
    bits = settings.field_bits
    return CodecSettings(
        field_bits=auto_field_bits(n, settings.upload_fraction) if bits == "auto" else bits,
        w_max=settings.w_max,
        metric_max=settings.metric_max,
        max_metrics=settings.max_metrics,
        clip_norm=settings.clip_norm or None,
        clipping=settings.clipping,
        upload_fraction=settings.upload_fraction,
    )


def corrupt_for(settings: JobSettings, members: int) -> int:
    """How many clients may collude with the server: max-corrupt of all `members` of the roster.

    Not of the cohort: the server picks that, and all who collude may be in it.
    """
    return corrupt_clients(members, settings.max_corrupt)


def quorum_for(
    settings: JobSettings, n: int, least_cohort: int = 2, members: int | None = None, *, whole: bool = False
) -> int:
    """Survivors needed of a cohort of `n` out of `members`, None for as many as the cohort has; 1 for a plain mean.

    The setting; or floor(2n/3) + 1, and more where `least_cohort` clients that do not collude, or agreement on one set
    of survivors, need more. All of them where the `whole` cohort has to survive.
    """
    if whole:
        return n
    if settings.quorum:
        return settings.quorum
    if settings.aggregation == "plain":
        return 1
    corrupt = corrupt_for(settings, members or n)
    return max(default_quorum(n), least_cohort + corrupt, (n + corrupt) // 2 + 1)


def failures_for(
    settings: JobSettings, n: int, least_cohort: int = 2, members: int | None = None, *, whole: bool = False
) -> int:
    """How many clients may contribute nothing to a sum, so that `least_cohort` that do not collude still do."""
    sure = quorum_for(settings, n, least_cohort, members, whole=whole) - corrupt_for(settings, members or n)
    return min(MOST_FAILURES, n - 1, max(0, sure - least_cohort))


def protection_for(
    settings: JobSettings, n: int, least_cohort: int = 2, members: int | None = None, *, whole: bool = False
) -> Protection | None:
    """Graph, threshold and key agreement for a secure exchange among `n` clients; None for a plain one."""
    if settings.aggregation == "plain":
        return None
    quorum = quorum_for(settings, n, least_cohort, members, whole=whole)
    corrupt = corrupt_for(settings, members or n)
    graph = cohort_graph(n, quorum=quorum, corrupt=corrupt, dropout=settings.dropout)
    if settings.key_agreement == "auto":
        agreement = Agreement.HYBRID if graph.degree == n - 1 else Agreement.X25519
    else:
        agreement = Agreement(settings.key_agreement)
    return Protection(degree=graph.degree, threshold=graph.threshold, corrupt=corrupt, agreement=agreement.value)


def make_task(
    request: ExchangeRequest,
    *,
    settings: JobSettings,
    run: str,
    exchange: int,
    attempt: int,
    cohort: Sequence[int],
    app_sha256: str,
    run_config: Mapping[str, Scalar],
    model: ModelRef | None,
    encoding: AnyEncoding | None,
    least_cohort: int = 2,
    roster: int = 1,
    members: int | None = None,
    whole: bool = False,
    previous: str = "",
    buffer: Buffer | None = None,
    cut: Cut | None = None,
    group: Group | None = None,
    places: Sequence[Place] | None = None,
) -> Task:
    """The announcement of one exchange to its cohort.

    `least_cohort`, `members` and `whole` as in `quorum_for`; `roster` is the version of the roster in use, `previous`
    the head of the federation's transcript. `buffer`: of a buffered exchange. `cut`, `group` and `places` for one that
    is a group of a draw.
    """
    seconds = min(settings.train_seconds, request.timeout or settings.train_seconds)
    return Task(
        run=run,
        exchange=exchange,
        attempt=attempt,
        server_round=request.server_round,
        message_type=request.message_type,
        aggregation=settings.aggregation,
        app_sha256=app_sha256,
        run_config=dict(run_config),
        settings=settings.for_clients(),
        arrays_key=request.arrays_key,
        configs={key: dict(value) for key, value in request.configs.items()},
        weight_key=request.weight_key,
        model=model,
        cohort=sorted(cohort),
        quorum=quorum_for(settings, len(cohort), least_cohort, members, whole=whole),
        protection=protection_for(settings, len(cohort), least_cohort, members, whole=whole),
        encoding=encoding,
        roster=roster,
        previous=previous,
        buffer=buffer,
        cut=cut,
        group=group,
        places=list(places) if places is not None else None,
        seconds=seconds,
    )


def make_work(
    request: ExchangeRequest,
    *,
    settings: JobSettings,
    run: str,
    exchange: int,
    app_sha256: str,
    run_config: Mapping[str, Scalar],
    model: ModelRef | None,
    version: Version | None = None,
    roster: int = 1,
) -> Task:
    """What clients are asked to train for later sums (`fedcore.buffered`); `exchange` is the next one's number.

    version: which model of the run it is, for clients that are told by this task alone.
    """
    return Task(
        run=run,
        exchange=exchange,
        attempt=1,
        server_round=request.server_round,
        message_type=request.message_type,
        aggregation=settings.aggregation,
        app_sha256=app_sha256,
        run_config=dict(run_config),
        settings=settings.for_clients(),
        arrays_key=request.arrays_key,
        configs={key: dict(value) for key, value in request.configs.items()},
        weight_key=request.weight_key,
        model=model,
        cohort=sorted(request.nodes),
        quorum=1,
        protection=None,
        encoding=None,
        roster=roster,
        version=version,
        seconds=min(settings.train_seconds, request.timeout or settings.train_seconds),
    )


def make_draw(task: Task, cut: Cut, *, needed: int) -> Task:
    """The announcement of a draw for the exchange that `task` announces; needed: how many answers it needs."""
    return task.model_copy(update={"cut": cut, "quorum": needed, "encoding": None, "protection": None})


def noise_clients(n: int, quorum: int, protection: Protection) -> int:
    """How many noise shares any sum of a cohort of `n` is sure to hold, however many collude whom its masks withstand.

    Who colludes knows its own share of the noise and takes it off. On the full graph the masks keep what a sum hides
    from 2t - n - 1 colluding clients, mostly more than `corrupt`: so the noise counts on no more than the others.
    """
    withstood = 2 * protection.threshold - n - 1 if protection.degree == n - 1 else protection.corrupt
    return quorum - max(withstood, protection.corrupt)


def round_parameters(task: Task, *, federation: str, roster_hash: bytes, model_hash: bytes | None) -> RoundParameters:
    """The parameters that ctx is made of, from one party's own view.

    `model_hash` is the SHA-256 of the model file that this party holds itself, `roster_hash` that of its own roster.
    """
    encoding = encoding_of(task)
    if task.protection is None:
        raise ConfigurationError("a secure exchange names its graph, threshold and key agreement")
    protection = task.protection
    if protection.agreement not in set(Agreement):
        raise ConfigurationError(f"unknown key agreement; there are {', '.join(Agreement)}")
    return RoundParameters(
        federation=federation,
        run=task.run,
        round=task.exchange,
        cohort=tuple(task.cohort),
        quorum=task.quorum,
        degree=protection.degree,
        threshold=protection.threshold,
        corrupt=protection.corrupt,
        agreement=Agreement(protection.agreement),
        words=encoding.words,
        encoding=encoding.canonical(),
        roster_hash=roster_hash,
        model_hash=model_hash or NO_MODEL,
        task_hash=task.digest(),
    )


def encoding_of(task: Task) -> AnyEncoding:
    """The encoding that a secure task announces; raises EncodingError where it is none."""
    if task.encoding is None:
        raise EncodingError("a secure exchange names its encoding, and this one names none that can be read")
    return task.encoding
