"""The owners of a simulation count nearly equal models as real clients do, also after a run that goes on."""

from __future__ import annotations

import numpy as np
import pytest
from support.records import make_task

from fedcore.codec import CodecSettings, first_encoding
from fedcore.federation import Member, Policy, Roster
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.admission.simulated import SimulatedOwners
from fedcore.run.settings import JobSettings
from fedcore.simulation.owners import key_of
from fedcore.state import ModelState
from fedcore.wire.tasks import ModelRef

EVERYBODY = [1, 2, 3, 4]
SETTINGS = JobSettings(w_max=100)


def owners(near_models: float = 0.25) -> SimulatedOwners:
    keys = {client: key_of(client, b"secret").public_key().public_bytes_raw() for client in EVERYBODY}
    members = [Member(id=client, name=f"client-{client}", public_key=key) for client, key in keys.items()]
    return SimulatedOwners(
        roster=Roster.sign("simulation", members, key_of(0, b"secret")),
        policy=Policy(min_cohort=3, min_threshold=3, min_corrupt=0.0, allow_x25519=True, near_models=near_models),
        app_sha256="cd" * 32,
        agreed=AppAgreement(run_config={"lr": 0.1, "num-server-rounds": 3}, settings=SETTINGS),
    )


def refusals(made: SimulatedOwners, run: str, exchange: int, place: float, survivors: list[int]) -> list[str]:
    """What the survivors of a training from the model at a place on a line refuse."""
    model = ModelState.from_arrays({"weight": np.full((3, 4), place, np.float32)})
    task = make_task(
        exchange,
        run=run,
        model=ModelRef(sha256=model.sha256(), size=100),
        encoding=first_encoding(CodecSettings(w_max=100), model.layout, 4),
        settings=SETTINGS.for_clients(),
        seconds=3600.0,
    )
    admitted = made.admit(task, model)
    return [admitted.before_signature(client, survivors) for client in survivors]


def first_run(made: SimulatedOwners) -> None:
    for exchange, place in enumerate((0.0, 1.0), start=1):
        assert refusals(made, "one", exchange, place, EVERYBODY) == [""] * 4


@pytest.mark.parametrize(
    ("near_models", "place", "refused"), [(0.25, 1.1, True), (0.25, 1.5, False), (0.0, 1.1, False)]
)
def test_a_second_run_that_comes_near(near_models: float, place: float, refused: bool) -> None:
    made = owners(near_models)
    first_run(made)
    found = refusals(made, "two", 1, place, EVERYBODY[:3])
    assert [text.startswith("differencing") for text in found] == [refused] * 3


def test_what_was_saved_counts_as_before() -> None:
    made, again = owners(), owners()
    saved = [made.save()]
    first_run(made)
    saved += [made.save()]
    assert made.save()["models"] == []
    for part in saved:
        again.restore(part)
    assert all(text.startswith("differencing") for text in refusals(again, "two", 1, 1.1, EVERYBODY[:3]))


def test_what_earlier_versions_saved_is_read() -> None:
    made, again = owners(), owners()
    first_run(made)
    saved = made.save()
    del saved["models"]
    again.restore(saved)
    assert refusals(again, "two", 1, 1.1, EVERYBODY[:3]) == [""] * 3
