"""Norm proofs in an exchange: what a client keeps until it proves, and what the server checks.

The construction is `fedcore.secagg.norm`, the vector `fedcore.codec.bounded`. A proof travels with the signature of R3:
the coin is signed there, so that no client proves for two coins, and no share leaves before all proofs hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.bounded.parameters import BoundedEncoding
from fedcore.codec.bounded.updates import pads_of, steps_of, summed_steps
from fedcore.codec.encodings import AnyEncoding
from fedcore.secagg import Outcome, Randomness
from fedcore.secagg.norm import Pads, Statement, Submission, accepted, prove, sum_holds, values_of

_BLOCK: Final = 1 << 16
"""Words that are projected at once."""


def statement_of(encoding: BoundedEncoding) -> Statement:
    """What each client of an exchange proves."""
    return Statement(
        projections=encoding.projections, field_bits=encoding.field_bits, bound=encoding.offset + 1
    )  # the root is rounded down


def proof_bytes(encoding: AnyEncoding) -> int:
    """The length of the proof that R3 carries; 0 without norm proofs."""
    return statement_of(encoding).proof_bytes if isinstance(encoding, BoundedEncoding) else 0


@dataclass(slots=True, kw_only=True)
class NormWitness:
    """What a client needs to prove that the vector that it is about to mask is short; erased by the proof.

    steps: of the update, [packed words, lanes]. pads: those behind them.
    """

    encoding: BoundedEncoding
    steps: NDArray[np.int32] = field(repr=False)
    pads: Pads

    @classmethod
    def of(cls, encoding: BoundedEncoding, words: NDArray[np.uint64], randomness: Randomness, threads: int = 1) -> Self:
        """From the encoded vector [encoding.words], which is copied."""
        pads = Pads.commit(statement_of(encoding), pads_of(encoding, words).copy(), randomness, threads)
        return cls(encoding=encoding, steps=steps_of(encoding, words), pads=pads)

    def prove(self, outcome: Outcome, client_id: int, randomness: Randomness, threads: int = 1) -> bytes:
        """The proof for the coin of an outcome, which this client is about to sign. Takes seconds."""
        statement, context = statement_of(self.encoding), outcome.proof_context(client_id)
        blocks = (self.steps[start : start + _BLOCK].astype(np.int64) for start in range(0, len(self.steps), _BLOCK))
        try:
            return prove(statement, context, outcome.coin, blocks, self.pads, randomness, threads)
        finally:
            self.erase()

    def erase(self) -> None:
        """Forget the update and the pads."""
        self.steps.fill(0)
        self.pads.erase()


@dataclass(slots=True)
class NormProofs:
    """The commitments and proofs of one exchange's clients, at the server."""

    encoding: BoundedEncoding
    commitments: dict[int, bytes] = field(default_factory=dict, repr=False)
    proofs: dict[int, bytes] = field(default_factory=dict, repr=False)

    def refused(self, outcome: Outcome, threads: int = 1) -> tuple[int, ...]:
        """The survivors whose proof is here and does not hold, in ascending order. Takes seconds."""
        clients = [client for client in outcome.survivors if client in self.proofs]
        submissions = [
            Submission(
                context=outcome.proof_context(client),
                commitment=self.commitments[client],
                proof=self.proofs[client],
            )
            for client in clients
        ]
        holds = accepted(statement_of(self.encoding), outcome.coin, submissions, threads=threads)
        return tuple(client for client, one in zip(clients, holds, strict=True) if not one)

    def missing(self, survivors: Collection[int]) -> tuple[int, ...]:
        """The survivors whose proof has not come, in ascending order."""
        return tuple(sorted(set(survivors) - self.proofs.keys()))

    def agree_with(self, outcome: Outcome, words: NDArray[np.uint64]) -> bool:
        """Whether the unmasked sum [encoding.words] is that of the vectors that were proved."""
        encoding, statement = self.encoding, statement_of(self.encoding)
        summed = summed_steps(encoding, words, len(outcome.survivors))

        def blocks() -> Iterator[NDArray[np.uint64]]:
            return (summed[start : start + _BLOCK] for start in range(0, len(summed), _BLOCK))

        values = (values_of(self.proofs[client], statement) for client in outcome.survivors)
        return sum_holds(outcome.coin, blocks(), pads_of(encoding, words), values)
