"""The control messages between client and server, as pydantic models.

Those of the protocol's rounds are in `fedcore.wire.secagg`, the operator's in `fedcore.wire.operator`.

Both apps use these models, so the server's OpenAPI schema is what the client really sends. Vectors and models never
travel in here: they are octet streams, named by their SHA-256. Bytes are base64 in JSON, digests are lower-case hex.
Every model refuses unknown keys. Sizes are bounded here, before anything is decoded further.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
    model_validator,
)

from fedcore.codec import AnyEncoding
from fedcore.errors import FedcoreError

MAX_COHORT = 10_000
SHA256_HEX = r"^[0-9a-f]{64}$"


def _decode_base64(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ValueError("expected base64 text")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error:
        raise ValueError("not valid base64") from None


def _encode_base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


Bytes = Annotated[
    bytes,
    BeforeValidator(_decode_base64),
    PlainSerializer(_encode_base64, return_type=str, when_used="json"),
]
Key32 = Annotated[Bytes, Field(min_length=32, max_length=32)]
Signature64 = Annotated[Bytes, Field(min_length=64, max_length=64)]
Sha256 = Annotated[str, Field(pattern=SHA256_HEX)]
ClientId = Annotated[int, Field(ge=1, le=2**31 - 1)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
MetricValue = float | list[float]
Scalar = bool | int | float | str


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


class Message(BaseModel):
    """Base of all control messages: frozen, and unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


# --- problems ---------------------------------------------------------------------------------------------------


class ProblemKind(StrEnum):
    """The last part of a problem document's `type`; the client acts on it."""

    UNAUTHORIZED = "unauthorized"
    WRONG_CLOCK = "wrong-clock"
    REVOKED = "revoked"
    MALFORMED = "malformed"
    NOT_FOUND = "not-found"
    NOT_IN_COHORT = "not-in-cohort"
    STALE_STEP = "stale-step"
    NOT_NEEDED = "not-needed"
    CONFLICT = "conflict"
    TOO_LARGE = "too-large"
    DIGEST_MISMATCH = "digest-mismatch"
    PARTS_MISSING = "parts-missing"
    STORAGE_FULL = "storage-full"
    STORAGE_UNAVAILABLE = "storage-unavailable"
    NOT_LEADING = "not-leading"
    OTHER_VERSION = "other-version"
    ROUND_FAILED = "round-failed"
    PROTOCOL_VIOLATION = "protocol-violation"
    APP_NOT_APPROVED = "app-not-approved"
    NOT_ALLOWED = "not-allowed"
    CROSS_SITE = "cross-site"
    TOO_MANY_STREAMS = "too-many-streams"
    BAD_CONFIGURATION = "bad-configuration"
    BUSY = "busy"
    INTERNAL = "internal"


class ProblemDocument(BaseModel):
    """A problem document (RFC 9457); `type` is `urn:fedcore:problem:<kind>`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    title: str
    status: int
    detail: str

    @property
    def kind(self) -> str:
        return self.type.rsplit(":", 1)[-1]


# --- presence ---------------------------------------------------------------------------------------------------


class JoinIn(Message):
    """A client says that it is there, which app its owner installed, and whether it may train now.

    reports_failures: whether it tells why its local work fails; if not, failures are counted in the sum alone.
    work: what it has in hand of a buffered run, if anything.
    """

    app_sha256: Sha256
    version: Name
    eligible: bool = True
    reports_failures: bool = False
    work: WorkIn | None = None


class JoinOut(Message):
    """What the server tells a client that joins; `roster` is the version in use, `roster_sha256` its hash."""

    federation: Name
    name: Name
    version: Name
    heartbeat_seconds: float
    roster: int = Field(ge=1)
    roster_sha256: Sha256


class RostersOut(Message):
    """The rosters that follow the one that a client knows, in order, each the text of a signed roster."""

    rosters: list[str]


class HeartbeatIn(Message):
    """A sign of life: which exchange the client works on, if any, and whether it may train now.

    One that may not (its owner's rules on hours, power and load) stays connected and is not asked. Nor is one that is
    `stopping`, until it joins again; this is its last word.

    received: bytes that it has of the model that it fetches.
    """

    run: str = ""
    exchange: int = 0
    eligible: bool = True
    stopping: bool = False
    received: int | None = Field(None, ge=0)

    @model_serializer(mode="wrap")
    def _without_nothing(self, plainly: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Nothing is received most of the time, and servers of before know no such field."""
        made: dict[str, Any] = plainly(self)
        return {name: value for name, value in made.items() if name != "received" or value is not None}


class AppOut(Message):
    """The files of an app that a run asks for, for an owner to look at and approve; path -> content."""

    files: dict[str, Bytes]


DELTA_BASE: Final = "delta-base"
"""Header of a response with a difference instead of a model: the entity tag of the model it applies to (RFC 3229)."""
OFFERS_HEADER: Final = "fedcore-apps"
"""Header of the response that there is no task: apps of open runs, by hash, if the client has none of them."""
WORK_HEADER: Final = "fedcore-work"
"""Header of the same response: WORK_OVER if the run has ended for which the client last took work."""
WORK_OVER: Final = "over"


# --- tasks ------------------------------------------------------------------------------------------------------


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


class ReplyError(Message):
    """Why a client of a plain exchange has no reply, in Flower's codes (`fedcore.run.plain`)."""

    code: int = Field(ge=0, le=2**31 - 1)
    reason: str | None = Field(max_length=10_000)


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
    def asked_of(self) -> str:
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
        absent = {name for name in ("version", "buffer", "cut", "group") if getattr(self, name) is None}
        return self.model_dump(mode="json", exclude={"attempt", "seconds", "message", "places", *absent})

    def digest(self) -> bytes:
        """SHA-256 over `content`, 32 bytes."""
        return task_digest(self.content())


class KeptTask(Task):
    """A task that was kept, by whatever version of fedcore: what this one does not know of it is not read.

    Never serialised: what counts of it is the JSON that was kept.
    """

    model_config = ConfigDict(extra="ignore")


def task_digest(content: Mapping[str, Any]) -> bytes:
    """SHA-256 over the content of a task as it was announced, 32 bytes;

    The text that is hashed is made of the JSON alone, and JSON that was kept gives the same text again: keys are
    sorted, and Python writes of a number no more than it takes to read the same one.

    Args:
        content: JSON, of whatever version of fedcore.
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(f"{TASK_TAG}\x00{text}".encode("ascii")).digest()


# --- uploads and leaving ----------------------------------------------------------------------------------------


class ComplaintIn(Message):
    """A proof that `accused` cheated in what it sealed for the client that withdraws (`fedcore.secagg.Complaint`)."""

    accused: ClientId
    part: Literal["shares", "pair-secret"]
    shared: Key32
    proof: Signature64
    mlkem_seed: Annotated[Bytes, Field(max_length=64)]


class PartsOut(Message):
    """The parts of a client's update that the server holds, whole and checked: index -> SHA-256."""

    parts: dict[int, Sha256]


class ManifestIn(Message):
    """Ends an upload: the parts sent before it are the client's update, and all of it.

    `digest` is `fedcore.wire.chunks.update_digest`. Secure: `size` is that of the masked vector, and the rest stays
    empty:
    names, values and examples travel in the sum. Plain: the update is a record file, of which `examples` and `values`
    say for the record of the run what they can; or there is an `error`, and no file.
    """

    digest: Sha256
    size: int = Field(ge=0)
    examples: int | None = Field(None, ge=0, le=2**63 - 1)
    values: dict[Name, MetricValue] = Field({}, max_length=256)
    error: ReplyError | None = None


class WithdrawalReason(StrEnum):
    """Why a client leaves an exchange; a fixed set, because free text could carry private data.

    `app-failed`, `wrong-records`, `update-refused` and `worker-died` may depend on its data. Only a client that reports
    failures, or takes part in a plain exchange, ever gives them.
    """

    POLICY = "policy"
    APP_FAILED = "app-failed"
    APP_MISMATCH = "app-mismatch"
    WRONG_RECORDS = "wrong-records"
    UPDATE_REFUSED = "update-refused"
    PROTOCOL_VIOLATION = "protocol-violation"
    WORKER_DIED = "worker-died"
    NOT_ELIGIBLE = "not-eligible"
    STOPPED = "stopped"


NUMBERED_CHECKS: Final = frozenset(
    {
        "cohort-below-minimum",
        "threshold-below-minimum",
        "corrupt-below-minimum",
        "model-too-large",
        "too-many-tensors",
        "too-long",
        "too-short",
        "too-many-exchanges",
        "too-many-releases",
        "differencing",
        "noise-shares",
        "too-little-noise",
        "privacy-budget",
    }
)
"""Checks that compare two numbers which follow from tasks and a policy, and never from data."""
Compared = Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]


class WithdrawIn(Message):
    """A client drops out of an exchange. `check` is the fixed name of the failed check, if there is one.

    complaint: where another client is why.
    subject: what the check failed on, such as a key of the run's config; only ever a name that the server itself sent.
        `stopped` without a check: the agent is being stopped, and is not to be asked until it joins again.
    asked, allowed: what one of `NUMBERED_CHECKS` compared; no other check has numbers.
    """

    reason: WithdrawalReason
    check: str = Field(default="", max_length=64, pattern=r"^[a-z0-9-]*$")
    complaint: ComplaintIn | None = None
    subject: str = Field(default="", max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")

    asked: Compared | None = None
    allowed: Compared | None = None

    @model_validator(mode="after")
    def _numbers_fit(self) -> Self:
        if (self.asked is None) != (self.allowed is None):
            raise ValueError("asked and allowed come together")
        if self.asked is not None and self.check not in NUMBERED_CHECKS:
            raise ValueError("this check has no numbers")
        return self

    @property
    def why(self) -> str:
        """The check, what it failed on and its numbers, as an operator reads it."""
        numbers = f" (asked {self.asked:.10g}, allowed {self.allowed:.10g})" if self.asked is not None else ""
        return f"{self.check} {self.subject}".rstrip() + numbers


class WorkState(StrEnum):
    """How far a client is with a piece of work."""

    TRAINING = "training"
    READY = "ready"
    GIVEN_UP = "given-up"


class WorkIn(Message):
    """What a client has in hand of a buffered run: it trains, or has an update that is in no sum yet, or gave up.

    Nothing of it depends on the client's data, but for when it is said.

    version: what it was given to train from.
    withdrawal: why it gave up.
    """

    run: Name
    version: Version
    state: WorkState
    withdrawal: WithdrawIn | None = None


JoinIn.model_rebuild()
