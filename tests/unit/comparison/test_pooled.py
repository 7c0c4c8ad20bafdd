"""Figures over the examples of all sites: against scikit-learn and a loop over all pairs."""

import itertools
import math

import numpy as np
import pytest
import torch
from sklearn import metrics as known
from torch import nn

from fedcore.comparison.workers.pooled import Recorder, SeenExamples, further_metrics, of_pairs
from fedcore.data import Split
from fedcore.training import evaluate, local_engine, seeded
from fedcore.training.losses import Loss, binary_cross_entropy, cox, cross_entropy, squared_error
from fedcore.training.metrics import Metric, accuracy, auc, c_index

EXAMPLES = (30, 7, 55)


def model(outputs: int) -> nn.Module:
    with seeded(1):
        return nn.Linear(3, outputs)


def site(number: int, targets: str) -> Split:
    rng = np.random.default_rng(number)
    n = EXAMPLES[number]
    x = rng.normal(size=(n, 3)).astype(np.float32)
    if targets == "survival":
        y = np.stack([rng.integers(1, 9, n), rng.random(n) < 0.6], axis=1).astype(np.float32)
        return Split(x=x, y=y)
    y = (x[:, 0] + rng.normal(size=n) > 0).astype(np.float32 if targets == "floats" else np.int64)
    return Split(x=x, y=y if targets != "three" else rng.integers(0, 3, n))


def seen_by(loss: Loss, metrics: tuple[Metric, ...], outputs: int, targets: str) -> list[SeenExamples]:
    engine = local_engine(model(outputs), loss=loss)
    seen = []
    for number in range(len(EXAMPLES)):
        recorder = Recorder(loss, metrics)
        evaluate(engine, site(number, targets), metrics=(*metrics, *recorder.extras()))
        seen.append(recorder.outputs())
    return seen


def outputs_and_targets(outputs: int, targets: str) -> tuple[torch.Tensor, np.ndarray]:
    parts = [site(number, targets) for number in range(len(EXAMPLES))]
    with torch.no_grad():
        found = model(outputs)(torch.tensor(np.concatenate([part.x for part in parts])))
    return found.double(), np.concatenate([part.y for part in parts])


@pytest.mark.parametrize(
    ("loss", "outputs", "targets"), [(cross_entropy, 2, "labels"), (binary_cross_entropy, 1, "floats")]
)
def test_scores_of_two_classes_are_those_of_all_sites(loss: Loss, outputs: int, targets: str) -> None:
    parts = seen_by(loss, (accuracy,), outputs, targets)
    figures = SeenExamples.together(parts).figures(frozenset({"accuracy"}))
    found, y = outputs_and_targets(outputs, targets)
    scores = torch.softmax(found, dim=1)[:, 1] if outputs == 2 else torch.sigmoid(found[:, 0])
    assert figures.keys() == {"auc", "brier", "ece"}
    assert figures["auc"] == pytest.approx(known.roc_auc_score(y, scores))
    assert figures["brier"] == pytest.approx(known.brier_score_loss(y, scores))
    first = parts[0].figures(frozenset())["auc"]
    assert first == pytest.approx(known.roc_auc_score(y[: EXAMPLES[0]], scores[: EXAMPLES[0]]))


def test_an_auc_that_the_app_counts_in_cells_keeps_its_name() -> None:
    (part, *_) = seen_by(cross_entropy, (auc(),), 2, "labels")
    assert part.figures(frozenset({"auc"})).keys() == {"auc/exact", "brier", "ece"}
    names = further_metrics((auc(),), two_classes=True)
    assert names.keys() == {"auc/exact", "brier", "ece"}


def test_one_class_alone_has_no_auc_and_a_model_that_diverged_has_no_number() -> None:
    one = SeenExamples(logits=torch.tensor([0.1, 2.0]).double(), labels=torch.ones(2).double())
    assert one.figures(frozenset()).keys() == {"brier", "ece"}
    lost = SeenExamples(logits=torch.tensor([math.nan, 2.0]).double(), labels=torch.tensor([0.0, 1.0]).double())
    assert math.isnan(lost.figures(frozenset())["auc"])
    assert SeenExamples().figures(frozenset()) == {}


@pytest.mark.parametrize(("loss", "outputs", "targets"), [(cross_entropy, 3, "three"), (squared_error, 1, "floats")])
def test_other_apps_have_no_scores_of_two_classes(loss: Loss, outputs: int, targets: str) -> None:
    assert SeenExamples.together(seen_by(loss, (), outputs, targets)).figures(frozenset()) == {}
    assert further_metrics((accuracy,), two_classes=False) == {}


def concordance(risk: list[float], targets: list[list[float]]) -> tuple[float, float]:
    right = comparable = 0.0
    for (a, (time, event)), (b, (later, other)) in itertools.permutations(zip(risk, targets, strict=True), 2):
        if event and (time < later or (time == later and not other)):
            comparable += 1
            right += 1.0 if a > b else 0.5 if a == b else 0.0
    return right, comparable


def test_three_ways_to_a_c_index() -> None:
    parts = seen_by(cox, (c_index,), 1, "survival")
    found, y = outputs_and_targets(1, "survival")
    risk = found[:, 0].float().tolist()
    edges = [0, *itertools.accumulate(EXAMPLES)]
    by_site = [concordance(risk[a:b], y[a:b].tolist()) for a, b in itertools.pairwise(edges)]
    sites = [{"c_index": right / comparable} for right, comparable in by_site]
    figures = of_pairs((accuracy, c_index), SeenExamples.together(parts), sites)
    right, comparable = concordance(risk, y.tolist())
    assert figures == {
        "c_index/all_pairs": pytest.approx(right / comparable),
        "c_index/mean_of_sites": pytest.approx(np.mean([site["c_index"] for site in sites])),
    }
    within = sum(right for right, _ in by_site) / sum(comparable for _, comparable in by_site)
    assert len({round(value, 6) for value in (*figures.values(), within)}) == 3
    assert further_metrics((c_index,), two_classes=False).keys() == figures.keys()
    assert "c_index/mean_of_sites" not in of_pairs((c_index,), SeenExamples.together(parts), [{}])
