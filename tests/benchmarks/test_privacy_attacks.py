"""What counts as read, and how members are told: without a federation, whose attacks `test_smallest` runs."""

import numpy as np
import pytest

from benchmarks.privacy.membership import roc, scores
from benchmarks.privacy.reading import Reading

RNG = np.random.default_rng(1)
SEEN = RNG.permuted(np.tile([True, False], (4, 100)), axis=0).repeat(2, axis=0)
SEEN[1::2] = ~SEEN[::2]
"""Whether a model trained on a record [8, 200]: of two models the second on what the first left out."""


def test_members_whose_answers_differ_are_told():
    answers = RNG.normal(0, 1, SEEN.shape) + RNG.normal(0, 3, SEEN.shape[1])
    rate, area = roc(scores(answers, SEEN), SEEN)
    assert area == pytest.approx(0.5, abs=0.06)
    assert rate < 0.05
    rate, area = roc(scores(answers + 5.0 * SEEN, SEEN), SEEN)
    assert area > 0.98
    assert rate > 0.6


def test_a_record_is_read_within_the_tolerance_and_once():
    records = RNG.normal(0, 1, (20, 13))
    reading = Reading()
    reading.guess_records(np.array([records[3] + 0.05, records[3] - 0.05, records[7] + 0.5]), records, 0.1)
    assert reading.records == {3}
    assert reading.correlation > 0.9
    reading.guess_records(np.full((1, 13), np.nan), records, 0.1)
    assert reading.records == {3}


def test_an_update_is_read_within_a_percent_of_its_length():
    updates = [*RNG.normal(0, 1, (4, 50))]
    reading = Reading()
    reading.guess_updates([updates[2] * 1.005, updates[1] * 1.05], updates)
    assert reading.updates == {2}
