"""What the server and the clients share: the model, its columns, and how the air is made up.

The hours are synthetic, in the shape of Beijing's twelve stations (Zhang et al. 2017): five gases and dusts and six
numbers of the weather, of which some are missing. Stations share the weather and differ in traffic, in their sensors'
level, and in what they miss: one has almost no ozone.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedcore.data import Split
from fedcore.flower.apps.statistics import app_bounds
from fedcore.training import derive_seed, seeded

STATIONS, HOURS, HIDDEN = 12, 600, 32
BOUNDS = app_bounds(Path(__file__).parents[1])
COLUMNS = tuple(BOUNDS)


def initial_model(seed: int) -> nn.Module:
    """The model with the weights that every run with this seed starts from."""
    with seeded(derive_seed("initial weights", seed)):
        return nn.Sequential(nn.Linear(len(COLUMNS), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def hours(station: int, seed: int) -> tuple[Split, Split]:
    """Training and test part of a station: x float32 [n, 11], NaN if missing, and y, PM2.5 in 10 µg/m³, float32 [n].

    The last fifth of the time is the test part. An hour without PM2.5 is left out.
    """
    rng = np.random.default_rng(derive_seed("station", seed, station))
    smog, weather = _weather(seed)
    traffic = rng.uniform(0.7, 1.4)
    local = smog * traffic * rng.lognormal(0, 0.15, HOURS)
    gases = np.column_stack([1.3 * local, 0.15 * local, 20 + 0.4 * local, 300 + 11 * local, 140 / (1 + local / 40)])
    gases *= rng.lognormal(0, 0.2, gases.shape) * rng.uniform(0.85, 1.15, gases.shape[1])
    x = np.column_stack([gases, weather + rng.normal(0, 0.3, weather.shape), np.arange(HOURS) % 24])
    x[:, 8:10] = np.abs(x[:, 8:10])  # no rain below zero, and no wind
    y = local * rng.lognormal(0, 0.1, HOURS)
    missing = rng.random(x.shape) < rng.uniform(0.01, 0.1, x.shape[1])
    missing[:, COLUMNS.index("O3")] |= rng.random(HOURS) < (0.95 if station == 3 else 0.0)
    x[missing] = np.nan
    known = np.flatnonzero(rng.random(HOURS) > 0.03)
    whole = Split(x=x[known].astype(np.float32), y=(y[known] / 10).astype(np.float32))
    cut = len(known) * 4 // 5
    return whole.take(np.arange(cut)), whole.take(np.arange(cut, len(known)))


def _weather(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the whole city: level of smog [hours], and temperature, pressure, dew point, rain and wind [hours, 5]."""
    rng = np.random.default_rng(derive_seed("weather", seed))
    time = np.arange(HOURS)
    front = np.convolve(rng.normal(size=HOURS + 47), np.ones(48) / 48**0.5, "valid")  # one lasts about two days
    wind = np.clip(2 - front + rng.normal(0, 0.5, HOURS), 0.1, None)
    temperature = 12 + 8 * np.sin(2 * np.pi * (time - 9) / 24) + 2 * front
    pressure = 1012 - 4 * front + rng.normal(0, 1, HOURS)
    dew = temperature - 8 + 4 * front
    rain = np.where(rng.random(HOURS) < 0.04, rng.exponential(2, HOURS), 0)
    smog = 75 * np.exp(0.6 * front - 0.1 * wind) * (1 - 0.3 * (rain > 0))
    return smog, np.column_stack([temperature, pressure, dew, rain, wind])
