"""Which examples each worker takes, and when: the same ones, in the same order, in every mode.

In every round a site walks through its own training part in an order that its seed alone decides. A worker that trains
on its own (a federated client, an asynchronous worker) takes batches of `batch_size` at its own pace. Where all workers
make one step together, a global batch holds each site's next examples in proportion to the size of the site, so that
all come to the end of their data with the same step; centralized training takes the union of these shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from fedcore.errors import ConfigurationError
from fedcore.training.engines.batches import Rows, own_rows, shared_rows, steps_of
from fedcore.wire.base import Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The work of one round, the same in every round but for the order.

    counts: training examples of each site.
    batch_size: of one worker's step, 0 for all its examples.
    epochs, steps: of a worker in one round; exactly one is positive.
    """

    counts: tuple[int, ...]
    batch_size: int
    epochs: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        if not self.counts or not all(count > 0 for count in self.counts):
            raise ConfigurationError(f"every site needs at least one training example, not {self.counts}")
        self.own_steps(0)

    @classmethod
    def of(cls, config: Mapping[str, Scalar], counts: Sequence[int]) -> Schedule:
        """From the run config of a `supervised_app`, and the number of training examples of each site."""
        return cls(
            counts=tuple(counts),
            batch_size=int(config["batch-size"]),
            epochs=int(config["local-epochs"]),
            steps=int(config.get("local-steps", 0)),
        )

    @property
    def examples(self) -> int:
        """Training examples of all sites."""
        return sum(self.counts)

    def own_steps(self, site: int) -> tuple[int, int]:
        """Batch size, and steps in one round, of a worker that trains on its own."""
        return steps_of(self.counts[site], batch_size=self.batch_size, epochs=self.epochs, steps=self.steps)

    @property
    def mean_own_steps(self) -> float:
        """Steps in one round of a worker that trains on its own, mean over the workers."""
        return sum(self.own_steps(site)[1] for site in range(len(self.counts))) / len(self.counts)

    def own_samples(self, site: int) -> int:
        """Examples that a worker on its own takes in one round, repetitions counted."""
        return _samples(self.counts[site], *self.own_steps(site))

    @property
    def samples(self) -> int:
        """Examples that all workers on their own take in one round: the budget of every mode."""
        return sum(self.own_samples(site) for site in range(len(self.counts)))

    def global_steps(self, size: int) -> tuple[int, int]:
        """Batch size, and steps in one round, of synchronous training: as many examples as the budget has.

        Args:
            size: examples of one step of all workers together, 0 for all examples. With epochs the budget is met
                exactly, with steps to within one batch.
        """
        size = min(size or self.examples, self.examples)
        if self.epochs:
            return steps_of(self.examples, batch_size=size, epochs=self.epochs, steps=0)
        passes, rest = divmod(self.samples, self.examples)
        return size, max(1, passes * math.ceil(self.examples / size) + round(rest / size))

    def global_samples(self, size: int) -> int:
        """Examples that synchronous training takes in one round."""
        return _samples(self.examples, *self.global_steps(size))

    def own(self, site: int, *, seed: int) -> Iterator[Rows]:
        """One worker's batches of one round, at its own pace.

        Args:
            seed: of this site in this round.
        """
        size, steps = self.own_steps(site)
        return shared_rows(self.counts[site], size, steps, seed=seed, rank=0, ranks=1)

    def share(self, site: int, size: int, *, seed: int) -> Iterator[Rows]:
        """One worker's share of each global batch of one round; `Rows.total` is the size of the whole batch."""
        size, steps = self.global_steps(size)
        return own_rows(self.counts, size, steps, seed=seed, rank=site)

    def pooled(self, size: int, *, seeds: Sequence[int], rank: int = 0, ranks: int = 1) -> Iterator[Rows]:
        """The global batches of one round, as rows of all sites' examples one site after the other.

        Args:
            rank, ranks: of a group that has all the data; each takes its part of every batch.
        """
        shares = [self.share(site, size, seed=seed) for site, seed in enumerate(seeds)]
        offsets = [sum(self.counts[:site]) for site in range(len(self.counts))]
        for parts in zip(*shares, strict=True):
            rows = [
                torch.as_tensor(part.rows) + offset
                for part, offset in zip(parts, offsets, strict=True)
                if not part.empty
            ]
            own = torch.tensor_split(torch.cat(rows), ranks)[rank]
            yield Rows(own, parts[0].total) if len(own) else Rows(rows[0][:1], parts[0].total, empty=True)


def _samples(examples: int, size: int, steps: int) -> int:
    """Examples in `steps` batches of `size`, where the last batch of each pass may be smaller."""
    passes, rest = divmod(steps, math.ceil(examples / size))
    return passes * examples + rest * size
