"""A table whose rows are parted among the clients: what the clients answer for, and what the tests compare it with."""

import numpy as np

NAMES = ("age", "dose", "ward")


def table(partition: int, rows: int, columns: int = 3) -> dict[str, np.ndarray]:
    """One client's columns, float64 [rows + partition]: ages with gaps, doses of which some are large, wards."""
    chance = np.random.default_rng(partition)
    size = rows + partition
    age = chance.normal(60 + 5 * partition, 12, size)
    age[:: 7 + partition] = np.nan
    found = {"age": age, "dose": chance.normal(0, 0.7, size), "ward": chance.integers(0, 4, size).astype(float)}
    more = {f"more{place}": chance.random(size) for place in range(columns - len(NAMES))}
    return {**found, **more}
