"""Every answer of the server is one that its OpenAPI schema documents, whoever asks for whatever.

FEDCORE_SCHEMA_EXAMPLES sets how many requests are made of each operation.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.schema_cases import prober

from fedcore.federation import Policy, provision

EXAMPLES = int(os.environ.get("FEDCORE_SCHEMA_EXAMPLES", "12"))


@pytest.mark.timeout(3600)
def test_every_answer_is_documented(tmp_path: Path) -> None:
    federation = provision(
        tmp_path / "fed", name="testing", clients=4, now=datetime.now(UTC), hosts=["127.0.0.1"], policy=Policy.own(4)
    )
    with prober(federation, tmp_path) as made:
        operations = made.operations()
        for operation in operations:
            made.probe(operation, examples=EXAMPLES)
    assert len(operations) >= 34
    assert {200, 204, 401, 404, 409, 422} <= set(made.answers), "requests get past the door, and to the routes"
