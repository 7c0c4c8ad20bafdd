"""What a round is about. Every party computes `ctx` from its own copy, so a lie to one of them shows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedcore.errors import ConfigurationError, ProtocolViolation
from fedcore.secagg.checks import Check
from fedcore.secagg.crypto.agreement import Agreement
from fedcore.secagg.crypto.domain import HASH_BYTES, Usage, pack_ids, tagged_hash
from fedcore.secagg.sizing import withstands

MAX_ID = 2**63 - 1
MAX_COHORT = 2**16
MAX_WORDS = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundParameters:
    """The public parameters of one round.

    `cohort` are the ids that were asked, in ascending order. `quorum` is the fewest of them that may advertise, share,
    survive and sign. `degree` is k, the number of neighbours of a client: n - 1 on the full graph, even otherwise.
    `threshold` is t, the shares that rebuild a secret, held by a client's neighbours and itself. `corrupt` is how many
    clients in addition to the server may collude without learning more than the sum. `agreement` is how keys are
    agreed. `words` is the length of the masked vector in 64-bit words. `encoding` are the codec's canonical public
    parameters (bits, clip, W_max, scales, privacy), opaque here. The three hashes have 32 bytes: of the roster, of the
    global model that this party holds, of the training task.

    Raises ConfigurationError if the parameters contradict each other. A client that gets them from its server
    builds them with `from_peer`, since then it is the server that erred.
    """

    federation: str
    run: str
    round: int
    cohort: tuple[int, ...]
    quorum: int
    degree: int
    threshold: int
    corrupt: int
    agreement: Agreement
    words: int
    encoding: bytes
    roster_hash: bytes
    model_hash: bytes
    task_hash: bytes

    def __post_init__(self) -> None:
        self._check_types()
        self._check_cohort()
        self._check_quorum()
        self._check_full_graph() if self.full_graph else self._check_sparse_graph()

    @classmethod
    def from_peer(cls, **fields: Any) -> RoundParameters:
        """Parameters as the server proposes them; ProtocolViolation("bad-parameters") if they are refused."""
        try:
            return cls(**fields)
        except ConfigurationError as refused:
            raise ProtocolViolation(Check.BAD_PARAMETERS, str(refused), reason=refused.check) from None
        except TypeError as refused:
            raise ProtocolViolation(Check.BAD_PARAMETERS, str(refused)) from None

    @property
    def n(self) -> int:
        """The number of clients that were asked."""
        return len(self.cohort)

    @property
    def full_graph(self) -> bool:
        """Whether every client is every other's neighbour."""
        return self.degree == self.n - 1

    def ctx(self) -> bytes:
        """The context hash that everything signed, sealed or derived in this round is bound to, 32 bytes."""
        return tagged_hash(
            Usage.CONTEXT,
            self.federation,
            self.run,
            self.round,
            self.n,
            pack_ids(self.cohort),
            self.quorum,
            self.degree,
            self.threshold,
            self.corrupt,
            self.agreement.value,
            self.words,
            self.encoding,
            self.roster_hash,
            self.model_hash,
            self.task_hash,
        )

    def _check_types(self) -> None:
        for name in ("federation", "run"):
            _check_text(name, getattr(self, name))
        for name in ("round", "quorum", "degree", "threshold", "corrupt", "words"):
            _check_number(name, getattr(self, name))
        if not isinstance(self.agreement, Agreement):
            raise ConfigurationError("agreement must be one of " + ", ".join(Agreement), check="agreement")
        if not isinstance(self.encoding, bytes):
            raise ConfigurationError("encoding must be bytes", check="encoding")
        for name in ("roster_hash", "model_hash", "task_hash"):
            value = getattr(self, name)
            if not isinstance(value, bytes) or len(value) != HASH_BYTES:
                raise ConfigurationError(f"{name} must be a hash of {HASH_BYTES} bytes", check=name)
        if not 1 <= self.words <= MAX_WORDS:
            raise ConfigurationError(f"words must lie between 1 and {MAX_WORDS}", check="words")

    def _check_cohort(self) -> None:
        if not isinstance(self.cohort, tuple):
            raise ConfigurationError("cohort must be a tuple of client ids", check="cohort-type")
        for client_id in self.cohort:
            _check_number("a client id", client_id, check="id")
            if client_id < 1:
                raise ConfigurationError("client ids lie between 1 and 2^63 - 1", check="id")
        if len(set(self.cohort)) != self.n:
            raise ConfigurationError("a client id occurs twice in the cohort", check="duplicate")
        if list(self.cohort) != sorted(self.cohort):
            raise ConfigurationError("the cohort must be in ascending order of the ids", check="order")
        if not 2 <= self.n <= MAX_COHORT:
            raise ConfigurationError(
                f"a cohort has 2 to {MAX_COHORT} clients, not {self.n}: the sum of one is its update",
                check="cohort-size",
            )

    def _check_quorum(self) -> None:
        if self.quorum > self.n:
            raise ConfigurationError(
                f"a quorum of {self.quorum} cannot be met by a cohort of {self.n}", check="quorum-too-high"
            )
        if 2 * self.quorum <= self.n + self.corrupt:
            least = (self.n + self.corrupt) // 2 + 1
            raise ConfigurationError(
                f"a quorum of {self.quorum} lets a lying server show two sets of survivors: with {self.n} clients and"
                f" {self.corrupt} corrupt it must be at least {least}",
                check="quorum-too-low",
            )

    def _check_full_graph(self) -> None:
        if self.threshold > self.quorum:
            raise ConfigurationError(
                f"threshold {self.threshold} cannot be met by a quorum of {self.quorum}", check="threshold-too-high"
            )
        if 2 * self.threshold <= self.n + self.corrupt:
            least = (self.n + self.corrupt) // 2 + 1
            raise ConfigurationError(
                f"threshold {self.threshold} lets a lying server unmask single clients: with {self.n} clients and"
                f" {self.corrupt} corrupt it must be at least {least}",
                check="threshold-too-low",
            )

    def _check_sparse_graph(self) -> None:
        if self.degree % 2 or not 2 <= self.degree < self.quorum - 1:
            raise ConfigurationError(
                f"degree must be {self.n - 1}, or even and smaller than the quorum less one", check="degree"
            )
        if self.threshold > self.degree + 1:
            raise ConfigurationError(
                f"threshold {self.threshold} cannot be met by {self.degree + 1} holders of shares",
                check="threshold-too-high",
            )
        if not withstands(population=self.quorum, corrupt=self.corrupt, degree=self.degree, threshold=self.threshold):
            raise ConfigurationError(
                f"threshold {self.threshold} among {self.degree} neighbours lets a lying server split the cohort if"
                f" {self.corrupt} clients help it",
                check="split",
            )


def _check_text(name: str, value: object) -> None:
    """A text that has an encoding: JSON can spell half of a surrogate pair, which no hash would take."""
    if not isinstance(value, str) or not value or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise ConfigurationError(f"{name} must be a Unicode text that is not empty", check=name)


def _check_number(name: str, value: object, *, check: str = "") -> None:
    """Whole and not negative; bool is no number, since True and 1 would hash alike."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_ID:
        raise ConfigurationError(f"{name} must be a whole number between 0 and 2^63 - 1", check=check or name)
