"""What a client's session knows in a round: the secrets that it must forget, and the answers that it may repeat."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from fedcore.errors import ProtocolViolation
from fedcore.secagg.checks import Check
from fedcore.secagg.crypto.agreement import KeyPair
from fedcore.secagg.crypto.keys import Secret
from fedcore.secagg.crypto.masking import MaskTerm
from fedcore.secagg.messages import Advertisement, ConsistencySignature, KeyShares, UnmaskShares

Answer = TypeVar("Answer")


class _Message(Protocol):
    def digest(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class PastAnswer(Generic[Answer]):
    """An answer kept for repetition, with the digest of the message that it answers."""

    digest: bytes
    answer: Answer = field(repr=False)


@dataclass(frozen=True, slots=True)
class DealtShares:
    """What one client deals one holder: a share of each of its two secrets, 33 bytes each."""

    of_key: bytes = field(repr=False)
    of_self: bytes = field(repr=False)

    @property
    def text(self) -> bytes:
        """What is sealed and committed to."""
        return self.of_key + self.of_self


@dataclass(slots=True)
class ClientSecrets:
    """What the session knows and must forget; redacted, and replaced by an empty one to erase it."""

    seal_pair: KeyPair | None = field(default=None, repr=False)
    mask_pair: KeyPair | None = field(default=None, repr=False)
    self_secret: Secret | None = field(default=None, repr=False)
    pair_secrets: dict[int, Secret] = field(default_factory=dict, repr=False)
    mask_terms: tuple[MaskTerm, ...] = field(default=(), repr=False)
    shares: dict[int, DealtShares] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class ClientAnswers:
    """What the session has answered, for repetition."""

    advertised: Advertisement | None = None
    shared: PastAnswer[KeyShares] | None = None
    delivered: PastAnswer[None] | None = None
    signed: PastAnswer[ConsistencySignature] | None = None
    released: PastAnswer[UnmaskShares] | None = None


def present(value: Answer | None) -> Answer:
    """What the state guarantees to be there."""
    if value is None:
        raise AssertionError("the session's state and its contents disagree")
    return value


def repeated(past: PastAnswer[Answer] | None, message: _Message, check: Check) -> Answer:
    """The answer that was given before, to the identical message only."""
    earlier = present(past)
    if message.digest() != earlier.digest:
        raise ProtocolViolation(check, "this step was answered already, and the message now is another one")
    return earlier.answer
