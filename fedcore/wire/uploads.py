"""How a client ends its part in an exchange, with an update or by a withdrawal that says why, and how that counts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from fedcore.wire.base import Bytes, ClientId, Key32, Message, MetricValue, Name, Sha256, Signature64, optional


class ReplyError(Message):
    """Why a client of a plain exchange has no reply, in Flower's codes (`fedcore.run.plain`)."""

    code: int = Field(ge=0, le=2**31 - 1)
    reason: str | None = Field(max_length=10_000)


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
    empty: names, values and examples travel in the sum. With norm proofs `pads` is the commitment to those in the
    vector. Plain: the update is a record file, of which `examples` and `values` say for the record of the run what they
    can; or there is an `error`, and no file.
    """

    digest: Sha256
    size: int = Field(ge=0)
    examples: int | None = Field(None, ge=0, le=2**63 - 1)
    values: dict[Name, MetricValue] = Field({}, max_length=256)
    error: ReplyError | None = None
    pads: Key32 | None = optional()


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
        "tree-too-deep",
        "node-too-small",
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
        name = f"{self.check} {self.subject}".rstrip()
        if self.asked is None or self.allowed is None:
            return name
        if self.check == "differencing":
            return (
                f"{name}: the clients changed; two sums together would reveal that of {self.asked:.10g} clients, the "
                f"policy demands {self.allowed:.10g} (policy key allow-differencing)"
            )
        return f"{name} (the run: {self.asked:.10g}, the policy: {self.allowed:.10g})"


class Contribution(Message):
    """What one site gave to one run, or to several: one count for its owner, for the operator and in the transcript.

    An exchange counts for a site once its update is in a sum that a quorum of the sum's clients signed: from then on
    others may read that sum, also if the exchange fails afterwards. In secure aggregation the signed records say so;
    the server and the clients count the same exchanges as they run. In plain aggregation an exchange counts once the
    server has the reply. What differs by nature has other names: attempts, and the traffic of exchanges, which also
    has the keys, the models and the heads of HTTP, each side as it sees it.

    exchanges: in whose sums the site's update is.
    update_bytes: of these updates, as they were uploaded.
    """

    exchanges: int = 0
    update_bytes: int = 0

    def __add__(self, other: Contribution) -> Contribution:
        return Contribution(
            exchanges=self.exchanges + other.exchanges, update_bytes=self.update_bytes + other.update_bytes
        )


NOTHING = Contribution()


def contributions(exchanges: Iterable[Mapping[str, int]]) -> dict[str, Contribution]:
    """The sites by name.

    Args:
        exchanges: of each the bytes of the updates in its sum, by site.
    """
    sites: dict[str, Contribution] = {}
    for updates in exchanges:
        for name, size in updates.items():
            sites[name] = sites.get(name, NOTHING) + Contribution(exchanges=1, update_bytes=size)
    return sites


def in_all(sites: Iterable[Contribution]) -> Contribution:
    """Of several together; an exchange counts once for each of its sites."""
    return sum(sites, NOTHING)
