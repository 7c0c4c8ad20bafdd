"""What somebody who may choose scales, or reads the statistics behind them, learns of single clients.

    python benchmarks/codec_scales.py [--quick] [--json]

Three attacks on cohorts of three, with the rule of scales, ladders and locks (docs/adr/0014) and without. None knows
whose value is whose.

A scan asks for one update at many scales. The sum of an element, as a function of the scale, has a kink where a
client's value begins to be clipped, and lies on a line of a whole slope everywhere else; so a kink alone between two
scales tells that value.

A lone element, in a tensor of its own, has its sum, the sum of its magnitudes and that of their fourth powers: three
equations for three values, up to signs. With sums of magnitudes that are rounded up to powers of two not a single value
comes out, and now there are no such sums.

Those rounded sums still told exponents: three powers of two follow from their sum, unless it has two ones in binary.
exponents_told: the share of cohorts in which the exponents of all three clients' largest weighted changes of a large
tensor follow from what the sum tells now, its mean among it. The clients have 10 to 1,000 examples, and a part of their
updates in common.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

if not __package__:  # started as a file: the repository's root takes the place of this folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.common import Figure, Report, Table, parser, run
from fedcore.codec import CodecSettings, Encoding, decode, encode, encode_nothing, encoder
from fedcore.codec.scaling import coarseness
from fedcore.codec.scaling.statistics import power_of_two
from fedcore.codec.settings import MIN_SCALE, Clipping
from fedcore.errors import EncodingError, NothingContributed, UpdateTooLarge
from fedcore.state import ModelState

CLIENTS = 3
SCANS = 60
TRIPLES = 200
COHORTS = 60
EXAMPLES = (10, 1000)
COMMON = (0.0, 0.3, 0.9)
"""How much of the updates is common to all."""
SHARES = (1.0, 0.6, 0.4)
"""How large the three clients' updates are compared with each other."""
TOLD_AIM = 0.005
EXPONENTS_AIM = 0.05
_LOWEST = -12
"""The least exponent that the attacker thinks of, compared with the largest."""
_SAME = 1e-6

Vector = NDArray[np.float64]
Answer = Literal["clip", "refuse", "lock"]


def main() -> int:
    """The command line."""
    return run(measure, parser("What scales and statistics tell of single clients.").parse_args())


def measure(arguments: argparse.Namespace) -> Report:
    """Both attacks, before and after."""
    rng = np.random.default_rng(1)
    elements = 1_100 if arguments.quick else 20_000
    updates = (rng.standard_normal((CLIENTS, elements)) * 0.01 * np.array(SHARES)[:, None]).astype(np.float32)
    even, ruled = even_scales(updates), ruled_scales(updates)
    shares = {
        "any scales": single_elements(updates, scan(updates, even, answer="clip")),
        "scales of the rule": single_elements(updates, scan(updates, ruled, answer="clip")),
        'the same, clients refuse to be clipped (clipping = "warn")': single_elements(
            updates, scan(updates, ruled, answer="refuse")
        ),
        'the same, they lock the sum (clipping = "repeat")': single_elements(
            updates, scan(updates, ruled, answer="lock")
        ),
    }
    before, after = lone_elements(rng.standard_normal((TRIPLES, CLIENTS)))
    rows = [
        (f"one update at {len(even)} scales: {name}", f"{share:.2%} of single elements")
        for name, share in shares.items()
    ]
    rows.append(("sums of |x| and x^4 of a lone element", f"{before} of {TRIPLES} triples"))
    rows.append(("sums of |x| rounded up to powers of two", f"{after} of {3 * TRIPLES} values"))
    rounded, laddered = exponents_told(rng)
    rows.append(("exponents, from sums of |x| rounded up to powers of two", f"{rounded} of {COHORTS} cohorts"))
    rows.append(("exponents, from the ladder and the mean", f"{laddered} of {COHORTS} cohorts"))
    return Report(
        benchmark="codec_scales",
        figures=(
            Figure(name="single_elements_told", value=max(list(shares.values())[-2:]), aim=TOLD_AIM),
            Figure(name="exponents_told", value=laddered / COHORTS, aim=EXPONENTS_AIM),
        ),
        tables=(Table(title="What comes out", header=("asked for", "told"), rows=tuple(rows)),),
        notes=(f"{CLIENTS} clients, Gaussian updates of {elements} elements, {SHARES} compared with each other",),
    )


def lone_elements(triples: Vector) -> tuple[int, int]:
    """Of three values in each row [rows, 3]: triples from three sums, and single values from rounded sums."""
    before = after = 0
    for values in triples:
        total, sizes = float(values.sum()), float(np.abs(values).sum())
        found = from_power_sums(total, sizes, float((values**4).sum()))
        before += found is not None and bool(np.allclose(np.sort(found), np.sort(values), rtol=1e-3))
        told = sum(power_of_two(abs(float(value))) for value in values)
        after += lone_value(total, told, values.tolist())
    return before, after


def exponents_told(rng: np.random.Generator) -> tuple[int, int]:
    """In how many cohorts all three exponents follow: from sums of powers of two, and from ladder and mean."""
    rounded = laddered = 0
    for number in range(COHORTS):
        common = COMMON[number % len(COMMON)]
        weights = rng.uniform(*EXAMPLES, CLIENTS)
        own = rng.standard_normal((CLIENTS, 2_000)) * (1 - common) + common * rng.standard_normal(2_000)
        updates = weights[:, None] * own
        exponents = sorted(math.frexp(float(np.abs(update).max()))[1] for update in updates)
        mean = float(np.abs(updates.sum(axis=0)).max())
        highest = exponents[-1]
        possible = [
            candidate
            for candidate in itertools.combinations_with_replacement(range(highest + _LOWEST, highest + 3), CLIENTS)
            if sum(2.0**exponent for exponent in candidate) >= mean
        ]
        told = sum(2.0**exponent for exponent in exponents)
        rounded += sum(sum(2.0**exponent for exponent in candidate) == told for candidate in possible) == 1
        laddered += sum(max(candidate) == highest for candidate in possible) == 1
    return rounded, laddered


@dataclass(frozen=True, slots=True, kw_only=True)
class Scanned:
    """One sum of a scan: `total` [elements], of all clients but those that contributed nothing; all did, if closed."""

    scale: float
    total: Vector
    failures: int


def scan(updates: NDArray[np.float32], scales: Sequence[float], *, answer: Answer) -> list[Scanned]:
    """The sums of three updates [3, elements] at each of the scales, ascending.

    answer: what clients do whose update is too large: "clip" it, as they did once, "refuse" to have much of it clipped,
    or "lock" the sum.
    """
    clips: AbstractContextManager[Any] = patch.object(encoder, "MOST_CLIPPED", sys.maxsize)
    with clips if answer == "clip" else nullcontext():
        return [_sum(updates, scale, "repeat" if answer == "lock" else "warn") for scale in sorted(scales)]


def _sum(updates: NDArray[np.float32], scale: float, clipping: Clipping) -> Scanned:
    base = ModelState.from_arrays({"w": np.zeros(updates.shape[1])})
    encoding = Encoding(
        settings=CodecSettings(w_max=1, clipping=clipping),
        layout=base.layout,
        n_max=CLIENTS,
        field_bits=32,
        scales=(scale,),
        metrics=(),
        failures=CLIENTS - 1,  # the subject is scales: no sum stays closed
    )
    total = np.zeros(encoding.words, np.uint64)
    for update in updates:
        local = ModelState.from_arrays({"w": update.astype(np.float64)})
        try:
            sent = encode(encoding, base=base, local=local, examples=1, metrics={}, randomness=os.urandom)
        except EncodingError:
            sent = encode_nothing(encoding, randomness=os.urandom)
        total += sent.words
    try:
        # An attacker reads a sum that is mostly rounding, too, which a server passes on to nobody.
        with patch.object(coarseness, "MOST_ROUNDING", math.inf):
            decoded = decode(encoding, total, survivors=CLIENTS, base=base)
    except (NothingContributed, UpdateTooLarge):
        return Scanned(scale=scale, total=np.zeros(updates.shape[1]), failures=CLIENTS)
    assert decoded.state is not None
    mean = np.asarray(decoded.state["w"], np.float64)
    return Scanned(scale=scale, total=mean * decoded.examples, failures=decoded.failures)


def single_elements(updates: NDArray[np.float32], scans: Sequence[Scanned]) -> float:
    """The share of all single values that the sums over everybody tell."""
    whole = [one for one in scans if not one.failures]
    if whole and whole[0].scale == scans[0].scale:
        whole.insert(0, Scanned(scale=0.0, total=np.zeros(updates.shape[1]), failures=0))
    scales = [one.scale for one in whole]
    right = 0
    for element in range(updates.shape[1]):
        found = _kinks(scales, [float(one.total[element]) for one in whole])
        left = updates[:, element].tolist()
        for value in found:
            near = min(left, key=lambda own: abs(own - value), default=math.inf)
            if abs(near - value) <= _SAME * max(scales, default=0):
                right += 1
                left.remove(near)
    return right / updates.size


def _kinks(scales: Sequence[float], sums: Sequence[float]) -> list[float]:
    """The values at which single clients begin to be clipped, from the largest scale, where nobody is, downwards."""
    found: list[float] = []
    slope = 0.0
    for low in range(len(scales) - 2, -1, -1):
        width = scales[low + 1] - scales[low]
        beyond = sums[low + 1] - sums[low] - slope * width
        if abs(beyond) <= _SAME * width:
            continue
        kink = abs(beyond) < width
        after = slope + math.copysign(1.0, beyond)
        if low:  # the slope below tells whether it was one kink alone
            below = (sums[low] - sums[low - 1]) / (scales[low] - scales[low - 1])
            if abs(below - round(below)) <= _SAME * 10:
                kink, after = kink and round(below) == after, float(round(below))
        if kink:
            found.append(math.copysign(scales[low] + abs(beyond), beyond))
        slope = after
    return found


def even_scales(updates: NDArray[np.float32], count: int = SCANS) -> list[float]:
    """As a server chose them that was free to."""
    largest = float(np.abs(updates).max())
    return [largest * (number + 1) / count for number in range(count)]


def ruled_scales(updates: NDArray[np.float32], count: int = SCANS) -> list[float]:
    """As many of those that keep the rule as there are: each is half of the one before."""
    largest = power_of_two(float(np.abs(updates).max()))
    return [scale for number in range(count) if (scale := largest / 2**number) >= MIN_SCALE]


def from_power_sums(total: float, sizes: float, powers: float) -> tuple[float, float, float] | None:
    """Three values from their sum, that of their magnitudes and of the fourth powers; None if it is not clear."""
    found = []
    for lone, pair, sign in (
        ((sizes + total) / 2, (sizes - total) / 2, 1),
        ((sizes - total) / 2, (sizes + total) / 2, -1),
    ):
        rest = (pair**4 + powers - lone**4) / 2
        product = pair**2 - math.sqrt(rest) if rest >= 0 else -1.0
        if 0 < product <= pair**2 / 4 and lone > _SAME * sizes:
            apart = math.sqrt(pair**2 - 4 * product)
            found.append((sign * lone, -sign * (pair + apart) / 2, -sign * (pair - apart) / 2))
    return found[0] if len(found) == 1 else None


def lone_value(total: float, sizes: float, values: Sequence[float]) -> bool:
    """Whether the sum and that of the magnitudes tell a single value, but for which of two numbers it is."""
    candidates = ((sizes + total) / 2, (total - sizes) / 2)
    return any(abs(one - value) <= _SAME * sizes for one in candidates for value in values)


if __name__ == "__main__":
    sys.exit(main())
