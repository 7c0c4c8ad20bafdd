"""What the two sides of an exchange must derive alike: its task, and the parameters that ctx binds.

The server (or the simulator) makes a `Task` from an `ExchangeRequest`; every client derives the same
`RoundParameters` from the task, but with the model and the roster that it holds itself. Where the server lied to one of
them, the two ctx differ and no signature verifies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Self

from pydantic import InstanceOf, PlainSerializer

from fedcore.codec import AnyEncoding, Decoded
from fedcore.errors import ConfigurationError, EncodingError, UsageError
from fedcore.run.quorum import protection_for, quorum_for
from fedcore.run.settings import JobSettings
from fedcore.secagg import Agreement, RoundParameters
from fedcore.state import ModelState
from fedcore.wire.base import MetricValue, Scalar
from fedcore.wire.tasks import Buffer, DrawTicket, Group, GroupSpec, ModelRef, Task, Version, is_query

NO_MODEL = b"\x00" * 32
COHORT: Final = 0
"""The node of a reply that is the whole cohort's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRequest:
    """One `send_and_receive` of a ServerApp: the same content for every node.

    nodes
        Client ids.
    model
        None if the message holds no ArrayRecord.
    configs
        Every ConfigRecord by its key, bytes as {"base64": ...}.
    weight_key
        The metric that holds the number of examples.
    ahead
        Message type -> how many nodes the strategy asks in a round, as it was when it sent its first message; empty if
        that is unknown.
    base
        The model that the mean of changes is added to, if clients get another one close to it (download-bits); None for
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

    state: None if no model was asked for. The path of a safetensors file stands for a state that nobody has needed
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
    all_survive: bool = False,
    previous: str = "",
    buffer: Buffer | None = None,
    cut: GroupSpec | None = None,
    group: Group | None = None,
    tickets: Sequence[DrawTicket] | None = None,
) -> Task:
    """The announcement of one exchange to its cohort.

    least_cohort, members, all_survive
        As in `quorum_for`.
    roster
        The version of the roster in use.
    previous
        The head of the federation's transcript.
    buffer
        Of a buffered exchange.
    cut, group, tickets
        Of one that is a group of a draw.
    """
    return Task(
        **_request_fields(request, settings),
        run=run,
        exchange=exchange,
        attempt=attempt,
        app_sha256=app_sha256,
        run_config=dict(run_config),
        model=model,
        cohort=sorted(cohort),
        quorum=quorum_for(settings, len(cohort), least_cohort, members, all_survive=all_survive),
        protection=protection_for(settings, len(cohort), least_cohort, members, all_survive=all_survive),
        encoding=encoding,
        roster=roster,
        previous=previous,
        buffer=buffer,
        cut=cut,
        group=group,
        places=list(tickets) if tickets is not None else None,
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
    """What clients are asked to train for later sums (`fedcore.run.buffer`); `exchange` is the next one's number.

    version
        Which model of the run it is, for clients that learn it from this task alone.
    """
    return Task(
        **_request_fields(request, settings),
        run=run,
        exchange=exchange,
        attempt=1,
        app_sha256=app_sha256,
        run_config=dict(run_config),
        model=model,
        cohort=sorted(request.nodes),
        quorum=1,
        protection=None,
        encoding=None,
        roster=roster,
        version=version,
    )


def _request_fields(request: ExchangeRequest, settings: JobSettings) -> dict[str, Any]:
    """The fields of a task that say what the strategy asks for, and under which settings.

    Raises ConfigurationError if it weighs clients by another metric than the settings say, as their owners would.
    """
    if settings.aggregation == "secure" and not is_query(request.message_type):
        _check_weight(request.weight_key, settings)
    return {
        "server_round": request.server_round,
        "message_type": request.message_type,
        "aggregation": settings.aggregation,
        "settings": settings.for_clients(),
        "arrays_key": request.arrays_key,
        "configs": {key: dict(value) for key, value in request.configs.items()},
        "weight_key": request.weight_key,
        "seconds": min(settings.train_seconds, request.timeout or settings.train_seconds),
    }


def _check_weight(requested: str, settings: JobSettings) -> None:
    if requested != settings.weight_key:
        raise ConfigurationError(
            f"the strategy weighs clients by {requested!r} (weighted_by_key), the app's settings by "
            f"{settings.weight_key!r}; write weight-key = {json.dumps(requested)} under [tool.fedcore] in its "
            "pyproject.toml, so that the owners agree to it",
            check="weight-key",
        )


def make_draw(task: Task, cut: GroupSpec, *, needed: int) -> Task:
    """The announcement of a draw for the exchange that `task` announces; needed: how many answers it needs."""
    return task.model_copy(update={"cut": cut, "quorum": needed, "encoding": None, "protection": None})


def round_parameters(task: Task, *, federation: str, roster_hash: bytes, model_hash: bytes | None) -> RoundParameters:
    """The parameters that ctx is made of, from one party's own view.

    `model_hash` is the SHA-256 of the model file that this party holds itself, `roster_hash` that of its own roster.
    """
    encoding = encoding_of(task)
    return parameters_of(
        task,
        Signed(words=encoding.words, encoding=encoding.canonical(), task_hash=task.digest()),
        federation=federation,
        roster_hash=roster_hash,
        model_hash=model_hash,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What ctx takes from a task's text and its encoding, as its signer had them."""

    words: int
    encoding: bytes
    task_hash: bytes


def parameters_of(
    task: Task, signed: Signed, *, federation: str, roster_hash: bytes, model_hash: bytes | None
) -> RoundParameters:
    """The parameters of an exchange whose task another version of fedcore may have announced."""
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
        words=signed.words,
        encoding=signed.encoding,
        roster_hash=roster_hash,
        model_hash=model_hash or NO_MODEL,
        task_hash=signed.task_hash,
    )


def encoding_of(task: Task) -> AnyEncoding:
    """The encoding that a secure task announces; raises EncodingError if it is none."""
    if task.encoding is None:
        raise EncodingError("a secure exchange names its encoding, and this one names none that can be read")
    return task.encoding
