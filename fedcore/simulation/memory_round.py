"""One secure round in memory: real sessions and the real ServerRound, step by step, without a network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedcore.codec import AnyEncoding
from fedcore.federation.admission.simulated import AdmittedExchange
from fedcore.flower.apps.tensor_app import LocalResult
from fedcore.secagg import ServerRound, Survivors, apply_masks
from fedcore.simulation.sessions.sessions import SecureSessions, TrainingStart, Update, is_large
from fedcore.state import ModelState
from fedcore.state.mapped import mapped_zeros

STEPS: Final = ("advertise", "share", "input", "consistency", "unmask")
SIMULATED: Final = "simulated dropout"
Work: TypeAlias = Callable[[Sequence[int]], Iterable[tuple[int, LocalResult]]]


@dataclass(slots=True, kw_only=True)
class MemoryRound:
    """One secure round between real sessions and a real ServerRound, step by step, with dropouts.

    admitted
        What the owners agreed to, and go on checking.
    dropouts
        Client id -> the step before which it disappears.
    failed
        Hears whose update could not be encoded, and why; it adds nothing to the sum.
    leaves
        Why a client whose local work gave no result leaves; empty for one that stays, and adds nothing.
    stragglers
        Who of those that trained on so many examples each is too late with its update, and why; None for nobody.
    """

    admitted: AdmittedExchange
    server: ServerRound
    sessions: SecureSessions
    dropouts: Mapping[int, str]
    on_dropout: Callable[[int, str, str], None]
    failed: Callable[[int, Exception], None]
    leaves: Callable[[int], str] = lambda client: ""
    stragglers: Callable[[Mapping[int, int]], Mapping[int, str]] | None = None

    def collect(
        self,
        encoding: AnyEncoding,
        model: ModelState | None,
        work: Work,
        starts: Mapping[int, TrainingStart] | None = None,
    ) -> NDArray[np.uint64]:
        """R0 to R2: the sum of all masked vectors, uint64 [words].

        work
            What clients' apps give, in any order.
        starts
            What clients trained from, if that is not `model`.
        """
        for advertisement in self.sessions.advertise(self._present("advertise")):
            self.server.receive_advertisement(advertisement)
        self.server.close_stage()
        for shares in self.sessions.share_keys(self._present("share"), self.server.advertised):
            self.server.receive_shares(shares)
        self.server.close_stage()
        total = mapped_zeros(encoding.words) if is_large(encoding) else np.zeros(encoding.words, np.uint64)
        present = self._present("input")
        self.sessions.receive_shares(present, self.server.delivery)
        updates = self._updates(model, work(self._in_time(present, work)), starts)
        for client, digest, error in self.sessions.masked(encoding, updates, total):
            if error is not None:
                self.failed(client, error)
            self.server.receive_input(client, digest)
        self.server.close_stage()
        return total

    def _updates(
        self,
        model: ModelState | None,
        results: Iterable[tuple[int, LocalResult]],
        starts: Mapping[int, TrainingStart] | None,
    ) -> Iterator[Update]:
        """What the clients are about to send, each with its owner's consent."""
        for client, result in results:
            if reason := self.leaves(client):
                self.server.drop(client)
                self.on_dropout(client, "input", reason)
                continue
            start = TrainingStart(model=model) if starts is None else starts[client]
            self.admitted.before_upload(client, self.sessions.verified_peers(client))
            yield Update(client=client, start=start, result=result)

    def _in_time(self, present: Sequence[int], work: Work) -> Sequence[int]:
        """Those whose update counts; where anybody may be late, all have trained before that is known."""
        if self.stragglers is None:
            return present
        late = self.stragglers({client: result.examples for client, result in work(present)})
        for client, reason in sorted(late.items()):
            self.server.drop(client)
            self.on_dropout(client, "input", reason)
        return sorted(self.server.expected)

    def sign(self) -> None:
        """R3: from the first signature on the exchange is in the transcript, even if it fails."""
        survivors, signers = self.server.survivors(), list[int]()
        try:
            for signature in self.sessions.sign_survivors(self._willing(survivors), survivors):
                self.server.receive_consistency(signature)
                signers.append(signature.client_id)
            self.server.close_stage()
        finally:
            if signers:
                self.admitted.record(self.sessions.outcome(signers[0]), signers)

    def unmask(self, total: NDArray[np.uint64]) -> None:
        """R4: take all masks off `total`, in place."""
        signatures = self.server.signatures()
        for shares in self.sessions.unmask(self._present("unmask"), signatures):
            self.server.receive_unmask(shares)
        self.server.close_stage()
        apply_masks(total, self.server.mask_terms(), threads=os.cpu_count() or 1)

    def _willing(self, survivors: Survivors) -> list[int]:
        """Whose owner lets it sign; the others leave."""
        willing = []
        for client in self._present("consistency"):
            if refusal := self.admitted.before_signature(client, survivors.survivors):
                self.server.drop(client)
                self.on_dropout(client, "consistency", f"refused: {refusal}")
            else:
                willing.append(client)
        return willing

    def _present(self, step: str) -> list[int]:
        """Those who answer this step; dropouts are reported once and leave."""
        for client in sorted(self.server.expected):
            if self.dropouts.get(client) == step:
                self.server.drop(client)
                self.on_dropout(client, step, SIMULATED)
        return sorted(self.server.expected)
