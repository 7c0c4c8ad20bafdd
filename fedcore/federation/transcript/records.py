"""The record of one secure exchange, its hash, and the check of its signatures.

An exchange has a record as soon as its survivors are named, since from then on clients may sign them. It is complete if
a quorum signed: the clients may have released their shares, and the sum may be known. Otherwise it is unfinished: no
client saw a quorum of signatures. The hash that the next task names says which.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any, Final, Self

import pydantic

from fedcore.errors import ConfigurationError, ProtocolViolation
from fedcore.federation.transcript.legacy_encodings import signed_parts
from fedcore.run.exchange import Signed, encoding_of, parameters_of
from fedcore.secagg import Outcome, verifies
from fedcore.secagg.crypto.domain import pack
from fedcore.secagg.crypto.masking import WORD_BYTES
from fedcore.wire.base import Bytes, ClientId, Key32, Message, Name, Sha256, Signature64, optional
from fedcore.wire.tasks import StoredTask, Task, task_digest

TRANSCRIPT_FORK: Final = "transcript-fork"
TRANSCRIPT_GAP: Final = "transcript-gap"
TRANSCRIPT_FORGED: Final = "transcript-forged"
RECORD_TAG: Final = "fedcore/record/v1"


def record_hash(outcome: Outcome, *, complete: bool) -> str:
    """The hash under which the next task names a record: SHA-256 over what R3 signs and whether a quorum did."""
    kind = "complete" if complete else "unfinished"
    return hashlib.sha256(pack(RECORD_TAG, outcome.statement(), kind)).hexdigest()


class ExchangeRecord(Message):
    """One secure exchange.

    task: as it was digested, so with model, app, run config, settings, cohort, encoding and the record before.
    roster_sha256: of the roster that it was bound to.
    advertised: L1.
    sharers: U2, ascending.
    survivors: U3, ascending.
    words: of the vector; None in old records, for which `legacy_encodings` computes it.
    encoding: the codec's canonical parameters, as they are in ctx, since the codec of another version makes others of
        the same task; likewise None in old records.
    coin: of norm proofs; None without any.
    """

    federation: Name
    roster_sha256: Sha256
    task: dict[str, Any]
    advertised: Sha256
    sharers: list[ClientId]
    survivors: list[ClientId]
    words: int | None = None
    encoding: Bytes | None = None
    coin: Key32 | None = optional()

    @classmethod
    def of(cls, task: Task, *, federation: str, roster_hash: bytes, outcome: Outcome) -> Self:
        """The record of an exchange, as one party saw it."""
        encoding = encoding_of(task)
        return cls(
            federation=federation,
            roster_sha256=roster_hash.hex(),
            task=task.content(),
            advertised=outcome.cohort.hex(),
            sharers=list(outcome.sharers),
            survivors=list(outcome.survivors),
            words=encoding.words,
            encoding=encoding.canonical(),
            coin=outcome.coin or None,
        )

    def announced(self) -> StoredTask:
        """The task; ProtocolViolation("transcript-forged") if it is malformed."""
        try:
            return StoredTask.model_validate({**self.task, "attempt": 1, "seconds": 1.0})
        except pydantic.ValidationError:
            raise _forged("a record holds a malformed task") from None

    def outcome(self, task: Task) -> Outcome:
        """What R3 signs of this exchange, with ctx computed from the record's parts; `task` is `announced()`."""
        try:
            parameters = parameters_of(
                task,
                self._signed(),
                federation=self.federation,
                roster_hash=bytes.fromhex(self.roster_sha256),
                model_hash=bytes.fromhex(task.model.sha256) if task.model else None,
            )
        except ConfigurationError as error:
            raise _forged(f"{name_of(task)} has parameters that contradict each other: {error}") from None
        return Outcome(
            context=parameters.ctx(),
            cohort=bytes.fromhex(self.advertised),
            sharers=tuple(self.sharers),
            survivors=tuple(self.survivors),
            coin=self.coin or b"",
        )

    @property
    def vector_bytes(self) -> int:
        """Bytes of each client's masked update."""
        return self._signed().words * WORD_BYTES

    def _signed(self) -> Signed:
        """What was signed of the task and its encoding; ProtocolViolation("transcript-forged") if it is malformed.

        Only the bytes that were signed are hashed, never what this version would write in their place.
        """
        words, encoding = self.words, self.encoding
        if words is None or encoding is None:
            try:
                words, encoding = signed_parts(self.task["encoding"])
            except (KeyError, TypeError, ValueError, AttributeError, struct.error):
                raise _forged("a record says nothing of the vector that was summed") from None
        return Signed(words=words, encoding=encoding, task_hash=task_digest(self.task))


class SignedRecord(Message):
    """A record with the signatures of survivors: at least a quorum of them if it is complete."""

    record: ExchangeRecord
    complete: bool
    signatures: dict[int, Signature64]


def update_bytes_of(signed: SignedRecord) -> dict[int, int]:
    """The bytes of each client's update that counts (`fedcore.wire.uploads.Contribution`); {} of an unfinished record.

    Raises ProtocolViolation("transcript-forged") if the record is malformed.
    """
    return dict.fromkeys(signed.record.survivors, signed.record.vector_bytes) if signed.complete else {}


class TranscriptOut(Message):
    """GET /v1/transcript: the records after the one that was named, oldest first; `more` if further ones follow."""

    records: list[SignedRecord]
    more: bool


def check_signatures(signed: SignedRecord, task: Task, keys: Mapping[int, bytes]) -> str:
    """Check a record by itself; returns its hash.

    Raises ProtocolViolation("transcript-forged").

    Args:
        keys: client id -> raw Ed25519 public key, of the roster that the record names.
    """
    record, name = signed.record, name_of(task)
    for what, inner, outer in (
        ("sharers", record.sharers, task.cohort),
        ("survivors", record.survivors, record.sharers),
    ):
        if sorted(set(inner)) != inner or not set(inner) <= set(outer):
            raise _forged(f"the {what} of {name} are no subset of those before them, in ascending order")
    if len(record.survivors) < task.quorum:
        raise _forged(f"{name} has {len(record.survivors)} survivors and says that it needs {task.quorum}")
    outcome = record.outcome(task)
    statement, survivors = outcome.statement(), frozenset(record.survivors)
    for signer, signature in signed.signatures.items():
        if signer not in survivors or signer not in keys:
            raise _forged(f"{name} is signed by client {signer}, who is no survivor of it or not on the roster")
        if not verifies(keys[signer], signature, statement):
            raise _forged(f"the signature of client {signer} is not for {name} as it is recorded")
    if signed.complete and len(signed.signatures) < task.quorum:
        raise _forged(f"{name} has {len(signed.signatures)} signatures, {task.quorum} are needed")
    return record_hash(outcome, complete=signed.complete)


def name_of(task: Task) -> str:
    """How messages name an exchange."""
    return f"exchange {task.exchange} of run {task.run}"


def _forged(text: str) -> ProtocolViolation:
    return ProtocolViolation(TRANSCRIPT_FORGED, text)
