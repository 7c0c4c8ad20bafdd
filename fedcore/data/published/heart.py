"""Heart disease at four hospitals, prepared as FLamby's Fed-Heart-Disease does it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcore.data.files import HEART_SPLIT, read_verified
from fedcore.data.types import Dataset, Integers, Split
from fedcore.errors import ConfigurationError, DataError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")

# Columns of processed.*.data. slope, ca and thal (10 to 12) are missing too often and left out.
_NUMERIC = (0, 1, 3, 4, 5, 7, 8, 9)  # age, sex, trestbps, chol, fbs, thalach, exang, oldpeak
_CHEST_PAIN, _RESTING_ECG, _DIAGNOSIS = 2, 6, 13
# One-hot levels; the first of each (1 and 0) is left out, as pandas' drop_first does.
_LEVELS = ((_CHEST_PAIN, (2.0, 3.0, 4.0)), (_RESTING_ECG, (1.0, 2.0)))
_COLUMNS = 14


def load_heart_disease(data_dir: Path | str | None = None, *, standardise: str = "site") -> Dataset:
    """486 training and 254 test patients: x float32 [n, 13], y 1 for disease, groups by hospital.

    The split is FLamby's. Raises DataError and ConfigurationError. Source: Janosi, Steinbrunn, Pfisterer and Detrano
    (1988), UCI; Ogier du Terrail et al. (2022), FLamby, arXiv 2210.04620.

    Args:
        standardise: whose training rows give the mean and the standard deviation (n - 1). With "site" every hospital
            uses its own and nothing leaves it: for federated runs, and for the results by hospital. With "pooled" one
            set serves all, which only someone who holds all rows can do: FLamby's pooled baseline trains so, and the
            pooled test set of its table is prepared so, for federated models too.
    """
    if standardise not in ("site", "pooled"):
        raise ConfigurationError(f"standardise must be site or pooled, not {standardise!r}")
    patients, hospital, in_train = _patients(data_dir)
    x = _features(patients)
    scope = hospital if standardise == "site" else np.zeros_like(hospital)
    everything = Split(
        x=_standardised(x, scope, in_train),
        y=(patients[:, _DIAGNOSIS] > 0).astype(np.int64),
        groups=hospital,
    )
    return Dataset(
        name="heart_disease",
        train=everything.take(np.flatnonzero(in_train)),
        test=everything.take(np.flatnonzero(~in_train)),
        classes=2,
        group_names=HOSPITALS,
    )


def read_hospital(path: Path) -> NDArray[np.float32]:
    """New patients of one hospital [n, 13], from a file in the form of UCI's processed.*.data, diagnosis left aside.

    Standardised by the file's own rows, as `load_heart_disease` does it by site, so that n has to be more than a few.
    Raises DataError, also for missing values.
    """
    table = _table(path.read_text(encoding="utf-8").splitlines(), str(path))
    x = _features(table)
    if len(x) < 2 or np.isnan(x).any():
        raise DataError(f"{path}: at least two patients, and no missing value, are needed to standardise by")
    return _standardised(x, np.zeros(len(x), np.int64), np.ones(len(x), np.bool_))


def _patients(
    data_dir: Path | str | None,
) -> tuple[NDArray[np.float64], Integers, NDArray[np.bool_]]:
    """The rows that FLamby uses [n, 14] (missing values are NaN), their hospital, and the split."""
    tables = {name: _hospital_table(name, data_dir) for name in HOSPITALS}
    listing = read_verified(HEART_SPLIT, data_dir).decode("ascii").splitlines()
    entries = list(csv.DictReader(listing))
    rows = [tables[e["site"]][int(e["line"]) - 1] for e in entries]
    hospital = np.array([HOSPITALS.index(e["site"]) for e in entries], dtype=np.int64)
    return np.stack(rows), hospital, np.array([e["set"] == "train" for e in entries])


def _hospital_table(name: str, data_dir: Path | str | None) -> NDArray[np.float64]:
    """One processed.*.data file as [rows, 14]; "?" becomes NaN."""
    file = f"heart_disease/processed.{name}.data"
    return _table(read_verified(file, data_dir).decode("ascii").splitlines(), file)


def _table(lines: Sequence[str], file: str) -> NDArray[np.float64]:
    try:
        table = [[np.nan if v == "?" else float(v) for v in row] for row in csv.reader(lines)]
        return np.array(table, dtype=np.float64).reshape(len(lines), _COLUMNS)
    except ValueError as error:
        raise DataError(f"{file} is not a table of {_COLUMNS} numbers a line") from error


def _features(patients: NDArray[np.float64]) -> NDArray[np.float64]:
    """Eight measurements, then the one-hot levels of chest pain and of the resting ECG [n, 13]."""
    one_hot = [patients[:, column] == level for column, levels in _LEVELS for level in levels]
    return np.column_stack([patients[:, _NUMERIC], *one_hot]).astype(np.float64)


def _standardised(x: NDArray[np.float64], scope: Integers, in_train: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Zero mean and unit variance on the training rows of each scope."""
    result = np.empty_like(x)
    for one in np.unique(scope):
        rows = scope == one
        known = x[rows & in_train]
        spread = known.std(axis=0, ddof=1)
        # Zurich and Basel recorded no cholesterol: a column of zeros stays one.
        spread[spread == 0] = 1.0
        result[rows] = (x[rows] - known.mean(axis=0)) / spread
    return result.astype(np.float32)
