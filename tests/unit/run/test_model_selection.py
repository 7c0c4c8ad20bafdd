"""The rule by which the best model is chosen, and where there can be none."""

from __future__ import annotations

import pytest

from fedcore.errors import ConfigurationError
from fedcore.run.model_selection import BestRule, laid_over
from fedcore.run.settings import JobSettings
from tests.support.raising import raises


def test_rules() -> None:
    largest, smallest = BestRule.parse("eval_acc:max"), BestRule.parse("a:b:min")
    assert largest is not None
    assert smallest == BestRule("a:b", larger=False)
    assert BestRule.parse("") is None
    assert [largest.beats(*pair) for pair in ((0.5, None), (0.5, 0.4), (0.5, 0.5), (None, None))] == [1, 1, 0, 0]
    assert smallest.beats(0.3, 0.4)
    assert [largest.value({"eval_acc": x}) for x in (0.5, [0.5], float("nan"))] == [0.5, None, None]
    for text in ("eval_acc", "eval_acc:more", ":max"):
        with pytest.raises(ConfigurationError, match="best-model"):
            BestRule.parse(text)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"aggregation": "plain"}, ("needs-secure", "best-model")),
        ({"dp_noise_multiplier": 1.0, "clip_norm": 1.0}, ("", "dp-metric-bound")),
    ],
)
def test_where_nothing_can_be_chosen_it_is_refused(settings: dict[str, object], reason: tuple[str, str]) -> None:
    check, names = reason
    with raises(ConfigurationError, check=check, match=names):
        JobSettings(best_model="loss:min", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "best"),
    [
        ({}, "auc:max"),
        ({"aggregation": "plain"}, ""),
        ({"dp-epsilon": 8.0}, ""),
        ({"dp-epsilon": 8.0, "dp-metric-bound": 1.0}, "auc:max"),
        ({"aggregation": "plain", "best-model": "auc:max"}, "auc:max"),
    ],
)
def test_the_wish_of_an_app_gives_way_to_a_run_that_cannot_tell(changes: dict[str, object], best: str) -> None:
    settings = JobSettings(best_model="auc:max").to_mapping()
    assert laid_over(settings, changes)["best-model"] == best
