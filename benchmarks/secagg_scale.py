"""What the secure sum costs in large cohorts: seconds of the server, seconds and bytes of a client.

    python benchmarks/secagg_scale.py [--quick] [--json]

The protocol's own messages between real sessions and a real server round, in one process, each turned into the JSON
that goes over the wire and counted there. A sample of the clients checks every signature itself and is timed; the
others share a memory of what was checked before. The server is timed throughout: its sessions' answers, one addition
for each vector, rebuilding the secrets, and taking the masks off. Training, encoding and the network are left out.
Seconds are the processor's, of all cores together, so that a busy machine does not change them.

Bonawitz et al. 2017 (CCS, table 2) measured the same job, 1,000 clients with vectors of 100,000 elements of which a
tenth drops out, on the hardware of 2017: 180 s at the server, 1.7 s and 1.15 MB a client.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from benchmarks.resident import peak_resident_bytes, reset_peak
from fedcore.run.quorum import protection_for, quorum_for
from fedcore.run.settings import JobSettings
from fedcore.secagg import (
    Agreement,
    ClientSession,
    RoundParameters,
    ServerRound,
    apply_masks,
    verifies,
)
from fedcore.wire import secagg_codec
from fedcore.wire.base import Message
from fedcore.wire.signing import sign_headers
from fedcore.wire.uploads import ManifestIn

BONAWITZ_SERVER_SECONDS, BONAWITZ_CLIENT_SECONDS, BONAWITZ_MEGABYTES = 180.0, 1.7, 1.15
SERVER_SECONDS_AIM, UPLOAD_AIM = 3.0, 1.2
SAMPLE = 20
WORD_BYTES = 8
# PUT advertisement, key-shares, manifest, update, consistency, unmask, and the polls for a cohort, survivors, a task.
REQUESTS = 9
MIB = float(1 << 20)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One measurement. words: length of a vector, 64 bits each. late: whether dropouts send their vector first."""

    clients: int
    words: int
    dropout: float
    late: bool
    agreement: Agreement

    @property
    def title(self) -> str:
        when = "after upload" if self.late else "before upload"
        return f"n = {self.clients:,}, {self.dropout:.0%} drop out {when}, {self.agreement}"


@dataclass(slots=True, kw_only=True)
class Costs:
    """Seconds and bytes of one round. server: seconds by step; client: seconds of each sampled client."""

    degree: int
    threshold: int
    vector_bytes: int
    server: dict[str, float] = field(default_factory=dict)
    client: dict[int, float] = field(default_factory=dict)
    up: dict[int, int] = field(default_factory=dict)
    down: dict[int, int] = field(default_factory=dict)
    wall: float = 0.0
    peak: int = 0

    @property
    def server_seconds(self) -> float:
        return sum(self.server.values())

    @property
    def client_seconds(self) -> float:
        return fmean(self.client.values())

    @property
    def upload(self) -> float:
        return fmean(self.up.values())

    @property
    def download(self) -> float:
        return fmean(self.down.values())


def main() -> int:
    """The command line."""
    options = parser("What the secure sum costs in large cohorts.")
    options.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="for taking the masks off")
    return run(measure, options.parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All scales, one after the other."""
    n, words = sized(arguments, smallest=(40, 250), quick=(200, 25_000), whole=(1000, 25_000))
    costs: dict[str, Costs] = {}
    main_scale = Scale(clients=n, words=words, dropout=0.1, late=True, agreement=Agreement.X25519)
    scales = [main_scale]
    if not arguments.quick:
        scales.append(Scale(clients=n, words=words, dropout=0.1, late=False, agreement=Agreement.X25519))
        for clients in (10, 100, 1000):
            scales += [
                Scale(clients=clients, words=words, dropout=0.0, late=False, agreement=agreement)
                for agreement in Agreement
            ]
    for scale in scales:
        say(scale.title)
        costs[scale.title] = _Round(scale, arguments.threads).measure()
    found = costs[main_scale.title]
    return Report(
        benchmark="secagg_scale",
        figures=(
            Figure(name=f"server_seconds_n{n}", value=found.server_seconds, unit="s", aim=SERVER_SECONDS_AIM),
            Figure(name=f"upload_over_vector_n{n}", value=found.upload / found.vector_bytes, aim=UPLOAD_AIM),
            Figure(name=f"client_seconds_n{n}", value=found.client_seconds, unit="s", aim=BONAWITZ_CLIENT_SECONDS),
        ),
        tables=(_costs_table(costs), _steps_table(found)),
        notes=(
            f"Bonawitz et al. 2017: {BONAWITZ_SERVER_SECONDS:g} s server, {BONAWITZ_CLIENT_SECONDS:g} s and "
            f"{BONAWITZ_MEGABYTES:g} MB a client, on the hardware of 2017; vectors of {words * WORD_BYTES:,} bytes "
            "here (100,000 elements of 16 bits).",
            "Bytes are those of the JSON bodies, the vector and the signed HTTP heads; the model's download is not in "
            "them.",
            f"Client seconds: the mean of {SAMPLE} clients that check every signature themselves.",
        ),
    )


class _Round:
    """One round between all clients, step by step."""

    def __init__(self, scale: Scale, threads: int) -> None:
        ids = tuple(range(1, scale.clients + 1))
        identities = {i: Ed25519PrivateKey.generate() for i in ids}
        roster = {i: key.public_key().public_bytes_raw() for i, key in identities.items()}
        parameters = _parameters(scale, ids)
        remembered = cache(verifies)
        self.sample = frozenset(ids[:: max(1, len(ids) // SAMPLE)])
        self.server = ServerRound(parameters=parameters, roster=roster)
        self.sessions = {
            i: ClientSession(
                parameters=parameters,
                client_id=i,
                identity=identities[i],
                roster=roster,
                min_cohort=2,
                min_threshold=2,
                verify=verifies if i in self.sample else remembered,
            )
            for i in ids
        }
        # Those that drop out are spread over the ids, and so at random over the ring; nobody of the sample is.
        candidates = [i for i in ids if i not in self.sample]
        chosen = np.random.default_rng(1).permutation(candidates)[: round(scale.dropout * len(ids))]
        self.doomed = {int(i) for i in chosen}
        self.scale, self.cohort, self.threads = scale, ids, threads
        self.words = np.arange(scale.words, dtype=np.uint64)
        self.total = np.zeros(scale.words, np.uint64)
        self.costs = Costs(
            degree=parameters.degree, threshold=parameters.threshold, vector_bytes=scale.words * WORD_BYTES
        )

    def measure(self) -> Costs:
        """The whole round; the sum is checked at its end."""
        reset_peak(os.getpid())
        started = time.perf_counter()
        self._advertise()
        self._share()
        self._upload()
        self._sign()
        self._unmask()
        self.costs.wall = time.perf_counter() - started
        self.costs.peak = peak_resident_bytes(os.getpid())
        survivors = len(self.server.survivors().survivors)
        if not np.array_equal(self.total, self.words * np.uint64(survivors)):
            raise AssertionError("the sum is wrong")
        heads = _head_bytes() * REQUESTS
        for client in self.costs.up:
            self.costs.up[client] += heads
        return self.costs

    def _advertise(self) -> None:
        for i in self.cohort:
            made = self._client(i, self.sessions[i].advertise)
            self._count_up(i, secagg_codec.advertisement_to_wire(made))
            self._server("advertise", self.server.receive_advertisement, made)
        self._server("advertise", self.server.close_stage)

    def _share(self) -> None:
        for i in self.cohort:
            cohort = self._server("share", self.server.advertised, i)
            self._count_down(i, secagg_codec.cohort_to_wire(cohort, self.cohort))
            made = self._client(i, self.sessions[i].share_keys, cohort)
            self._count_up(i, secagg_codec.key_shares_to_wire(made))
            self._server("share", self.server.receive_shares, made)
        self._server("share", self.server.close_stage)

    def _upload(self) -> None:
        for i in self.cohort:
            delivery = self._server("input", self.server.delivery, i)
            self._count_down(i, secagg_codec.delivery_to_wire(delivery, self.cohort))
            self._client(i, self.sessions[i].receive_shares, delivery)
            if i in self.doomed and not self.scale.late:
                continue
            vector = self.words.copy()
            self._client(i, self.sessions[i].mask, vector)
            digest = hashlib.sha256(vector.data).digest()
            self._count_up(i, ManifestIn(digest=digest.hex(), size=vector.nbytes), vector.nbytes)
            self._server("input", self._fold, i, vector, digest)
        self._server("input", self.server.close_stage)

    def _fold(self, client: int, vector: NDArray[np.uint64], digest: bytes) -> None:
        np.add(self.total, vector, out=self.total)
        self.server.receive_input(client, digest)

    def _sign(self) -> None:
        survivors = self._server("consistency", self.server.survivors)
        for i in self._left():
            self._count_down(i, secagg_codec.survivors_to_wire(survivors, self.cohort))
            made = self._client(i, self.sessions[i].sign_survivors, survivors)
            self._count_up(i, secagg_codec.consistency_to_wire(made))
            self._server("consistency", self.server.receive_consistency, made)
        self._server("consistency", self.server.close_stage)

    def _unmask(self) -> None:
        signatures = self._server("unmask", self.server.signatures)
        for i in self._left():
            self._count_down(i, secagg_codec.signatures_to_wire(signatures))
            made = self._client(i, self.sessions[i].unmask, signatures)
            self._count_up(i, secagg_codec.unmask_to_wire(made))
            self._server("unmask", self.server.receive_unmask, made)
        self._server("rebuild", self.server.close_stage)
        terms = self.server.mask_terms()
        self._server("masks off", apply_masks, self.total, terms, threads=self.threads)

    def _left(self) -> Iterable[int]:
        return (i for i in sorted(self.server.expected) if i not in self.doomed)

    def _client(self, client: int, call: Callable[..., Result], *arguments: Any) -> Result:
        started = time.process_time()
        result = call(*arguments)
        if client in self.sample:
            spent = time.process_time() - started
            self.costs.client[client] = self.costs.client.get(client, 0.0) + spent
        return result

    def _server(self, step: str, call: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        started = time.process_time()
        result = call(*arguments, **named)
        self.costs.server[step] = self.costs.server.get(step, 0.0) + time.process_time() - started
        return result

    def _count_up(self, client: int, body: Message, more: int = 0) -> None:
        if client in self.sample:
            size = len(body.model_dump_json()) + more
            self.costs.up[client] = self.costs.up.get(client, 0) + size

    def _count_down(self, client: int, body: Message) -> None:
        if client in self.sample:
            self.costs.down[client] = self.costs.down.get(client, 0) + len(body.model_dump_json())


def _parameters(scale: Scale, ids: tuple[int, ...]) -> RoundParameters:
    """As `fedcore.run.exchange` makes them for a job with these settings."""
    settings = JobSettings(key_agreement=scale.agreement.value)
    protection = protection_for(settings, len(ids))
    if protection is None:
        raise AssertionError("the default aggregation is secure")
    return RoundParameters(
        federation="benchmark",
        run="run",
        round=1,
        cohort=ids,
        quorum=quorum_for(settings, len(ids)),
        degree=protection.degree,
        threshold=protection.threshold,
        corrupt=protection.corrupt,
        agreement=scale.agreement,
        words=scale.words,
        encoding=b"",
        roster_hash=bytes(32),
        model_hash=bytes(32),
        task_hash=bytes(32),
    )


def _head_bytes() -> int:
    """What the signature adds to one request, and about 150 bytes that every request has."""
    signed = sign_headers(
        "PUT",
        "/v1/runs/0123456789ab/exchanges/1/advertisement?wait=20",
        bytes(32),
        key_id="client-1000",
        key=Ed25519PrivateKey.generate(),
        now=0,
        nonce="0" * 32,
    )
    return 150 + sum(len(name) + len(value) + 4 for name, value in signed.items())


def _costs_table(costs: dict[str, Costs]) -> Table:
    rows = tuple(
        (
            title,
            f"{cost.degree}/{cost.threshold}",
            f"{cost.server_seconds:.2f}",
            f"{1000 * cost.client_seconds:.0f}",
            f"{cost.upload / 1000:.1f}",
            f"{cost.download / 1000:.1f}",
            f"{(cost.upload - cost.vector_bytes) / 1000:.1f}",
            f"{cost.upload / cost.vector_bytes:.3f}",
            f"{cost.peak / MIB:.0f}",
            f"{cost.wall:.1f}",
        )
        for title, cost in costs.items()
    )
    header = (
        "round", "degree/t", "server s", "client ms", "up kB", "down kB", "up without vector kB", "up/vector",
        "peak MiB, all in one process", "wall s",
    )  # fmt: skip
    return Table(title="Costs", header=header, rows=rows)


def _steps_table(cost: Costs) -> Table:
    rows: Sequence[tuple[str, ...]] = [(step, f"{seconds:.3f}") for step, seconds in cost.server.items()]
    return Table(title="The server's seconds of the first round, by step", header=("step", "s"), rows=tuple(rows))


if __name__ == "__main__":
    sys.exit(main())
