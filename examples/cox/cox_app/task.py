"""What the server and the clients share: the model, its columns, and how patients are drawn.

The patients are synthetic, in the shape of TCGA-BRCA as FLamby parts it: 39 clinical features, six sites of which the
largest has eight times the patients of the smallest. Sites differ in age, in how often a feature is present, and in how
long patients are followed.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedcore.data import Split
from fedcore.flower.apps.statistics import app_bounds
from fedcore.training import derive_seed

SITES = (250, 196, 164, 129, 80, 30)
"""Patients of each site, a fifth of them in its test part. A seventh site would be as large as the first."""
FINDINGS = 30
LABS = 8
BOUNDS = app_bounds(Path(__file__).parents[1])
COLUMNS = tuple(BOUNDS)


def initial_model() -> nn.Module:
    """The log of the risk is linear, and the first model knows nothing."""
    model = nn.Linear(len(COLUMNS), 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def patients(site: int, seed: int) -> tuple[Split, Split]:
    """Training and test part of a site: x float32 [n, 39] in the columns' units, y float32 [n, 2], time and event."""
    rng = np.random.default_rng(derive_seed("patients", seed, site))
    n = SITES[site % len(SITES)]
    offset = site % len(SITES) - 2.5
    age = np.clip(rng.normal(58 + 3 * offset, 12, n), 18, 95)
    labs = rng.lognormal(np.linspace(0, 5, LABS), 0.4, (n, LABS))
    findings = rng.random((n, FINDINGS)) < np.clip(0.3 + 0.04 * offset + rng.normal(0, 0.08, FINDINGS), 0.05, 0.9)
    x = np.column_stack([age, labs, findings])
    time, event = _followed(rng, _risk(x, seed), years=4 + offset)
    whole = Split(x=x.astype(np.float32), y=np.column_stack([time, event]).astype(np.float32))
    test = np.arange(n) % 5 == 0
    return whole.take(np.flatnonzero(~test)), whole.take(np.flatnonzero(test))


def _risk(x: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """The log of the risk that the patients really have, the same function at every site."""
    rng = np.random.default_rng(derive_seed("risk", seed))
    weights = rng.normal(0, 0.5, FINDINGS) * (rng.random(FINDINGS) < 0.4)
    labs = np.log(x[:, 1 : 1 + LABS]) @ rng.normal(0, 0.4, LABS)
    risk: NDArray[np.float64] = 0.04 * (x[:, 0] - 58) + labs - labs.mean() + x[:, 1 + LABS :] @ weights
    return risk


def _followed(
    rng: np.random.Generator, risk: NDArray[np.float64], *, years: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Years until death, or until a patient was last seen, and whether it was death."""
    death = 8 * rng.weibull(1.3, len(risk)) * np.exp(-risk / 1.3)
    last_seen = rng.exponential(years, len(risk)) + 0.1
    return np.minimum(death, last_seen), death <= last_seen
