"""What a ServerApp's process and its server say to each other: JSON that comes out as what went in."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from fedcore.run.plain import PlainReply
from server_app.runs.app.messages import FROM_APP, TO_APP, PlainReplies


def test_replies_come_as_paths() -> None:
    replies = [PlainReply(node=1, content=Path("/run/reply-1"), examples=3, metrics={"loss": 0.5})]
    sent = PlainReplies(replies=replies)
    assert TO_APP.validate_json(sent.model_dump_json()) == sent
    with pytest.raises(ValidationError):
        TO_APP.validate_json(sent.model_dump_json().replace('"/run/reply-1"', '{"state": {}}'))


def test_an_app_says_nothing_else() -> None:
    with pytest.raises(ValidationError):
        FROM_APP.validate_json('{"op": "start"}')
