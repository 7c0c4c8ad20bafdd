"""One exception tree; a type says who erred, and so who can act.

    FedcoreError
    ├── UsageError               our own caller: an event out of order, an argument out of range
    │   └── IllegalTransition
    ├── ConfigurationError       what a person configured or installed
    │   ├── UnknownKey
    │   │   └── UnknownName      a strategy, engine, mode or tracker that is not installed
    │   ├── KitError             a federation or client kit is missing, broken or wrongly signed
    │   ├── AppError             a Flower app that cannot be loaded, or returns the wrong records
    │   ├── DataError            a data set that is absent, altered or unreadable
    │   ├── EncodingError        an update or a setting that the codec refuses
    │   └── StorageDamaged       a database that cannot be read any more
    ├── PeerError                the other side of the protocol or of the connection
    │   ├── ProtocolViolation    a named check of the secure aggregation protocol failed
    │   ├── ConflictingMessage   the same message again with other content
    │   ├── Unauthorized
    │   │   ├── WrongClock       the clocks of the two machines differ too much
    │   │   └── NotAccepted      the other side answers, and does not accept who asks: it may have yet to be told
    │   └── Refused              the server answered with a problem document
    ├── RoundFailed              nobody lied; too few parties were left
    │   ├── CohortTooSmall
    │   ├── CohortBelowMinimum   the strategy asks fewer clients than a sum may be made of
    │   ├── NothingContributed   all of them failed in their own work
    │   ├── RepliesDiffer        their replies to a query hold other numbers
    │   ├── TooFewContributed    so many of them did that the sum stays closed
    │   ├── UpdateTooLarge       some updates exceed the scales, so that the sum stays closed
    │   ├── RoundingTooCoarse    too much of a tensor's update is rounding
    │   ├── DamagedAtRest        what the server kept of it was changed on its disk
    │   ├── OtherForms           another version of fedcore had begun it
    │   └── UnmaskFailed
    ├── RunFailed                the run as a whole ended without a model
    ├── BudgetSpent              the run has to stop: one more exchange would exceed its privacy budget
    └── EnvironmentFailure       the machine or the network
        ├── ServerUnreachable
        ├── PortInUse
        ├── StorageFull
        ├── StorageUnavailable   the database or the object store is away, locked or read-only
        ├── LeaseLost            another server leads the federation
        └── WorkerDied

An exception never carries a secret, nor bytes that a peer sent. `exit_code` is the exit status that a command ends
with when the exception reaches its top.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar


class FedcoreError(Exception):
    """Base of every error that fedcore raises on purpose.

    check: a short fixed name of the reason, where one type is raised for several; sentences change, this does not.
    """

    exit_code: ClassVar[int] = 1
    check: str = ""

    def __init__(self, *args: object, check: str = "") -> None:
        super().__init__(*args)
        if check:
            self.check = check


class UsageError(FedcoreError):
    """Our own caller erred: a bug in the program that uses the library."""


class IllegalTransition(UsageError):
    """An event that the state machine has no transition for; the state is unchanged."""

    def __init__(self, state: str, event: str) -> None:
        super().__init__(f"event {event!r} is not legal in state {state!r}")
        self.state = state
        self.event = event


class ConfigurationError(FedcoreError):
    """What a person configured or installed cannot work; the message says what to change."""

    exit_code: ClassVar[int] = 2


class UnknownKey(ConfigurationError):
    """A configuration key that does not exist; names the nearest one that does."""

    def __init__(self, key: str, known: Iterable[str], where: str) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(names)}"
        super().__init__(f"unknown key {key!r} in {where}{hint}")
        self.key = key


class UnknownName(UnknownKey):
    """A strategy, engine, mode or tracker that is not installed here; names those that are, and the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str], where: str) -> None:
        names = list(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        needs = f"what a package brings needs that package on this machine, with an entry point {name!r}"
        ConfigurationError.__init__(
            self, f"unknown {kind} {name!r}: {where} must be one of {', '.join(names)}{hint} {needs}"
        )
        self.key = name


class KitError(ConfigurationError):
    """A federation folder or client kit is missing, incomplete, or not signed by its authority."""


class AppError(ConfigurationError):
    """A Flower app that cannot be loaded, or whose replies hold the wrong records."""


class DataError(ConfigurationError):
    """A data set that is absent, altered or unreadable."""


class EncodingError(ConfigurationError):
    """An update, or codec settings, that cannot be encoded without loss of meaning."""


class StorageDamaged(ConfigurationError):
    """The server's database cannot be read any more; a person has to put a backup in its place."""


class PeerError(FedcoreError):
    """The other side erred or lied."""

    exit_code: ClassVar[int] = 3


class ProtocolViolation(PeerError):
    """A check of the secure aggregation protocol failed; `check` is its fixed name.

    `peer` is the id of the client whose data failed, where that is known; `subject` what the check failed on, by a name
    that the other side gave it. asked, allowed: the two numbers that were compared, where they depend on no data.
    reason: a fixed name of which part of the check it was, where it has several; it stays on this machine.
    """

    def __init__(
        self,
        check: str,
        detail: str,
        *,
        peer: int | None = None,
        subject: str = "",
        asked: float | None = None,
        allowed: float | None = None,
        reason: str = "",
    ) -> None:
        super().__init__(f"{check}: {detail}")
        self.check = check
        self.peer = peer
        self.subject = subject
        self.asked = asked
        self.allowed = allowed
        self.reason = reason


class ConflictingMessage(PeerError):
    """A message that was answered before came again with different content."""


class Unauthorized(PeerError):
    """A signature, token or certificate that does not check out."""


class WrongClock(Unauthorized):
    """A signature of a time that is too far from that of the machine which checks it.

    key_id: whose key it is; "" if the other side says so.
    seconds: by which the signer's clock is ahead.
    """

    def __init__(self, *args: object, key_id: str = "", seconds: float = 0.0) -> None:
        super().__init__(*args)
        self.key_id = key_id
        self.seconds = seconds


class NotAccepted(Unauthorized):
    """The other side answers and does not accept who asks; it may do so once somebody has told it of them."""


class Refused(PeerError):
    """The server answered with a problem document (RFC 9457).

    kind: of the problem; "" if the answer was no such document, as one of a proxy is not.
    leader: the address of the server that leads, as one says that stands by; "" if it does not.
    """

    def __init__(self, status: int, kind: str, detail: str, *, leader: str = "") -> None:
        super().__init__(f"{detail} ({f'{kind}, ' if kind else ''}HTTP {status})")
        self.status = status
        self.kind = kind
        self.detail = detail
        self.leader = leader


class RoundFailed(FedcoreError):
    """A round that ended without a sum although nobody is known to have lied."""

    exit_code: ClassVar[int] = 5


class CohortTooSmall(RoundFailed):
    """Fewer clients than the threshold are left at a step."""

    def __init__(self, step: str, present: int, needed: int) -> None:
        super().__init__(f"{present} clients are left at step {str(step)!r}, {needed} are needed")
        self.step = step
        self.present = present
        self.needed = needed


class CohortBelowMinimum(RoundFailed):
    """A strategy asks fewer clients than their policies demand of a sum; retrying unchanged will fail again."""

    check = "cohort-below-minimum"

    def __init__(self, detail: str) -> None:
        super().__init__(f"{self.check}: {detail}")


class NothingContributed(RoundFailed):
    """Every client of a sum failed in its own work; retrying unchanged will fail again."""

    def __init__(self, failures: int, survivors: int, *, estimated: bool = False) -> None:
        about = "about " if estimated else ""
        super().__init__(f"{about}{failures} of {survivors} clients contributed nothing; their own logs say why")


class RepliesDiffer(RoundFailed):
    """The clients' replies to a query hold numbers of other names or lengths, which cannot be added up."""

    def __init__(self) -> None:
        super().__init__(
            "the clients' replies to the query hold numbers of other names or other lengths, so there is no sum; every "
            "client has to reply with the same records, names and lengths of lists"
        )


class TooFewContributed(RoundFailed):
    """More clients of a sum failed in their own work than it tolerates, so it cannot be opened."""

    def __init__(self, failures: int, survivors: int, *, tolerated: int) -> None:
        super().__init__(
            f"{failures} of {survivors} clients contributed nothing; their own logs say why. The sum of the others "
            f"stays closed: with its quorum this exchange tolerates {tolerated}, since clients refuse a sum of too few"
        )
        self.failures = failures


class UpdateTooLarge(RoundFailed):
    """Updates of a sum exceed its scales, so it cannot be opened; with larger scales the same clients' sum can be.

    large: how many clients' updates do. statistics: what the sum tells of magnitudes (`fedcore.codec.Statistics`), from
    which `EncodingPlan.learn_overflow` makes scales that are large enough.
    """

    def __init__(self, large: int, survivors: int, statistics: Any) -> None:
        super().__init__(
            f"the updates of {large} of {survivors} clients exceed the scales of this exchange, so its sum stays "
            "closed; larger scales hold them"
        )
        self.large = large
        self.statistics = statistics


class RoundingTooCoarse(RoundFailed):
    """Too much of what a sum says of a tensor is rounding, so it is not passed on.

    tensor: the name of the worst. helps: whether wider fields would be finer. statistics: what the sum tells of
    magnitudes (`fedcore.codec.Statistics`), from which `EncodingPlan.learn_coarse` makes fields that are wide enough.
    """

    def __init__(self, tensor: str, share: float, *, helps: bool, statistics: Any) -> None:
        super().__init__(
            f"rounding makes up {share:.0%} of the update of tensor {tensor!r}, so the sum is not passed on"
            + ("; wider fields are finer" if helps else " although its fields are as wide as there are")
        )
        self.tensor = tensor
        self.helps = helps
        self.statistics = statistics


class DamagedAtRest(RoundFailed):
    """What the server kept of a round is not what it wrote: its disk is at fault, and no client. what: is damaged."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} was changed on the server's disk since it was written, or is gone; no client is at fault. Look "
            "after the disk (docs/howto/troubleshooting.md)"
        )


class OtherForms(RoundFailed):
    """The server was upgraded in the middle of a round, and what was sent until then is in another form."""

    def __init__(self) -> None:
        super().__init__(
            "another version of fedcore had begun the exchange, and what its clients sent is in another form; it is "
            "asked for again"
        )


class UnmaskFailed(RoundFailed):
    """The shares that came back do not rebuild a secret, whichever subset is taken."""


class RunFailed(FedcoreError):
    """The run ended without a model; the message carries the last reason."""

    exit_code: ClassVar[int] = 5


class BudgetSpent(FedcoreError):
    """One more exchange would exceed the privacy budget; the run ends with the model that it has."""

    exit_code: ClassVar[int] = 6
    check = "privacy-budget"


class EnoughFound(FedcoreError):
    """What the run has found is enough for its server; it ends with the model that it has."""


class EnvironmentFailure(FedcoreError):
    """The machine or the network failed; trying again later may help."""

    exit_code: ClassVar[int] = 4


class ServerUnreachable(EnvironmentFailure):
    """No server answers at the address."""


class PortInUse(EnvironmentFailure):
    """Another process listens on the port already."""


class StorageFull(EnvironmentFailure):
    """The disk that holds the spool or the blobs is full; nothing was taken over."""


class StorageUnavailable(EnvironmentFailure):
    """The server's database or object store is locked, gone or read-only; that may pass, so ask again.

    A write may have been done anyway, where the connection broke while it was being made durable.
    """


class LeaseLost(EnvironmentFailure):
    """Another server of the federation has taken over; nothing that this one writes counts any more."""


class OutOfMemory(EnvironmentFailure):
    """A model, its training or its data need more memory than there is; the message says what to lower."""


class WorkerDied(EnvironmentFailure):
    """A worker or ServerApp process ended without an answer."""
