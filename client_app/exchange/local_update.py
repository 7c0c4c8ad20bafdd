"""The local work of one exchange: the app runs on the model, its result is cached, and encoded to be masked.

If the local work fails, a vector that adds nothing takes its place, unless the policy reports failures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from client_app.exchange.channel import ExchangeChannel
from client_app.exchange.client import Client
from client_app.exchange.contribution import show_nothing, tells_failures
from client_app.exchange.update_encoder import UpdateEncoder
from client_app.ranks.messages import LocalAnswer
from client_app.records.aggregated_rounds import AggregatedRounds
from fedcore.codec import AnyEncoding, BoundedEncoding, Encoded, Encoding, encode, encode_nothing
from fedcore.codec.bounded.proofs import NormWitness
from fedcore.errors import AppError
from fedcore.federation.admission.privacy import row_noise
from fedcore.state import ModelState
from fedcore.system.concurrency import guarded, in_thread
from fedcore.wire.tasks import Task

Vector: TypeAlias = NDArray[np.uint64]


@dataclass(slots=True)
class LocalUpdate:
    """One client's update for one exchange."""

    channel: ExchangeChannel
    contributes: bool = field(default=False, init=False)
    """Whether the vector has an update in it."""
    encoder: UpdateEncoder = field(init=False)
    witness: NormWitness | None = field(default=None, init=False)
    """What proves the norm of the vector, if that is asked for."""
    _aggregated: AggregatedRounds = field(init=False)

    def __post_init__(self) -> None:
        client = self.client
        self.encoder = UpdateEncoder(
            gpu=client.gpu_uploads,
            randomness=client.randomness,
            warn=partial(client.output.warning, "encode"),
            folder=client.state_dir,
        )
        self._aggregated = AggregatedRounds(client.state_dir)

    @property
    def client(self) -> Client:
        """The client that contributes."""
        return self.channel.client

    @property
    def task(self) -> Task:
        """The task of the exchange."""
        return self.channel.task

    @property
    def _trained_for(self) -> Task:
        """The task that the update was trained for: in an asynchronous run an earlier one."""
        is_buffered = self.task.aggregation == "secure" and self.task.buffer is not None
        return (self.client.pending.task if is_buffered else None) or self.task

    def begin(self) -> None:
        """Note that the local work begins: its round does not count yet."""
        self._aggregated.begin(self._trained_for)

    def close(self) -> None:
        """Free what the encoder holds, and erase what would prove the norm."""
        self.encoder.close()
        if self.witness is not None:
            self.witness.erase()

    def count(self) -> None:
        """Note that the update is in a sum."""
        self._aggregated.add(self._trained_for)

    async def vector(self, encoding: AnyEncoding, model: ModelState | None) -> Vector:
        """The encoded update, ready to be masked; a vector that adds nothing to the sum if there is none.

        If the message states noise for rows, either has this client's share of it.
        """
        noise = row_noise(self.task)
        try:
            local = await self._answer(model)
            if noise is not None:
                local = local.model_copy(update={"metrics": noise.added_to(local.metrics, self.client.randomness)})
            encoded = await self._encode(encoding, model, local)
            self.contributes = True
            return encoded
        except Exception as error:
            # Of any type: an unforeseen error may depend on the data as well.
            if tells_failures(self.task, self.client.kit.policy):
                raise
            show_nothing(self.client.output, error)
        if noise is not None:
            alone = LocalAnswer(examples=1, metrics=noise.alone(self.client.randomness), trained=False)
            return await self._encode(encoding, model, alone)
        # By the same encoder, so that masking it takes as long as an update's masking does.
        nothing = await in_thread(self.encoder.encode, partial(encode_nothing, encoding), encoding.words)
        return await self._witnessed(encoding, nothing)

    async def run_app(self, content: Path | None) -> LocalAnswer:
        """Run the app on the model, or on a plain message; raises NotEligible once the machine may not train."""
        aggregated_round = self._aggregated.last(self.task.run)

        async def work() -> LocalAnswer:
            async with self.client.pending.ranks:
                return await self.client.work.run(
                    self.task, content, self.client.results.model, aggregated_round=aggregated_round
                )

        return await guarded(work(), self.client.eligibility.lost())

    async def _answer(self, model: ModelState | None) -> LocalAnswer:
        """The app's result; the cached one for a repeated exchange."""
        started, cache = self.client.clock(), self.client.results
        if self.task.buffer is not None:
            if self.client.pending.answer is None:
                raise AppError("the work for this sum had failed")
            return self.client.pending.answer

        runs = 0

        async def run() -> LocalAnswer:
            nonlocal runs
            runs += 1
            answer = await self.run_app(model.path if model else None)
            if answer.trained != self.task.trains:
                raise AppError("the worker returned a model that was not requested, or none although one was")
            return answer

        keep_failure = not tells_failures(self.task, self.client.kit.policy)
        local = await cache.get_or_run(self.task, run, keep_failure=keep_failure)
        again = "" if runs else " (a repeated exchange; the app does not run again)"
        self.channel.log(self.task.message_type, f"{summary(local)}{again}", started)
        return local

    async def _encode(self, encoding: AnyEncoding, model: ModelState | None, local: LocalAnswer) -> Vector:
        """The encoded update, clipped and rounded, ready to be masked."""
        if not local.examples and isinstance(encoding, Encoding):  # a sum of one weight would be that update
            raise AppError("the app trained on no examples, so there is nothing to contribute")
        path = self.client.pending.local if self.task.buffer is not None else self.client.results.model
        (factor,) = self.task.updates_of([self.client.kit.client_id]).values()
        started = self.client.clock()
        fill = partial(
            encode,
            encoding,
            base=model if self.task.trains else None,
            local=ModelState.open(path) if local.trained else None,
            examples=local.examples,
            metrics=local.metrics,
            threads=self.client.threads,
            factor=factor,
        )
        encoded = await in_thread(self.encoder.encode, fill, encoding.words)
        notes = [f"{encoding.field_bits}-bit fields"] + ["on the device"] * self.encoder.on_device
        too_large = "too large for the scales, so the sum stays closed" if encoded.overflowed else "clipped"
        notes += [f"{encoded.clipped} elements {too_large}"] if encoded.clipped else []
        notes += ["shrunk to the L2 bound"] if encoded.shrunk else []
        self.channel.log("encode", ", ".join(notes), started)
        return await self._witnessed(encoding, encoded)

    async def _witnessed(self, encoding: AnyEncoding, encoded: Encoded) -> Vector:
        """The words; what proves their norm is kept, if that is asked for."""
        if isinstance(encoding, BoundedEncoding):
            client = self.client
            self.witness = await in_thread(NormWitness.of, encoding, encoded.words, client.randomness, client.threads)
        return encoded.words


def summary(local: LocalAnswer) -> str:
    """Examples and metrics for the client's own log: in secure mode they leave the machine inside the sum only."""
    metrics = (f"{name}={value:.4g}" for name, value in local.metrics.items() if isinstance(value, int | float))
    return f"{local.examples} examples {' '.join(metrics)}"
