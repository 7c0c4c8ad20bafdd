"""The transcript of a federation: a chain of records of its sums, each signed by the survivors.

A record describes one secure exchange. The clients' signatures of R3 (docs/protocol.md) are over (ctx, L1, U2, U3), and
ctx follows from the record; so anybody with the roster can check them, and nothing is signed twice. Each task names the
head of the chain, the hash of the record before it, so a record also vouches for all earlier ones.
"""

from fedcore.federation.transcript.attempts import NoisedSum, never_unmasked
from fedcore.federation.transcript.chain import Chain, ChainLink, Keys, buffered_of, keys_of, next_head
from fedcore.federation.transcript.records import (
    TRANSCRIPT_FORGED,
    TRANSCRIPT_FORK,
    TRANSCRIPT_GAP,
    ExchangeRecord,
    SignedRecord,
    TranscriptOut,
    check_signatures,
    record_hash,
    update_bytes_of,
)

__all__ = [
    "TRANSCRIPT_FORGED",
    "TRANSCRIPT_FORK",
    "TRANSCRIPT_GAP",
    "Chain",
    "ChainLink",
    "ExchangeRecord",
    "Keys",
    "NoisedSum",
    "SignedRecord",
    "TranscriptOut",
    "buffered_of",
    "check_signatures",
    "keys_of",
    "never_unmasked",
    "next_head",
    "record_hash",
    "update_bytes_of",
]
