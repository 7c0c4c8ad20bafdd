"""An attack that measures epsilon, on sums that real clients' code makes.

One client either sends an update of full norm in a direction that the attacker chose (the canary), or zero; the others
send zero. The attacker sees the sum of the smallest cohort, knows all of that, and guesses which of the two it was by
the sum's component along the canary: the most powerful test there is, since the noise is symmetric and unimodal.

A mechanism is (epsilon, delta)-private only if every test has TPR <= e^epsilon FPR + delta, so rates that were measured
give a lower bound on epsilon: log((TPR - delta) / FPR), with Clopper-Pearson bounds for both rates (Jagielski, Ullman,
Oprea 2020; Nasr et al. 2021). For noise as large as claimed it lies below what the accountant says. For noise that is
half as large it must not, or the audit would be worth nothing.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from support.later import Later
from support.privacy import encoding_for, seeded, weights

from fedcore.codec import PrivateEncoding, encode
from fedcore.codec.privacy import Accountant

stats = Later("scipy.stats")

SIZE = 4
SHARES = 2
TRIALS = 1000
DELTA = 0.05
CONFIDENCE = 0.99
THRESHOLD = 1.15
"""In units of the canary: where the test is best against noise of half the claimed size."""


def audited_epsilon(encoding: PrivateEncoding, seed: int) -> float:
    """A lower bound on epsilon at DELTA that holds with CONFIDENCE; minus infinity where nothing is shown."""
    with_canary = _hits(encoding, seed, canary=True)
    without = _hits(encoding, seed + 1, canary=False)
    miss = (1 - CONFIDENCE) / 2
    true_rate = float(stats.beta.ppf(miss, with_canary, TRIALS - with_canary + 1))
    false_rate = float(stats.beta.ppf(1 - miss, without + 1, TRIALS - without))
    return math.log((true_rate - DELTA) / false_rate) if true_rate > DELTA else -math.inf


def _hits(encoding: PrivateEncoding, seed: int, *, canary: bool) -> int:
    """How often the attacker says that the canary is in the sum."""
    base = weights(size=SIZE)
    # Longer than the norm allows: a client that forgot to clip would show here.
    updates = [weights(*[9.0 * canary] * SIZE), *[base] * (SHARES - 1)]
    randomness = seeded(seed)
    hits = 0
    for _ in range(TRIALS):
        total = np.zeros(encoding.words, np.uint64)
        for update in updates:
            total += encode(encoding, base=base, local=update, examples=1, metrics={}, randomness=randomness).words
        lanes = total[:-1].view(np.uint32).astype(np.int64) - SHARES * encoding.offset
        along = lanes.sum() / math.sqrt(SIZE) / encoding.release.scale
        hits += bool(along > THRESHOLD)
    return hits


@pytest.mark.parametrize("mechanism", ["skellam", "discrete-gaussian"])
def test_the_noise_is_as_large_as_claimed(mechanism: str) -> None:
    encoding = encoding_for(SIZE, noise_clients=SHARES, dp_mechanism=mechanism)
    claimed = Accountant((encoding.release,)).epsilon(DELTA)
    found = audited_epsilon(encoding, seed=10)
    assert found <= claimed
    assert found > 0.3 * claimed, "an attack this weak would let anything pass"


def test_noise_of_half_the_claimed_size_is_caught() -> None:
    honest = encoding_for(SIZE, noise_clients=SHARES)
    halved = dataclasses.replace(honest.release, variance=honest.release.variance / 4)
    assert audited_epsilon(dataclasses.replace(honest, release=halved), seed=20) > Accountant(
        (honest.release,)
    ).epsilon(DELTA)
