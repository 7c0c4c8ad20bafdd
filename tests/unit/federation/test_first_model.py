"""Which models a run began with, by the task and the transcript, and which of them an owner accepts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.draws import draw_task
from support.records import LAYOUT, Notary, make_task

from fedcore.codec import CodecSettings, first_encoding
from fedcore.errors import KitError, ProtocolViolation
from fedcore.federation import Policy
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.admission.checks import FIRST_MODEL, OTHER_LAYOUT, VERSION_FORK
from fedcore.federation.admission.first_model import AppModel, check_first_model, check_layout, untraced_models
from fedcore.federation.admission.simulated import SimulatedMember
from fedcore.federation.admission.tasks import check_task
from fedcore.federation.transcript import Chain, keys_of
from fedcore.run.settings import JobSettings
from fedcore.state import Layout, ModelState
from fedcore.wire.tasks import Buffer, ModelRef, Task, Version

SAME = ModelState.from_arrays({spec.name: np.zeros(spec.shape, spec.storage) for spec in LAYOUT.specs})
OTHER = ModelState.from_arrays({**SAME, "unused": np.zeros(1, np.float32)})
OWN, CRAFTED, LATER = ("0a" * 32, "0c" * 32, "01" * 32)
POLICY = Policy.default(4)


def ref(sha256: str) -> ModelRef:
    return ModelRef(sha256=sha256, size=100)


def buffered(*starts: tuple[int, str], newest: int = 0) -> Task:
    versions = [Version(number=number, sha256=sha256) for number, sha256 in starts]
    return make_task(9, buffer=Buffer(newest=newest, starts=versions), model=ref(LATER))


def chain_of(notary: Notary) -> Chain:
    chain = Chain()
    for signed in notary.records:
        chain.extend(signed, keys_of([notary.roster]))
    return chain


def untraced(task: Task, chain: Chain | None = None, policy: Policy = POLICY) -> set[str]:
    return set(untraced_models(task, policy, chain or Chain()))


@pytest.fixture
def notary() -> Notary:
    return Notary.of()


class TestWhichModel:
    def test_without_a_record_that_of_the_task(self, notary: Notary) -> None:
        assert untraced(make_task(model=ref(CRAFTED))) == {CRAFTED}
        assert untraced(make_task(model=ref(CRAFTED), message_type="evaluate")) == {CRAFTED}
        drawn = draw_task(notary, model=ref(CRAFTED))
        assert untraced(drawn) == {CRAFTED}, "before a draw is answered"

    def test_queries_and_plain_exchanges_have_none(self) -> None:
        assert untraced(make_task(model=ref(CRAFTED), message_type="query.statistics")) == set()
        assert untraced(make_task(model=ref(CRAFTED), aggregation="plain")) == set()

    def test_that_of_the_first_complete_record_of_the_run(self, notary: Notary) -> None:
        notary.sum(1, run="another", model=ref(LATER))
        notary.sum(2, signers=(1,), complete=False, model=ref(OWN))
        assert untraced(make_task(3, model=ref(CRAFTED)), chain_of(notary)) == {CRAFTED}, (
            "anybody makes up such a record"
        )
        notary.sum(3, model=ref(OWN))
        notary.sum(4, model=ref(CRAFTED))
        assert untraced(make_task(5, model=ref(CRAFTED)), chain_of(notary)) == {OWN}

    def test_a_model_of_an_earlier_run_is_traced(self, notary: Notary) -> None:
        notary.sum(1, run="earlier", model=ref(LATER), message_type="evaluate")
        notary.sum(2, run="earlier", model=ref(CRAFTED), message_type="query.statistics")
        chain = chain_of(notary)
        assert untraced(make_task(3, model=ref(LATER)), chain) == set()
        assert untraced(make_task(3, model=ref(CRAFTED)), chain) == {CRAFTED}, "a query is about no model"

    def test_so_is_the_last_one_of_a_run_that_failed(self) -> None:
        assert untraced_models(make_task(model=ref(LATER)), POLICY, Chain(), {LATER}) == set()

    def test_every_start_of_a_buffer_before_there_is_a_sum(self, notary: Notary) -> None:
        task = buffered((0, OWN), (0, OWN), (1, CRAFTED), (0, OWN), newest=1)
        assert untraced(task) == {OWN, CRAFTED}
        notary.sum(1, model=ref(OWN))
        assert untraced(task, chain_of(notary)) == {OWN}, "later versions are made by the sums"
        zero = buffered((0, CRAFTED), (1, LATER), (1, LATER), (1, LATER), newest=1)
        assert untraced(zero, chain_of(notary)) == {OWN, CRAFTED}, "version 0 is the first model"

    def test_work_from_version_0(self, notary: Notary) -> None:
        work = make_task(model=ref(CRAFTED), version=Version(number=0, sha256=CRAFTED))
        assert untraced(work) == {CRAFTED}
        later = make_task(model=ref(CRAFTED), version=Version(number=1, sha256=CRAFTED))
        assert untraced(later) == set(), "it is looked at when it is summed"


class TestWhoseModel:
    @pytest.mark.parametrize("first_models", [("any",), (CRAFTED,), ("app", CRAFTED)])
    def test_an_owner_may_take_it(self, first_models: tuple[str, ...]) -> None:
        policy = Policy.own(4, first_models=first_models)
        assert untraced(make_task(model=ref(CRAFTED)), policy=policy) == set()

    def test_the_apps_own_passes_and_no_other(self) -> None:
        check_first_model({OWN}, POLICY, AppModel(sha256=OWN))
        check_first_model(set(), POLICY, AppModel())
        for models, app in (({CRAFTED}, OWN), ({OWN, CRAFTED}, OWN), ({CRAFTED}, "")):
            with pytest.raises(ProtocolViolation) as refused:
                check_first_model(models, POLICY, AppModel(sha256=app))
            assert (refused.value.check, refused.value.subject) == (FIRST_MODEL, CRAFTED)

    def test_an_owner_who_names_models_alone_does_not_take_the_apps_own(self) -> None:
        with pytest.raises(ProtocolViolation) as refused:
            check_first_model({OWN}, Policy.own(4, first_models=(CRAFTED,)), AppModel(sha256=OWN))
        assert refused.value.check == FIRST_MODEL

    @pytest.mark.parametrize("first_models", [(), ("app ",), ("AB" * 32,), ("ab",), (1,)])
    def test_a_rule_that_names_nothing_is_no_policy(self, first_models: Any) -> None:
        with pytest.raises(KitError) as refused:
            Policy.own(4, first_models=first_models)
        assert refused.value.check == "first-models"


class TestLaterModels:
    """A model has the tensors of those before it in its run."""

    def refused(self, chain: Chain, **changes: Any) -> bool:
        task = make_task(9, **changes)
        check_layout(task, SAME, chain)
        try:
            check_layout(task, OTHER, chain)
        except ProtocolViolation as refusal:
            return refusal.check == OTHER_LAYOUT
        return False

    def test_compared_with_complete_trainings_of_the_run(self, notary: Notary) -> None:
        notary.sum(1, run="another")
        notary.sum(2, signers=(1,), complete=False)
        notary.sum(3, message_type="evaluate", encoding=first_encoding(CodecSettings(w_max=100), None, 4))
        assert not self.refused(chain_of(notary)), "of this run only what a quorum signed, and only trainings, count"
        notary.sum(4)
        assert self.refused(chain_of(notary))

    def test_by_the_function_of_the_app(self, notary: Notary) -> None:
        notary.sum(1)
        chain = chain_of(notary)
        assert self.refused(chain, message_type="train.default")
        assert self.refused(chain, message_type="evaluate"), "with any training"
        assert not self.refused(chain, message_type="train.large")
        assert not self.refused(chain, message_type="query.statistics"), "sums of queries count together"

    def test_an_evaluation_may_leave_out_control_variates(self, notary: Notary) -> None:
        controls = (*LAYOUT.specs, *(replace(spec, name=f"control/{spec.name}") for spec in LAYOUT.specs))
        encoding = first_encoding(CodecSettings(w_max=100), Layout(specs=controls), 4)
        notary.sum(1, encoding=encoding)
        assert self.refused(chain_of(notary), message_type="evaluate"), "but nothing else"

    def test_without_a_model(self, notary: Notary) -> None:
        notary.sum(1)
        check_layout(make_task(2, message_type="query", model=None), None, chain_of(notary))


def test_two_models_of_one_version(notary: Notary) -> None:
    """Pasquini et al. 2022: a model under which all but one send nothing, and a normal one for that one."""
    settings = JobSettings(asynchrony="buffered", train_seconds=600.0)
    task = buffered((0, OWN), (0, OWN), (0, CRAFTED), (0, OWN)).model_copy(update={"settings": settings.for_clients()})
    owner = SimulatedMember(client_id=1, roster=notary.roster, policy=Policy.own(4))
    with pytest.raises(ProtocolViolation) as refused:
        check_task(task, owner, task.app_sha256, AppAgreement(run_config=task.run_config, settings=settings))
    assert refused.value.check == VERSION_FORK
