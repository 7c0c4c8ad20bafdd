"""What `fedcore stats` asks of an app, before anybody is asked."""

from __future__ import annotations

from pathlib import Path

from support.raising import raises

from client_app.operator.stats import request_of
from fedcore.data.regression.question import RegressionQuery
from fedcore.data.reports.options import StatsOptions
from fedcore.errors import ConfigurationError
from fedcore.flower.app import FlowerApp

APP = Path(__file__).parents[3] / "apps" / "columns"


def test_random_effects_of_sites_need_a_plan() -> None:
    """Without one every client would refuse, after some queries."""
    app = FlowerApp.load(APP)
    question = request_of(app, StatsOptions(glm="dose ~ age", family="linear", site_effects="fixed")).question
    assert isinstance(question, RegressionQuery)
    assert question.sites == "fixed"
    with raises(ConfigurationError, check="no-plan"):
        request_of(app, StatsOptions(glm="dose ~ age", family="linear", site_effects="random"))
