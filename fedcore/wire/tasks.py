"""What a server asks of a client: a task, the model that it names, and what binds all clients of a cohort alike."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from fedcore.codec import AnyEncoding
from fedcore.errors import FedcoreError
from fedcore.wire.base import MAX_COHORT, ClientId, Key32, Message, Name, Scalar, Sha256, Signature64

Updates = dict[tuple[int, str], float]
"""(client, SHA-256 of the model that it trained from) -> what the update of that training counts in a sum."""


def staleness_factor(staleness: int, rule: object) -> float:
    """What an update counts that began so many models before the newest: FedBuff (arXiv 2106.06639), section 5.

    Args:
        rule: "sqrt" for 1 / sqrt(1 + staleness), anything else for 1. One below 0 counts as 0.
    """
    return 1 / math.sqrt(1 + max(0, staleness)) if rule == "sqrt" else 1.0


def is_training(message_type: str) -> bool:
    """Whether a Flower message type asks for a new model, and not for metrics alone."""
    return message_type.partition(".")[0] == "train"


def is_query(message_type: str) -> bool:
    """Whether a Flower message type asks neither to train nor to evaluate: a client's numbers are added up then."""
    return message_type.partition(".")[0] == "query"


class ModelRef(Message):
    """The model of an exchange: a safetensors file, fetched apart and checked against this digest."""

    sha256: Sha256
    size: int = Field(ge=0)


class MessageHead(Message):
    """The metadata of a message of a plain exchange, as the ServerApp's Grid set it."""

    message_id: Name
    group_id: str
    created_at: float
    ttl: float


class Protection(Message):
    """How a secure exchange is protected; the fields are those of `fedcore.secagg.RoundParameters`."""

    degree: int = Field(ge=1)
    threshold: int = Field(ge=1)
    corrupt: int = Field(ge=0)
    agreement: Name


class Version(Message):
    """A model of a run that clients train from.

    number: how many there were before it, from 0 on.
    """

    number: int = Field(ge=0)
    sha256: Sha256


class Buffer(Message):
    """What the updates of a buffered exchange began from (`fedcore.run.buffer`).

    newest: the number of the run's newest model.
    starts: a version for each client of the cohort, in its order.
    """

    newest: int = Field(ge=0)
    starts: list[Version] = Field(min_length=1, max_length=MAX_COHORT)


class GroupSpec(Message):
    """What a draw asks for (`fedcore.run.groups`): into how many groups its cohort is cut, and how small one may be."""

    groups: int = Field(ge=2, le=MAX_COHORT)
    least: int = Field(ge=1, le=MAX_COHORT)


class DrawTicketIn(Message):
    """A client's answer to a draw: fresh randomness, which is its place on the ring, signed."""

    nonce: Key32
    signature: Signature64


class DrawTicket(DrawTicketIn):
    """An answer to a draw with the client that signed it."""

    client_id: ClientId


class Group(Message):
    """Of which draw a secure exchange is a group.

    number: from 1 on, of as many as `of`.
    draw: the digest of the draw's task.
    exchange: its number.
    places: SHA-256 over all answers to it.
    """

    draw: Sha256
    exchange: int = Field(ge=1)
    places: Sha256
    number: int = Field(ge=1)
    of: int = Field(ge=1)


def _encoding_or_none(value: object, validate: ValidatorFunctionWrapHandler) -> AnyEncoding | None:
    """What is no encoding becomes None, as which every client refuses a secure exchange and can say why it leaves."""
    try:
        encoding: AnyEncoding | None = validate(value)
    except (FedcoreError, TypeError, ValueError, OverflowError):
        return None
    return encoding


TASK_TAG: Final = "fedcore/task/v2"


class Task(Message):
    """One exchange that a client is asked to take part in: one `send_and_receive` of the ServerApp.

    All of it except `attempt`, `seconds` and `places`, of which `group` has the hash, is bound into the protocol's ctx
    by `digest()`: a server that tells two clients different things gets no sum. `exchange` counts all exchanges of the
    run, retries included.
    Plain: `model` is a record file with all that the client is sent, `message` is what else belongs to it, and the
    rest that a message holds stays empty.
    """

    run: Name
    exchange: int = Field(ge=1)
    attempt: int = Field(ge=1)
    server_round: int = Field(ge=0)
    message_type: Name
    aggregation: Literal["secure", "plain"]
    app_sha256: Sha256
    run_config: dict[str, Scalar]
    settings: dict[str, Scalar | list[str]] = Field({}, description="settings of the run that bind its clients")
    arrays_key: str
    configs: dict[str, dict[str, Any]]
    weight_key: Name
    model: ModelRef | None
    cohort: list[ClientId] = Field(min_length=1, max_length=MAX_COHORT)
    quorum: int = Field(ge=1)
    protection: Protection | None
    encoding: Annotated[AnyEncoding | None, WrapValidator(_encoding_or_none)]
    roster: int = Field(ge=1, description="version of the roster that the exchange uses")
    previous: Sha256 | Literal[""] = Field("", description="hash of the last record of the transcript")
    version: Version | None = Field(
        None, description="this is work for a later sum, and no exchange: what the model is"
    )
    buffer: Buffer | None = Field(None, description="secure: updates that were made before, and what they began from")
    cut: GroupSpec | None = Field(None, description="a draw: which places are asked for, and no work")
    group: Group | None = Field(None, description="secure: the group of a draw that the cohort is")
    places: list[DrawTicket] | None = Field(
        None, max_length=MAX_COHORT, description="all answers to the draw, from which the groups follow"
    )
    seconds: float = Field(gt=0, description="time that is left for the local work")
    message: MessageHead | None = Field(None, description="plain: the message to this client alone")

    @model_validator(mode="after")
    def _one_start_each(self) -> Self:
        if self.buffer is not None and len(self.buffer.starts) != len(self.cohort):
            raise ValueError("a buffer names one version for each client of the cohort")
        return self

    @property
    def trains(self) -> bool:
        """Whether a new model is asked for, and not metrics alone."""
        return is_training(self.message_type)

    @property
    def queries(self) -> bool:
        """Whether numbers are asked for, of which the sum over the clients is wanted and no mean."""
        return is_query(self.message_type)

    @property
    def purpose(self) -> str:
        """What the clients are asked to do with the model: the first part of the message type."""
        return self.message_type.partition(".")[0]

    @property
    def model_sha256(self) -> str:
        """The SHA-256 of the model, "" if there is none."""
        return self.model.sha256 if self.model else ""

    @property
    def subject_model(self) -> str:
        """What the sums of one purpose are about, as they are counted: the model's SHA-256.

        "" for a query, whatever model comes along: it is about a client's data, and all else in it is the server's to
        choose. And "" for a buffered exchange, which is about several models (`updates_of`).
        """
        return "" if self.queries or self.buffer is not None else self.model_sha256

    def updates_of(self, clients: Iterable[int]) -> Updates:
        """The updates that these clients of the cohort put into a sum, and what each of them counts there."""
        if self.buffer is None:
            model = self.model_sha256
            return dict.fromkeys(((client, model) for client in clients), 1.0)
        starts, rule = dict(zip(self.cohort, self.buffer.starts, strict=True)), self.settings.get("staleness")
        newest = self.buffer.newest
        return {
            (client, starts[client].sha256): staleness_factor(newest - starts[client].number, rule)
            for client in clients
        }

    def versions(self) -> frozenset[tuple[int, str]]:
        """Of a buffered exchange: which models it names, by number and SHA-256, the newest one among them."""
        if self.buffer is None:
            return frozenset()
        named = {(start.number, start.sha256) for start in self.buffer.starts}
        return frozenset(named | {(self.buffer.newest, self.model_sha256)})

    def staleness_of(self, clients: Iterable[int]) -> dict[int, int]:
        """Of a buffered exchange: how many models came since the one that each of these clients trained from."""
        if self.buffer is None:
            return {}
        starts = dict(zip(self.cohort, self.buffer.starts, strict=True))
        return {client: self.buffer.newest - starts[client].number for client in sorted(clients)}

    def content(self) -> dict[str, Any]:
        """Everything that all clients of the cohort must have been told alike, as JSON.

        Of a version, a buffer, a cut and a group only if there is one.
        """
        return _bound(self.model_dump(mode="json", exclude=set(_UNBOUND)))

    def digest(self) -> bytes:
        """SHA-256 over `content`, 32 bytes."""
        return task_digest(self.content())


class StoredTask(Task):
    """A task that was kept, by whatever version of fedcore: what this one does not know of it is not read.

    Its content, and so its digest, is the JSON that was kept: this version would perhaps write another one.
    """

    model_config = ConfigDict(extra="ignore")

    _original: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, value: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        task = read(value)
        if isinstance(value, Mapping):
            task._original = _bound(value)  # noqa: SLF001 - of this class
        return task

    def content(self) -> dict[str, Any]:
        """As it was kept."""
        return dict(self._original)


_UNBOUND: Final = frozenset({"attempt", "seconds", "message", "places"})
_IF_PRESENT: Final = frozenset({"version", "buffer", "cut", "group"})


def _bound(task: Mapping[str, Any]) -> dict[str, Any]:
    """What the digest covers of a task in JSON."""
    return {
        name: value
        for name, value in task.items()
        if name not in _UNBOUND and not (name in _IF_PRESENT and value is None)
    }


def task_digest(content: Mapping[str, Any]) -> bytes:
    """SHA-256 over the content of a task as it was announced, 32 bytes;

    The text that is hashed is made of the JSON alone, and JSON that was kept gives the same text again: keys are
    sorted, and Python writes of a number no more than it takes to read the same one.

    Args:
        content: JSON, of whatever version of fedcore.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"{TASK_TAG}\x00{text}".encode("ascii")).digest()
