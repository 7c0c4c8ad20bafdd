"""Figures made of sums: against scikit-learn and brute force, and that the sums of parts are those of the whole."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as known
from support.raising import raises
from torch import nn

from fedcore.data import Split
from fedcore.errors import ConfigurationError, UsageError
from fedcore.training import Metric, evaluate, local_engine, seeded
from fedcore.training.losses import IGNORED, cox, squared_error
from fedcore.training.metrics import (
    accuracy,
    auc,
    average_precision,
    brier,
    c_index,
    calibration_error,
    checked_metrics,
    exact_auc,
    f1,
    mae,
    majority,
    r2,
    rmse,
    two_class_logits,
)

CLASSES = 4


def drawn(kind, n, seed=0):
    """Output and targets of a model that knows a little, for a metric of a kind."""
    rng = np.random.default_rng(seed)
    if kind == "classes":
        y = rng.integers(0, CLASSES, n)
        return torch.tensor(rng.normal(size=(n, CLASSES)) + np.eye(CLASSES)[y]).float(), torch.tensor(y)
    if kind == "two":
        y = rng.integers(0, 2, n)
        return torch.tensor(rng.normal(size=n) + y - 0.5).float(), torch.tensor(y)
    if kind == "survival":
        targets = np.stack([rng.integers(1, 9, n), rng.random(n) < 0.6], axis=1)
        return torch.tensor(rng.integers(-3, 4, n) / 2), torch.tensor(targets.astype(np.float32))
    y = rng.normal(size=n) * 3 + 10
    return torch.tensor(y + rng.normal(size=n)), torch.tensor(y)


KINDS = {
    "classes": (accuracy, f1(CLASSES)),
    "two": (accuracy, f1(), auc(), average_precision(), brier, calibration_error()),
    "numbers": (rmse, mae, r2),
}
ADDED = [(kind, metric) for kind, metrics in KINDS.items() for metric in metrics]


def figure(metric, output, targets):
    return metric.value(metric.sums(output, targets))


@pytest.mark.parametrize(("kind", "metric"), ADDED, ids=lambda value: getattr(value, "name", value))
@given(n=st.integers(1, 40), cuts=st.lists(st.integers(0, 40), max_size=4), seed=st.integers(0, 99))
def test_sums_of_parts_add_up_to_those_of_the_whole(kind, metric, n, cuts, seed):
    output, targets = drawn(kind, n, seed)
    whole = metric.sums(output, targets)
    assert whole.dtype == torch.float64
    edges = [0, *sorted(min(cut, n) for cut in cuts), n]
    parts = [metric.sums(output[a:b], targets[a:b]) for a, b in itertools.pairwise(edges)]
    torch.testing.assert_close(torch.stack(parts).sum(dim=0), whole, rtol=1e-12, atol=1e-9)


class TestAgainstScikitLearn:
    def test_classes(self):
        output, y = drawn("classes", 500)
        found = output.argmax(1)
        assert figure(accuracy, output, y) == pytest.approx(known.accuracy_score(y, found))
        assert figure(f1(CLASSES), output, y) == pytest.approx(known.f1_score(y, found, average="macro"))
        # A class that never occurs does not count.
        assert figure(f1(CLASSES + 3), output, y) == pytest.approx(known.f1_score(y, found, average="macro"))

    def test_numbers(self):
        output, y = drawn("numbers", 500)
        assert figure(rmse, output, y) == pytest.approx(known.root_mean_squared_error(y, output))
        assert figure(mae, output, y) == pytest.approx(known.mean_absolute_error(y, output))
        assert figure(r2, output, y) == pytest.approx(known.r2_score(y, output))

    @pytest.mark.parametrize("cells", [20, 200, 2000])
    def test_scores_in_cells(self, cells):
        logits, y = drawn("two", 1000)
        scores = torch.sigmoid(logits.double())
        # Half of the pairs of one example of each class that share a cell; the docstring promises it.
        cell = (scores * cells).long()
        share = float((cell[y == 0][:, None] == cell[y == 1][None, :]).double().mean())
        error = figure(auc(cells), logits, y) - known.roc_auc_score(y, scores)
        assert abs(error) <= share / 2 + 1e-12
        rounded = cell.double() / cells
        assert figure(auc(cells), logits, y) == pytest.approx(known.roc_auc_score(y, rounded))
        assert figure(average_precision(cells), logits, y) == pytest.approx(known.average_precision_score(y, rounded))
        if cells == 200:
            assert abs(error) < 5e-4
            exact = known.average_precision_score(y, scores)
            assert figure(average_precision(cells), logits, y) == pytest.approx(exact, abs=5e-3)

    @given(n=st.integers(2, 60), levels=st.integers(1, 30), seed=st.integers(0, 99))
    def test_the_exact_auc_has_no_cells(self, n, levels, seed):
        rng = np.random.default_rng(seed)
        logits, y = rng.integers(0, levels, n) / 1e6, rng.integers(0, 2, n)
        found = exact_auc(torch.tensor(logits), torch.tensor(y))
        if len(set(y)) == 1:
            assert math.isnan(found)
        else:
            assert found == pytest.approx(known.roc_auc_score(y, logits))

    def test_probabilities(self):
        logits, y = drawn("two", 700)
        scores = torch.sigmoid(logits.double())
        assert figure(brier, logits, y) == pytest.approx(known.brier_score_loss(y, scores))
        assert figure(brier, torch.zeros(9), torch.ones(9)) == 0.25

    @pytest.mark.parametrize("bins", [1, 10, 15])
    def test_calibration(self, bins):
        logits, y = drawn("two", 700)
        scores, error = torch.sigmoid(logits.double()), 0.0
        for cell in range(bins):
            inside = (scores > cell / bins) & (scores <= (cell + 1) / bins)
            if inside.any():
                error += float(inside.sum() * (scores[inside].mean() - y[inside].double().mean()).abs()) / len(y)
        assert figure(calibration_error(bins), logits, y) == pytest.approx(error)
        certain = torch.tensor([-50.0, 50.0, 50.0, 50.0])
        assert figure(calibration_error(bins), certain, torch.tensor([0, 1, 1, 0])) == pytest.approx(0.25)

    def test_several_labels(self):
        rng = np.random.default_rng(0)
        output, y = torch.tensor(rng.normal(size=(50, 3))), torch.tensor(rng.integers(0, 2, (50, 3))).float()
        assert figure(accuracy, output, y) == pytest.approx(float(((output > 0) == (y > 0)).double().mean()))


def test_two_logits_and_one_give_the_same_scores():
    logits, y = drawn("two", 60)
    two = torch.stack([torch.zeros_like(logits), logits], dim=1)
    for metric in (auc(), average_precision(), accuracy, f1(), brier, calibration_error()):
        assert figure(metric, two, y) == figure(metric, logits, y) == figure(metric, logits[:, None], y)


@given(n=st.integers(1, 25), seed=st.integers(0, 99))
def test_the_c_index_compares_every_pair_that_can_be(n, seed):
    risk, targets = drawn("survival", n, seed)
    time, event = targets[:, 0].tolist(), targets[:, 1].tolist()
    right = comparable = 0.0
    for i in range(n):
        for j in range(n):
            if event[i] and (time[i] < time[j] or (time[i] == time[j] and not event[j])):
                comparable += 1
                right += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
    found = figure(c_index, risk, targets)
    assert (math.isnan(found) and not comparable) or found == pytest.approx(right / comparable)


def test_what_means_nothing_is_no_number():
    for metric in (accuracy, f1(), auc(), average_precision(), rmse, mae, r2, c_index):
        assert math.isnan(metric.value(torch.zeros(metric.length, dtype=torch.float64)))


@pytest.mark.parametrize(
    ("metric", "output", "targets", "says"),
    [
        (f1(2), (3, 4), torch.tensor([0, 1, 3]), {"check": "no-such-class", "match": r"f1\(2\)"}),
        (auc(), (3, 4), torch.zeros(3), {"check": "targets-do-not-fit"}),
        (auc(), (3,), torch.tensor([0, 1, 2]), {"check": "binary-targets"}),
        (rmse, (3, 2), torch.zeros(3), {"check": "targets-do-not-fit"}),
        (c_index, (3,), torch.zeros(3), {"check": "survival-targets"}),
        (accuracy, (3, 2), torch.zeros(4), {"check": "targets-do-not-fit"}),
    ],
)
def test_what_does_not_belong_together_is_refused(metric, output, targets, says):
    with raises(UsageError, **says):
        metric.sums(torch.zeros(output), targets)


def test_an_ignored_position_counts_for_nothing():
    output, y = drawn("classes", 20)
    y[5:] = IGNORED
    for metric in (accuracy, f1(CLASSES)):
        assert torch.equal(metric.sums(output, y), metric.sums(output[:5], y[:5]))


class TestOwn:
    def count(self, output, targets):
        return torch.stack([(output.squeeze(1) > targets).sum(), torch.tensor(len(output))])

    def test_two_functions_make_one(self):
        own = Metric("too_high", "min", 2, self.count, lambda sums: float(sums[0] / sums[1]))
        with seeded(0):
            model = nn.Linear(2, 1)
        data = Split(x=np.random.default_rng(0).normal(size=(2100, 2)).astype(np.float32), y=np.zeros(2100, np.float32))
        result = evaluate(local_engine(model, loss=squared_error), data, metrics=[own, rmse])
        with torch.no_grad():
            expected = float((model(torch.tensor(data.x)) > 0).double().mean())
        assert result.values == {"too_high": expected, "rmse": pytest.approx(result.loss**0.5)}
        assert result.reported(2100) == {
            "eval_loss": result.loss,
            "too_high/sums": [expected, 1.0],
            "rmse/sums": [pytest.approx(result.loss), 1.0],
        }

    def test_a_count_of_another_length_is_refused(self):
        own = Metric("own", "min", 3, self.count, lambda sums: 0.0)
        with pytest.raises(ConfigurationError, match=r"\[2\].*\b3\b"):
            own.sums(torch.zeros(4, 1), torch.zeros(4))

    @pytest.mark.parametrize(
        "wrong", [{"name": "a/b"}, {"name": ""}, {"better": "more"}, {"length": 0}, {"over": "batch"}]
    )
    def test_what_is_no_metric_is_refused(self, wrong):
        fields = {"name": "own", "better": "max", "length": 1, "count": self.count, "value": float, **wrong}
        with pytest.raises(ConfigurationError):
            Metric(**fields)

    def test_what_stands_in_no_metric_s_place_is_named(self):
        with pytest.raises(ConfigurationError, match=r"auc\(\)"):
            checked_metrics([accuracy, auc])
        with pytest.raises(ConfigurationError, match=r"auc.*auc"):
            checked_metrics([auc(10), auc(20)])


def test_an_evaluation_compares_all_examples_of_a_site():
    """Over more than two batches, and beside a loss over the whole set."""
    rng = np.random.default_rng(0)
    y = np.stack([rng.integers(1, 9, 2100), rng.random(2100) < 0.6], axis=1).astype(np.float32)
    data = Split(x=rng.normal(size=(2100, 2)).astype(np.float32), y=y)
    with seeded(0):
        model = nn.Linear(2, 1)
    result = evaluate(local_engine(model, loss=cox), data, metrics=[c_index])
    with torch.no_grad():
        expected = figure(c_index, model(torch.tensor(data.x)), torch.tensor(y))
    assert result.values == {"c_index": pytest.approx(expected)}


def test_a_metric_says_what_it_is():
    def count(output, targets):
        """Share of good
        answers.

        More of it.
        """
        return output

    def value(sums):
        return float(sums[0])

    assert Metric("good", "max", 2, count, value).definition == "Share of good answers."
    assert Metric("good", "max", 2, count, value, meaning="answers that are good").definition == "answers that are good"
    assert Metric("good", "max", 2, lambda output, targets: output, value).definition == ""
    built_in = [f1(), auc(), average_precision(), calibration_error(), accuracy, brier, rmse, mae, r2, c_index]
    assert all(metric.definition for metric in built_in)
    assert "500" in auc(500).definition, "the cells are named"


def test_scores_of_more_than_two_classes_are_refused():
    with raises(UsageError, check="two-classes"):
        two_class_logits(torch.zeros(4, 3), torch.zeros(4, 3))
    with raises(UsageError, check="binary-targets"):
        two_class_logits(torch.zeros(4), torch.tensor([0, 1, 2, 1]))


def test_the_majority_is_that_of_all_parts_together() -> None:
    """Each part has another one; the share is of the sums, and no mean of shares."""
    metric, output = majority(3), torch.zeros(4, 3)
    parts = [torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 2, 2])]
    sums = sum(metric.sums(output, part) for part in parts)
    assert metric.value(sums) == pytest.approx(3 / 8)
    assert math.isnan(metric.value(torch.zeros(3)))
    assert majority().value(majority().sums(torch.zeros(3, 1), torch.tensor([1, 1, 0]))) == pytest.approx(2 / 3)
