"""What a model reaches that looks at no example, against scikit-learn's dummy classifier."""

from collections import Counter

import numpy as np
import pytest
from support.comparisons import made_up
from support.later import Later

from fedcore.comparison.report import Comparison, SiteSplit, merge
from fedcore.comparison.report.chance import ChanceLevel, chance_of

dummy = Later("sklearn.dummy")

TRAINING = ([0, 0, 0, 1], [1, 1, 2], [0, 2])
TEST = ([0, 1, 1], [1, 1, 1, 0], [2])


def counted(labels: list[int]) -> dict[str, int]:
    return {str(label): number for label, number in Counter(labels).items()}


def divided(test: bool = True) -> Comparison:
    return made_up(
        split=tuple(
            SiteSplit(
                site=f"client-{site}",
                training=len(training),
                test=len(tested),
                labels=counted(training),
                test_labels=counted(tested) if test else None,
            )
            for site, (training, tested) in enumerate(zip(TRAINING, TEST, strict=True), start=1)
        )
    )


def test_the_majority_class_is_what_a_dummy_classifier_reaches() -> None:
    def score(training: list[int], test: list[int]) -> float:
        guess = dummy.DummyClassifier(strategy="most_frequent").fit(np.zeros((len(training), 1)), training)
        return float(guess.score(np.zeros((len(test), 1)), test))

    level = ChanceLevel.of(divided())
    assert level is not None
    assert (level.classes, level.uniform, level.label, level.tested) == (3, 1 / 3, "0", True)
    everybody = [[label for labels in part for label in labels] for part in (TRAINING, TEST)]
    assert level.majority == pytest.approx(score(*everybody))
    own = [score(training, test) for training, test in zip(TRAINING, TEST, strict=True)]
    assert level.own == pytest.approx(np.mean(own)), "of two as frequent, the smaller label"


def test_without_labels_of_the_test_examples_the_training_examples_count() -> None:
    level = ChanceLevel.of(divided(test=False))
    assert level is not None
    assert (level.majority, level.tested) == (4 / 9, False)
    assert level.own == pytest.approx((3 / 4 + 2 / 3 + 1 / 2) / 3)


def test_what_is_known_of_which_metric() -> None:
    comparison = divided()
    assert chance_of("accuracy", comparison) == pytest.approx(2 / 8)
    assert chance_of("auc", comparison) == chance_of("c_index", comparison) == 0.5
    assert chance_of("loss", comparison) is None
    assert chance_of("accuracy", made_up(split=())) is None


def test_reports_of_several_apps_have_no_common_chance() -> None:
    assert ChanceLevel.of(merge({"a": made_up(), "b": made_up()})) is not None
    assert ChanceLevel.of(merge({"a": made_up(), "b": made_up(app="another")})) is None
