"""One secure round in memory: real sessions and the real ServerRound, step by step, without a network."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedcore.admission.simulated import AdmittedExchange
from fedcore.codec import AnyEncoding, encode
from fedcore.flower.tensor_app import LocalResult
from fedcore.secagg import ClientSession, ServerRound, Survivors, apply_masks
from fedcore.state import ModelState

STEPS: Final = ("advertise", "share", "input", "consistency", "unmask")
SIMULATED: Final = "simulated dropout"
Work: TypeAlias = Callable[[Sequence[int]], Iterable[tuple[int, LocalResult]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The model that a client trained from, and what its update is multiplied by, from 0 to 1."""

    model: ModelState | None
    factor: float = 1.0


@dataclass(slots=True, kw_only=True)
class MemoryRound:
    """One secure round between real sessions and a real ServerRound, step by step, with dropouts.

    doomed: client id -> the step before which it disappears. admitted: what the owners agreed to, and go on checking.
    late: who of those that trained on so many examples each is too late with its update, and why; None for nobody.
    """

    admitted: AdmittedExchange
    server: ServerRound
    sessions: dict[int, ClientSession]
    doomed: Mapping[int, str]
    on_dropout: Callable[[int, str, str], None]
    late: Callable[[Mapping[int, int]], Mapping[int, str]] | None = None

    def collect(
        self,
        encoding: AnyEncoding,
        model: ModelState | None,
        work: Work,
        starts: Mapping[int, Start] | None = None,
    ) -> NDArray[np.uint64]:
        """R0 to R2: the sum of all masked vectors, uint64 [words]. work: what clients' apps give, in any order.

        starts: what clients trained from, where that is not `model`.
        """
        for client in self._present("advertise"):
            self.server.receive_advertisement(self.sessions[client].advertise())
        self.server.close_stage()
        for client in self._present("share"):
            self.server.receive_shares(self.sessions[client].share_keys(self.server.advertised(client)))
        self.server.close_stage()
        total = np.zeros(encoding.words, np.uint64)
        present = self._present("input")
        for client in present:
            self.sessions[client].receive_shares(self.server.delivery(client))
        threads = os.cpu_count() or 1
        waiting: deque[tuple[int, NDArray[np.uint64], Future[bytes]]] = deque()

        def add_first() -> None:
            client, words, digest = waiting.popleft()
            self.server.receive_input(client, digest.result())
            np.add(total, words, out=total)

        with ThreadPoolExecutor(threads, thread_name_prefix="mask") as pool:
            for client, result in work(self._in_time(present, work)):
                start = Start(model=model) if starts is None else starts[client]
                words = encoded(encoding, start.model, result, factor=start.factor)
                self.admitted.before_upload(client, self.sessions[client].heard)
                waiting.append((client, words, pool.submit(_masked, self.sessions[client], words)))
                if len(waiting) > threads:
                    add_first()
            while waiting:
                add_first()
        self.server.close_stage()
        return total

    def _in_time(self, present: Sequence[int], work: Work) -> Sequence[int]:
        """Those whose update counts; where anybody may be late, all have trained before that is known."""
        if self.late is None:
            return present
        late = self.late({client: result.examples for client, result in work(present)})
        for client, reason in sorted(late.items()):
            self.server.drop(client)
            self.on_dropout(client, "input", reason)
        return sorted(self.server.expected)

    def unmask(self, total: NDArray[np.uint64]) -> tuple[int, ...]:
        """R3 and R4: take all masks off `total`, in place; returns whose updates are in it."""
        survivors = self.server.survivors()
        self._sign(survivors)
        signatures = self.server.signatures()
        for client in self._present("unmask"):
            self.server.receive_unmask(self.sessions[client].unmask(signatures))
        self.server.close_stage()
        apply_masks(total, self.server.mask_terms(), threads=os.cpu_count() or 1)
        return survivors.survivors

    def _sign(self, survivors: Survivors) -> None:
        """R3: from the first signature on the exchange is in the transcript, whatever becomes of it."""
        signers: list[int] = []
        try:
            for client in self._present("consistency"):
                if refusal := self.admitted.before_signature(client, survivors.survivors):
                    self.server.drop(client)
                    self.on_dropout(client, "consistency", f"withdrew: {refusal}")
                    continue
                self.server.receive_consistency(self.sessions[client].sign_survivors(survivors))
                signers.append(client)
            self.server.close_stage()
        finally:
            if signers:
                self.admitted.record(self.sessions[signers[0]].outcome, signers)

    def _present(self, step: str) -> list[int]:
        """Those who answer this step; the doomed are reported once and leave."""
        for client in sorted(self.server.expected):
            if self.doomed.get(client) == step:
                self.server.drop(client)
                self.on_dropout(client, step, SIMULATED)
        return sorted(self.server.expected)


def _masked(session: ClientSession, words: NDArray[np.uint64]) -> bytes:
    """Mask a vector in place, most of which holds no lock of Python's; SHA-256 of what is sent."""
    session.mask(words)
    return hashlib.sha256(words.data).digest()


def encoded(
    encoding: AnyEncoding, model: ModelState | None, result: LocalResult, *, factor: float = 1.0
) -> NDArray[np.uint64]:
    """What a client sends before it is masked, uint64 [words]; `factor` as in `encode`."""
    return encode(
        encoding,
        base=model if encoding.layout else None,
        local=result.state(),
        examples=result.examples,
        metrics=result.metrics,
        randomness=os.urandom,
        factor=factor,
    ).words
