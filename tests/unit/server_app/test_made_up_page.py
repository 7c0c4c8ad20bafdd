"""The made-up federation of the page's tests answers as the server does."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from support.made_up_world import World

from fedcore.wire.operator import RunClientsOut, ServerOut
from fedcore.wire.watch import MarksOut, RoundsOut, ServerViewOut


@pytest.mark.parametrize(
    ("model", "answer"),
    [
        (MarksOut, lambda world: world.marks(60)),
        (RunClientsOut, World.standings),
        (ServerOut, World.members),
        (RoundsOut, World.charts),
        (ServerViewOut, World.saw),
    ],
)
def test_the_made_up_world_answers_in_the_form_of_the_server(model: type[BaseModel], answer: Any) -> None:
    given = answer(World())
    assert model.model_validate(given).model_dump(mode="json") == given
