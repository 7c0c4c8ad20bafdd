"""A proof that an update's norm is within a bound, tied to the masked vector: seconds, bytes, and forgeries.

    python benchmarks/norm_proof.py [--quick] [--json]

fedcore/secagg/norm is the construction that docs/adr/0074-norm-proofs.md chose. After all masked vectors are there the
server throws a coin; each client tells k random projections of its vector, hidden by pads that
it masked with the vector and committed to, and proves in zero knowledge that they are short. The sum of what all told
has to be the projection of the secure sum, so nobody can prove one vector and mask another.

Seconds are of the processor, all threads together. The other candidates are counted: the operations that they need at
least, times what one takes here.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import Figure, Report, Table, parser, run, say, sized
from benchmarks.norm import forgeries
from fedcore.secagg.norm import Pads, Statement, Submission, accepted, prove, values_of
from fedcore.secagg.norm.group import POINT_BYTES, combine, generators, scalar
from fedcore.secagg.norm.projection import join, project_words
from fedcore.secagg.norm.statement import WORD_BYTES

CLIENT_SECONDS_AIM: Final = 10.0
UPLOAD_AIM: Final = 1.2
SERVER_SECONDS_AIM: Final = 60.0
"""A hundred proofs in a minute: what a round with as many clients takes anyway."""
PROJECTIONS: Final = 1024
FIELD_BITS: Final = {8: 16, 100: 21}
"""By clients: as narrow as leaves a bound of some thousand steps room for the sum."""
POINT_SAMPLE: Final = 500
ACORN_SECONDS: Final = 80.0 / 250_000
"""A client's for each value of 16 bits (Bell et al. 2022, eprint 2022/1461), on their machine."""
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """One size. client, server: seconds. extra, vector: bytes that a client sends for the proof, and without it."""

    statement: Statement
    elements: int
    clients: int
    client: float
    server: float
    extra: int

    @property
    def vector(self) -> int:
        return WORD_BYTES * words_of(self.statement, self.elements)

    @property
    def over(self) -> float:
        return 1 + self.extra / self.vector

    def row(self) -> tuple[str, ...]:
        return (
            f"{self.elements:,}", str(self.clients), str(self.statement.field_bits), f"{self.client:.1f}",
            f"{self.server:.1f}", f"{self.extra:,}", f"{self.over:.3f}",
        )  # fmt: skip


def main() -> int:
    """The command line."""
    return run(measure, parser("Proofs of an update's norm: costs and forgeries.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """All sizes, then the forgeries."""
    projections = sized(arguments, smallest=16, quick=128, whole=PROJECTIONS)
    elements = sized(arguments, smallest=(1_000,), quick=(10_000, 100_000), whole=(10_000, 100_000, 1_000_000))
    costs = [_costs(statement_for(clients, projections), size, clients) for size in elements for clients in FIELD_BITS]
    tried, passed = _forge(sized(arguments, smallest=60, quick=2_000, whole=100_000), projections)
    main_size = elements[min(1, len(elements) - 1)]
    few, many = (next(one for one in costs if one.elements == main_size and one.clients == n) for n in FIELD_BITS)
    return Report(
        benchmark="norm_proof",
        figures=(
            Figure(name="client_seconds", value=few.client, unit="s", aim=CLIENT_SECONDS_AIM),
            Figure(name="upload_over_vector", value=few.over, aim=UPLOAD_AIM),
            Figure(name="server_seconds_n100", value=many.server, unit="s", aim=SERVER_SECONDS_AIM),
            Figure(name="forged_accepted", value=sum(passed.values()), unit="count", aim=0),
        ),
        tables=(
            Table(
                title=f"{projections:,} projections: a client, and the server for all clients",
                header=("elements", "clients", "field bits", "client s", "server s", "bytes for the proof", "upload"),
                rows=tuple(one.row() for one in costs),
            ),
            _others(elements),
            Table(
                title="Forgeries",
                header=("kind", "tried", "accepted"),
                rows=tuple((kind, f"{tried[kind]:,}", str(passed[kind])) for kind in tried),
            ),
        ),
        notes=(
            f"the first two figures are of {main_size:,} elements and {few.clients} clients; upload is all that a "
            "client sends over its vector alone",
            f"an honest update within the bound passes but for a chance of 2^-64; one of {few.statement.slack:.2f} "
            "times the bound passes with that chance, if its projections are normally distributed; proven of every "
            f"vector: one of which a lane has {few.statement.proven_slack:.2f} times",
            "other candidates: counted from below, with the time of one multiplication and addition of points here; "
            "ACORN's seconds are its own",
        ),
    )


def statement_for(clients: int, projections: int) -> Statement:
    """As wide a bound as a field leaves room for: a sum of all clients' largest elements."""
    bits = FIELD_BITS[clients]
    bound = ((1 << bits) - 1) // (2 * clients)
    return Statement(projections=projections, field_bits=bits, bound=bound)


def words_of(statement: Statement, elements: int) -> int:
    """How many words hold an update."""
    return -(-elements // statement.lanes)


def honest_steps(statement: Statement, elements: int) -> NDArray[np.int64]:
    """An update [words, lanes] just within the bound."""
    drawn = np.random.default_rng(elements).normal(size=(words_of(statement, elements), statement.lanes))
    return np.trunc(drawn * (statement.bound / np.linalg.norm(drawn))).astype(np.int64)


def _seconds(work: Callable[[], Result]) -> tuple[float, Result]:
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def _costs(statement: Statement, elements: int, clients: int) -> Costs:
    say(f"{elements:,} elements, {clients} clients")
    steps = honest_steps(statement, elements)
    generators("number", statement.numbers)
    context, coin = secrets.token_bytes(32), secrets.token_bytes(32)
    before, pads = _seconds(lambda: Pads.draw(statement))
    after, proof = _seconds(lambda: prove(statement, context, coin, [steps], pads))
    submission = Submission(context=context, commitment=pads.commitment, proof=proof)
    server, results = _seconds(lambda: accepted(statement, coin, [submission] * clients))
    words = join(steps, statement.field_bits)
    checking, projected = _seconds(lambda: project_words(coin, statement.projections, [words]))
    if not all(results) or not np.array_equal(projected + pads.words, values_of(proof, statement)):
        raise AssertionError("an honest proof does not pass")
    extra = WORD_BYTES * statement.projections + POINT_BYTES + len(proof)
    return Costs(
        statement=statement, elements=elements, clients=clients, client=before + after, server=server + checking,
        extra=extra,
    )  # fmt: skip


def _forge(count: int, projections: int) -> tuple[dict[str, int], dict[str, int]]:
    """How many forgeries of each kind were tried, and how many passed."""
    rng = np.random.default_rng(35)
    large = Statement(projections=projections, field_bits=16, bound=4095)
    small = Statement(projections=16, field_bits=16, bound=4095, folds=2)
    lies, altered = max(5, count // 2_000), max(8, count // 250)
    norms = (count - lies - altered) * 2 // 3
    kinds: dict[str, tuple[Callable[[Statement, int, np.random.Generator], int], Statement, int]] = {
        "over the bound, claimed as short as can be": (forgeries.over_the_bound, large, norms),
        "another vector masked": (forgeries.other_vectors, large, count - lies - altered - norms),
        "a proof altered, or used elsewhere": (forgeries.altered_proofs, small, altered),
        "a long vector, with numbers that are short or wrap": (forgeries.lying_provers, small, lies),
    }
    passed = {}
    for kind, (forge, statement, tries) in kinds.items():
        say(f"{tries:,} forgeries: {kind}")
        passed[kind] = forge(statement, tries, rng)
    return {kind: tries for kind, (_, _, tries) in kinds.items()}, passed


def _others(elements: tuple[int, ...]) -> Table:
    """The candidates that were not chosen, from below: 16-bit fields, and eight clients."""
    points = generators("number", POINT_SAMPLE)
    seconds = _seconds(lambda: combine((scalar(os.urandom), point) for point in points))[0] / POINT_SAMPLE
    rows = []
    for d in elements:
        vector = 2 * d
        rows += [
            (f"{d:,}", "RiseFL: a commitment for each element", f"{d * seconds:.1f}", f"{1 + 32 * d / vector:.1f}"),
            (f"{d:,}", "EIFFeL: a share of each element for each client", "-", f"{1 + 7 * 8 * d / vector:.1f}"),
            (f"{d:,}", "ACORN: its own seconds", f"{d * ACORN_SECONDS:.1f}", "-"),
        ]
    return Table(
        title="Other candidates, at least", header=("elements", "candidate", "client s", "upload"), rows=tuple(rows)
    )


if __name__ == "__main__":
    sys.exit(main())
