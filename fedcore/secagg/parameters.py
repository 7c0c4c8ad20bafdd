"""What a round is about. Every party computes `ctx` from its own copy, so a lie to one of them shows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedcore.errors import ConfigurationError, ProtocolViolation
from fedcore.secagg.checks import Check
from fedcore.secagg.domain import HASH_BYTES, Usage, pack_ids, tagged_hash

MAX_ID = 2**63 - 1
MAX_COHORT = 2**16
MAX_WORDS = 2**40


def default_threshold(n: int) -> int:
    """floor(2n / 3) + 1: with fewer than a third of n colluding, 2t > n + corrupt holds (malicious setting)."""
    return 2 * n // 3 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundParameters:
    """The public parameters of one round.

    `cohort` are the ids that were asked, in ascending order. `threshold` is t. `degree` is k, the number of neighbours
    of a client: n - 1 on the full graph. `words` is the length of the masked vector in 64-bit words. `encoding` are
    the codec's canonical public parameters (bits, clip, W_max, scales, privacy), opaque here. The three hashes have
    32 bytes: of the roster, of the global model that this party holds, of the training task. `corrupt` is how many
    clients beside the server may collude while 2t > n + corrupt still holds.

    Raises ConfigurationError where the parameters contradict each other. A client that gets them from its server
    builds them with `from_peer`, since then it is the server that erred.
    """

    federation: str
    run: str
    round: int
    cohort: tuple[int, ...]
    threshold: int
    degree: int
    words: int
    encoding: bytes
    roster_hash: bytes
    model_hash: bytes
    task_hash: bytes
    corrupt: int = 0

    def __post_init__(self) -> None:
        self._check_types()
        self._check_cohort()
        self._check_threshold()

    @classmethod
    def from_peer(cls, **fields: Any) -> RoundParameters:
        """Parameters as the server proposes them; ProtocolViolation("bad-parameters") where they are refused."""
        try:
            return cls(**fields)
        except (ConfigurationError, TypeError) as refused:
            raise ProtocolViolation(Check.BAD_PARAMETERS, str(refused)) from None

    @property
    def n(self) -> int:
        """The number of clients that were asked."""
        return len(self.cohort)

    def ctx(self) -> bytes:
        """The context hash that everything signed, sealed or derived in this round is bound to, 32 bytes."""
        return tagged_hash(
            Usage.CONTEXT,
            self.federation,
            self.run,
            self.round,
            self.n,
            pack_ids(self.cohort),
            self.threshold,
            self.degree,
            self.corrupt,
            self.words,
            self.encoding,
            self.roster_hash,
            self.model_hash,
            self.task_hash,
        )

    def _check_types(self) -> None:
        for name in ("federation", "run"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ConfigurationError(f"{name} must be a text that is not empty")
        for name in ("round", "threshold", "degree", "words", "corrupt"):
            _check_number(name, getattr(self, name))
        if not isinstance(self.encoding, bytes):
            raise ConfigurationError("encoding must be bytes")
        for name in ("roster_hash", "model_hash", "task_hash"):
            value = getattr(self, name)
            if not isinstance(value, bytes) or len(value) != HASH_BYTES:
                raise ConfigurationError(f"{name} must be a hash of {HASH_BYTES} bytes")
        if not 1 <= self.words <= MAX_WORDS:
            raise ConfigurationError(f"words must lie between 1 and {MAX_WORDS}")

    def _check_cohort(self) -> None:
        if not isinstance(self.cohort, tuple):
            raise ConfigurationError("cohort must be a tuple of client ids")
        for client_id in self.cohort:
            _check_number("a client id", client_id)
            if not 1 <= client_id <= MAX_ID:
                raise ConfigurationError("client ids lie between 1 and 2^63 - 1")
        if len(set(self.cohort)) != self.n:
            raise ConfigurationError("a client id occurs twice in the cohort")
        if list(self.cohort) != sorted(self.cohort):
            raise ConfigurationError("the cohort must be in ascending order of the ids")
        if not 2 <= self.n <= MAX_COHORT:
            raise ConfigurationError(
                f"a cohort has 2 to {MAX_COHORT} clients, not {self.n}: the sum of one is its update"
            )
        if self.degree != self.n - 1:
            raise ConfigurationError(f"degree must be {self.n - 1}, the full graph of {self.n} clients")

    def _check_threshold(self) -> None:
        if self.threshold > self.n:
            raise ConfigurationError(f"threshold {self.threshold} cannot be met by a cohort of {self.n}")
        if 2 * self.threshold <= self.n + self.corrupt:
            least = (self.n + self.corrupt) // 2 + 1
            raise ConfigurationError(
                f"threshold {self.threshold} lets a lying server unmask single clients: with {self.n} clients and"
                f" {self.corrupt} corrupt it must be at least {least}"
            )


def _check_number(name: str, value: object) -> None:
    """Whole and not negative; bool is no number, since True and 1 would hash alike."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_ID:
        raise ConfigurationError(f"{name} must be a whole number between 0 and 2^63 - 1")
