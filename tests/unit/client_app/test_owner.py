"""What a client's owner lets a run ask: config, bounds, how often, and of which clients together."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from fastapi import Response
from hypothesis import given
from hypothesis import strategies as st
from support.agents import agent_running, until
from support.records import PROTECTION, Notary

from client_app.agent.agent import Agent, Pauses
from client_app.exchange.client import Client
from client_app.exchange.task_reading import MAX_TASK_BYTES
from client_app.exchange.withdrawal import withdrawal_for
from client_app.records.ledger import Ledger
from client_app.records.ledger_entries import LEDGER_FILE, RefusedEntry, TaskEntry, read_entries
from fedcore.codec import CodecSettings, first_encoding, rotation_seed
from fedcore.data.regression.mixed import MixedStep
from fedcore.data.regression.question import DesignColumn, Factor, RegressionQuery
from fedcore.data.regression.step import RegressionStep
from fedcore.data.reports.statistics_report import StatisticsReport
from fedcore.data.statistics import StatisticsQuery
from fedcore.errors import ProtocolViolation
from fedcore.federation import ClientKit, Member, Policy, Roster
from fedcore.federation.admission.app_agreement import AppAgreement, check_planned
from fedcore.federation.admission.owner import AgreedSum, ids_to_text
from fedcore.federation.admission.releases import MOST_SCALES, agree, smallest_group
from fedcore.federation.admission.tasks import check_frequency, check_task
from fedcore.federation.transcript import Chain, keys_of
from fedcore.flower.columns.plan import PlannedQuestion, StudyPlan
from fedcore.flower.regression import step_config
from fedcore.run.encoding_plan import codec_settings
from fedcore.run.quorum import protection_for, quorum_for
from fedcore.run.settings import JobSettings
from fedcore.state import Layout, TensorSpec
from fedcore.wire.tasks import ModelRef, Task
from fedcore.wire.uploads import WithdrawalReason, WithdrawIn
from tests.support.raising import raises

Make = Callable[..., Task]
Script = Any  # support.scripted.Scripted
APP = "ab" * 32
CONFIG = {"num-server-rounds": 3, "lr": 0.1, "optimizer": "sgd"}
SETTINGS = JobSettings(w_max=100)
AGREED = AppAgreement(run_config=CONFIG, settings=SETTINGS)
FOUR_SUMS = [(1, 2, 3, 6), (4, 5, 6), (2, 3, 7, 8), (4, 5, 7, 8)]


def check(task: Task, kit: ClientKit, agreed: AppAgreement = AGREED, **policy: Any) -> None:
    """As the agent does, with the policy of a kit from `provision`, changed."""
    check_task(task, replace(kit, policy=replace(Policy.default(4), **policy)), APP, agreed)


def refusal(task: Task, kit: ClientKit, agreed: AppAgreement = AGREED, **policy: Any) -> ProtocolViolation:
    with pytest.raises(ProtocolViolation) as refused:
        check(task, kit, agreed, **policy)
    withdrawal = withdrawal_for(refused.value)
    assert withdrawal is not None
    assert withdrawal.subject == refused.value.subject
    return refused.value


@pytest.fixture
def make(make_task: Make) -> Make:
    """A task of the app as it stands, and what is changed."""
    return lambda **changes: make_task(**{"run_config": CONFIG, "settings": SETTINGS.for_clients(), **changes})


class TestConfig:
    def test_what_the_app_says_needs_no_leave(self, make: Make, kits: dict[int, ClientKit]) -> None:
        check(make(), kits[1], allow_config={})

    @pytest.mark.parametrize("tried", [50, 75, 87, 93, 96, 98, 99])
    def test_a_bisection_of_w_max_gets_one_answer(self, make: Make, kits: dict[int, ClientKit], tried: int) -> None:
        """Each value asks whether the client has more examples than that."""
        encoding = first_encoding(CodecSettings(w_max=tried), make().encoding.layout, 4)  # type: ignore[union-attr]
        task = make(settings={**SETTINGS.for_clients(), "w-max": tried}, encoding=encoding)
        refused = refusal(task, kits[1])
        assert (refused.check, refused.subject) == ("config-not-allowed", "fedcore.w-max")
        for part in (str(tried), "100", f'allow-config."fedcore.w-max" = [{tried}, {tried}]'):
            assert part in str(refused)
        check(task, kits[1], allow_config={"fedcore.w-max": (10, 99)})

    @pytest.mark.parametrize("key", ["metric-max", "max-metrics", "clip-norm", "dp-noise-multiplier"])
    def test_nor_do_those_of_other_settings(self, make: Make, kits: dict[int, ClientKit], key: str) -> None:
        refused = refusal(make(settings={**SETTINGS.for_clients(), key: 0.7}), kits[1])
        assert (refused.check, refused.subject) == ("config-not-allowed", f"fedcore.{key}")

    def test_an_encoding_behind_the_settings_back(self, make: Make, kits: dict[int, ClientKit]) -> None:
        for changes in ({"w_max": 50}, {"w_max": 100, "metric_max": 0.5}, {"w_max": 100, "clip_norm": 1.0}):
            encoding = first_encoding(CodecSettings(**changes), make().encoding.layout, 4)  # type: ignore
            assert refusal(make(encoding=encoding), kits[1]).check == "encoding-off-settings"

    def test_a_rotation_that_the_server_chose(self, make: Make, kits: dict[int, ClientKit]) -> None:
        """In two bases of its choice it would learn one update twice."""
        settings, task = replace(SETTINGS, field_bits=8, upload_fraction=0.25), make()
        codec, layout = codec_settings(settings, "train", 4), task.encoding.layout  # type: ignore[union-attr]
        assert task.model is not None
        for model, is_refused in ((task.model.sha256, False), ("00" * 32, True)):
            encoding = first_encoding(codec, layout, 4, rotation=rotation_seed(model))
            asked = make(settings=settings.for_clients(), encoding=encoding)
            if is_refused:
                refused = refusal(asked, kits[1], allow_config={"*": True})
                assert refused.check == "encoding-off-settings"
                assert "rotated in another way" in str(refused)
            else:
                check(asked, kits[1], allow_config={"*": True})

    def test_settings_that_are_not_all_there(self, make: Make, kits: dict[int, ClientKit]) -> None:
        less = {key: value for key, value in SETTINGS.for_clients().items() if key != "w-max"}
        assert refusal(make(settings=less), kits[1], allow_config={"*": True}).check == "config-not-allowed"
        more = {**SETTINGS.for_clients(), "w-maximum": 3}
        assert refusal(make(settings=more), kits[1], allow_config={"*": True}).check == "config-not-allowed"

    @pytest.mark.parametrize(
        ("rule", "fitting", "other"),
        [
            (None, 0.1, 0.05),
            ((0.01, 0.1), 0.05, 0.2),
            ((0.01, 0.1), 0.1, "fast"),
            ((0.0, 1.0), 0.5, True),
            ((0.0, 1.0), 0.5, float("nan")),
            (("fast", "slow"), "fast", "medium"),
            (("fast", "slow"), "slow", 0.1 + 0.2),
            (True, "whatever", None),
        ],
    )
    def test_a_rule_says_which_values(
        self, make: Make, kits: dict[int, ClientKit], rule: Any, fitting: Any, other: Any
    ) -> None:
        policy = {"allow_config": {} if rule is None else {"lr": rule}}
        check(make(run_config={**CONFIG, "lr": fitting}), kits[1], **policy)
        if other is not None:
            refused = refusal(make(run_config={**CONFIG, "lr": other}), kits[1], **policy)
            assert (refused.check, refused.subject) == ("config-not-allowed", "lr")

    @pytest.mark.parametrize("lr", [-0.1, 1, True, "0.1"])
    def test_a_value_that_only_looks_alike(self, make: Make, kits: dict[int, ClientKit], lr: Any) -> None:
        assert refusal(make(run_config={**CONFIG, "lr": lr}), kits[1]).check == "config-not-allowed"

    def test_a_key_more_and_a_key_less(self, make: Make, kits: dict[int, ClientKit]) -> None:
        refused = refusal(make(run_config={**CONFIG, "patient": 17}), kits[1])
        assert (refused.subject, "nothing" in str(refused)) == ("patient", True)
        refused = refusal(make(run_config={"num-server-rounds": 3, "lr": 0.1}), kits[1])
        assert (refused.check, refused.subject) == ("config-not-allowed", ""), "only what the server itself sent"

    def test_a_key_that_cannot_stand_in_a_log(self, make: Make, kits: dict[int, ClientKit]) -> None:
        assert refusal(make(run_config={**CONFIG, "\x1b[2J": 1}), kits[1]).subject == ""
        assert len(refusal(make(run_config={**CONFIG, "k" * 9000: 1}), kits[1]).subject) == 200

    def test_a_message_may_say_otherwise_than_the_run(self, make: Make, kits: dict[int, ClientKit]) -> None:
        """A strategy that halves the learning rate; what the run itself may set is as narrow as before."""
        check(make(configs={"config": {"lr": 0.1, "server-round": 7}}), kits[1])
        check(make(configs={"config": {"lr": 0.05}}), kits[1])
        halved = make(run_config={**CONFIG, "lr": 0.05}, configs={"config": {"lr": 0.05}})
        assert refusal(halved, kits[1]).check == "config-not-allowed"

    @pytest.mark.parametrize("sent", [0.2, 0.02, "0.05", True, float("nan"), [], [0.05], None])
    def test_a_message_cannot_say_what_the_owner_rules_out(
        self, make: Make, kits: dict[int, ClientKit], sent: Any
    ) -> None:
        """Neither under a key of the run config nor under one that it does not have."""
        for key, config in (("lr", CONFIG), ("rate", {**CONFIG, "lr": 0.05})):
            rules: dict[str, Any] = {"allow_config": {"lr": (0.05, 0.1), key: (0.05, 0.1)}}
            check(make(run_config=config, configs={"config": {key: 0.05}}), kits[1], **rules)
            refused = refusal(make(run_config=config, configs={"other": {}, "config": {key: sent}}), kits[1], **rules)
            assert refused.check == "message-not-allowed"
            assert refused.subject.startswith(f"{key}=")

    def test_an_owner_pins_a_key_of_messages(self, make: Make, kits: dict[int, ClientKit]) -> None:
        pinned: dict[str, Any] = {"allow_config": {"lr": (0.1, 0.1), "mode": ("fast",), "deep": (0, 0)}}
        said = {"lr": 0.1, "mode": "fast", "deep": False}
        run = {**CONFIG, "mode": "fast", "deep": False}
        agreed = replace(AGREED, run_config=run)
        check(make(run_config=run, configs={"config": said}), kits[1], agreed, **pinned)
        for key, value in {"lr": 0.05, "mode": "slow", "deep": True}.items():
            task = make(run_config=run, configs={"config": {**said, key: value}})
            assert refusal(task, kits[1], agreed, **pinned).check == "message-not-allowed"

    def test_a_rule_for_all_keys_is_about_those_of_the_run(self, make: Make, kits: dict[int, ClientKit]) -> None:
        rule: dict[str, Any] = {"allow_config": {"*": (0.0, 1.0)}}
        check(make(configs={"config": {"lr": 0.05, "server-round": 7}}), kits[1], **rule)
        assert refusal(make(configs={"config": {"lr": 7.0}}), kits[1], **rule).check == "message-not-allowed"

    def test_the_owner_reads_what_a_message_changed(self, make: Make) -> None:
        task = make(run_config={**CONFIG, "lr": 0.2}, configs={"config": {"lr": 0.05, "server-round": 7}})
        assert AGREED.changed(task) == {"lr": "0.2", "lr (message)": "0.05"}

    def test_rounds_are_the_runs_to_choose_by_default(self, make: Make, kits: dict[int, ClientKit]) -> None:
        check(make(run_config={**CONFIG, "num-server-rounds": 500}), kits[1])
        assert refusal(make(run_config={**CONFIG, "num-server-rounds": 10**6}), kits[1]).subject == "num-server-rounds"


class TestBounds:
    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({"model": ModelRef(sha256="0" * 64, size=2**50)}, "model-too-large"),
            ({"seconds": 1e12}, "too-long"),
            ({"seconds": 1799.0}, "too-short"),
        ],
    )
    def test_an_absurd_task(self, make: Make, kits: dict[int, ClientKit], changes: dict[str, Any], name: str) -> None:
        assert refusal(make(**changes), kits[1]).check == name

    def test_more_tensors_than_the_owner_reads(self, make: Make, kits: dict[int, ClientKit]) -> None:
        layout = Layout(specs=tuple(TensorSpec(name=f"t{i:03}", dtype="F32", shape=(1,)) for i in range(101)))
        task = make(encoding=first_encoding(CodecSettings(w_max=100), layout, 4))
        assert refusal(task, kits[1], max_tensors=100).check == "too-many-tensors"
        check(task, kits[1], max_tensors=101)

    def test_trees_deeper_than_the_owner_allows(self, make: Make, kits: dict[int, ClientKit]) -> None:
        encoding = first_encoding(codec_settings(SETTINGS, "query.tree_sums", 4), None, 4)
        configs = {"config": {"trees-max-depth": 6, "trees-least-rows": 20}}
        task = make(message_type="query.tree_sums", configs=configs, encoding=encoding)
        check(task, kits[1], max_tree_depth=6, min_rows_in_node=20)
        check(task.model_copy(update={"message_type": "query.age"}), kits[1], max_tree_depth=0, min_rows_in_node=99)
        with raises(ProtocolViolation, check="tree-too-deep", asked=6, allowed=5):
            check(task, kits[1], max_tree_depth=5)
        with raises(ProtocolViolation, check="node-too-small", asked=20, allowed=21):
            check(task, kits[1], min_rows_in_node=21)

    @pytest.mark.parametrize("depth", [7, 6.5, True])
    def test_no_record_of_a_message_states_more(self, make: Make, kits: dict[int, ClientKit], depth: float) -> None:
        """The app reads all of them together."""
        first = {"trees-max-depth": 0, "trees-least-rows": 99}
        task = make(message_type="query.tree_sums", configs={"a": first, "b": {"trees-max-depth": depth}})
        with raises(ProtocolViolation, check="tree-too-deep"):
            check(task, kits[1], max_tree_depth=0)

    async def test_a_task_of_300000_tensors_is_not_read(self, script: Script, client: Client) -> None:
        """Its layout alone would take seconds."""
        document = json.loads(script.task.model_dump_json())
        document["encoding"]["layout"] = "of many"
        tensors = ",".join(['["t","F32",[1]]'] * 300_000)
        body = json.dumps(document).replace('"of many"', f"[{tensors}]")
        assert len(body) < MAX_TASK_BYTES
        script.lies["task"] = lambda _: Response(body, media_type="application/json")
        script.tasks.append(script.task)
        started = time.process_time()
        async with script.serving(), agent_running(client) as running:
            await until(lambda: script.withdrawals, running)
        assert time.process_time() - started < 5, "less than one in truth; to read it takes more than ten seconds"
        [withdrawal] = script.withdrawals
        assert (withdrawal.reason, withdrawal.check) == (WithdrawalReason.POLICY, "too-many-tensors")
        assert "GET model" not in script.requests

    def test_exchanges_of_a_run_and_of_a_day(self, make: Make, ledger: Ledger) -> None:
        policy = replace(Policy.default(4), max_exchanges_per_run=2, max_exchanges_per_day=3)
        for exchange in (1, 2):
            check_frequency(make(exchange=exchange), policy, ledger)
            ledger.enter(make().run, exchange)
        with raises(ProtocolViolation, check="too-many-exchanges", asked=2, allowed=2):
            check_frequency(make(exchange=3), policy, ledger)
        check_frequency(make(run="another"), policy, ledger)
        ledger.enter("another", 1)
        with raises(ProtocolViolation, check="too-many-exchanges", asked=3, allowed=3):
            check_frequency(make(run="a third"), policy, ledger)


def chain_of(*sums: Sequence[int], complete: bool = True, **task: Any) -> Chain:
    """A transcript with sums over these clients."""
    notary, chain = Notary.of(9), Chain()
    for exchange, survivors in enumerate(sums, start=1):
        size = len(survivors)
        protection = PROTECTION.model_copy(update={"degree": size - 1, "threshold": size})
        task |= {"cohort": list(survivors), "quorum": size, "protection": protection}
        signed = notary.sum(exchange, survivors=survivors, signers=survivors, complete=complete, **task)
        chain.extend(signed, keys_of([notary.roster]))
    return chain


class TestReleases:
    STRICT = Policy.default(20)

    def agree(
        self,
        ledger: Ledger,
        task: Task,
        survivors: Collection[int],
        chain: Chain | None = None,
        present: Collection[int] = (),
        planned: str = "",
        **encoding: Any,
    ) -> None:
        found = task.encoding
        assert found is not None
        agree(
            task, replace(found, **encoding), tuple(survivors), self.STRICT, ledger, chain or Chain(),
            present=present, planned=planned,
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("sums", "smallest"),
        [
            ([], 0),
            ([range(1, 5)], 4),
            ([range(1, 5), range(1, 5)], 4),
            ([range(1, 5), range(1, 4)], 1),
            ([range(1, 5), range(5, 8)], 3),
            ([range(1, 5), range(1, 8)], 3),
            ([range(1, 11), range(1, 8), range(1, 5)], 3),
            ([range(1, 7), range(4, 10)], 3),
            ([range(1, 7), range(6, 12)], 1),
            ([(1, 2, 3, 4, 5, 6), (1, 2, 3, 7, 8, 9), (1, 4, 5, 7, 8, 10)], 1),
            (FOUR_SUMS, 1),
        ],
    )
    def test_the_smallest_group_that_sums_can_tell_apart(self, sums: list[Collection[int]], smallest: int) -> None:
        assert smallest_group(map(frozenset, sums)) == smallest

    @given(st.lists(st.frozensets(st.integers(1, 9)), max_size=6))
    def test_a_group_is_of_members_that_are_in_the_same_of_the_sums(self, sums: list[frozenset[int]]) -> None:
        members = {member for survivors in sums for member in survivors}
        groups = Counter(tuple(member in survivors for survivors in sums) for member in members)
        assert smallest_group(sums) == min(groups.values(), default=0)

    def test_sums_far_apart_in_pairs_are_refused_together(self, make: Make, ledger: Ledger) -> None:
        """Four sums that differ by three clients or more give the update of client 1."""
        self.agree(ledger, make(), FOUR_SUMS[0])
        for exchange, survivors in enumerate(FOUR_SUMS[1:3], start=2):
            with raises(ProtocolViolation, check="differencing", allowed=3):
                self.agree(ledger, make(exchange=exchange), survivors)
        self.agree(ledger, make(exchange=4), FOUR_SUMS[3])

    @pytest.mark.parametrize("complete", [True, False])
    def test_sums_of_others_count(self, make: Make, ledger: Ledger, complete: bool) -> None:
        chain = chain_of((4, 5, 6, 7, 8, 9), (4, 5, 6), model=make().model, complete=complete)
        with raises(ProtocolViolation, check="differencing", asked=1, allowed=3):
            self.agree(ledger, make(), (1, 2, 3, 4), chain)
        self.agree(ledger, make(message_type="evaluate"), (1, 2, 3, 4), chain)
        self.agree(ledger, make(), (1, 2, 3, 7, 8, 9), chain)
        self.agree(ledger, make(exchange=2), (1, 2, 3, 7, 8, 9), chain)

    def test_who_may_collude_does_not_count(self, make: Make, ledger: Ledger) -> None:
        protection = make().protection.model_copy(update={"corrupt": 1})  # type: ignore[union-attr]
        self.agree(ledger, make(protection=protection), range(1, 5))
        with raises(ProtocolViolation, check="differencing", asked=3, allowed=4):
            self.agree(ledger, make(protection=protection), range(1, 8))
        self.agree(ledger, make(protection=protection), range(1, 9))

    def test_the_same_question_again_and_no_other(self, make: Make, ledger: Ledger) -> None:
        task = make()
        self.agree(ledger, task, range(1, 11))
        self.agree(ledger, task, range(1, 11))
        for survivors in (range(2, 11), range(1, 12), range(1, 10), range(2, 12)):
            with raises(ProtocolViolation, check="differencing", allowed=3):
                self.agree(ledger, task, survivors)
        self.agree(ledger, task, range(1, 14))

    def test_scales_that_were_too_small_may_be_mended(self, make: Make, ledger: Ledger) -> None:
        """A client whose update did not fit has locked the first sum, one whose update did gives the very same."""
        task = make()
        self.agree(ledger, task, range(1, 5))
        widths: list[dict[str, Any]] = [{"field_bits": 16}, {"field_bits": 32}, {"n_max": 5}, {"failures": 1}]
        for exchange, more in enumerate(widths, start=2):
            again = make(exchange=exchange, attempt=exchange)
            self.agree(ledger, again, range(1, 5), scales=(2.0 ** (6 + 6 * exchange),), **more)

    def test_a_scan_of_scales_ends_early(self, make: Make, ledger: Ledger) -> None:
        """In whatever order, and over runs and restarts."""
        for exchange in range(1, MOST_SCALES + 1):
            for _ in range(2):  # each of them once more is the same question
                run = make(run=f"run {exchange}")
                self.agree(ledger, run, range(1, 5), scales=(2.0 ** ((-1) ** exchange * exchange),))
        with raises(ProtocolViolation, check="differencing", asked=None, match=r"\b5\b"):
            self.agree(ledger, make(run="another"), range(1, 5), scales=(1.0,))
        self.agree(ledger, make(run="another"), range(1, 8), scales=(1.0,))

    def test_where_elements_are_cut_off_the_scales_stay(self, make: Make, ledger: Ledger) -> None:
        """Too small ones make a failure of an update, and two sums would differ by that client."""
        warn = replace(make().encoding.settings, clipping="warn")  # type: ignore[union-attr]
        self.agree(ledger, make(), range(1, 5), settings=warn)
        with raises(ProtocolViolation, check="differencing", asked=None, match=re.escape(make().run)):
            self.agree(ledger, make(run="another"), range(1, 5), settings=warn, scales=(4.0,))
        self.agree(ledger, make(run="another"), range(1, 5), settings=warn)

    @pytest.mark.parametrize("clipping", ["repeat", "fail", "warn"])
    def test_wider_fields_for_the_same_clients_alone(self, make: Make, ledger: Ledger, clipping: str) -> None:
        """After a sum that was mostly rounding: how finely an update is rounded is no difference by a client."""
        settings = replace(make().encoding.settings, clipping=clipping)  # type: ignore[union-attr]
        self.agree(ledger, make(), range(1, 5), settings=settings, field_bits=16)
        self.agree(ledger, make(exchange=2, attempt=2), range(1, 5), settings=settings, field_bits=32)
        with pytest.raises(ProtocolViolation) as refused:
            self.agree(ledger, make(exchange=3, attempt=3), range(1, 6), settings=settings, field_bits=64)
        assert refused.value.check == "differencing"

    @pytest.mark.parametrize("change", [{"w_max": 50}, {"clip_norm": 1.0}, {"metric_max": 4.0}, {"clipping": "fail"}])
    def test_other_bounds_are_another_question(self, make: Make, ledger: Ledger, change: dict[str, Any]) -> None:
        self.agree(ledger, make(), range(1, 5))
        other = replace(make().encoding.settings, **change)  # type: ignore[union-attr]
        with raises(ProtocolViolation, check="differencing", asked=None, match=re.escape(make().run)):
            self.agree(ledger, make(run="another"), range(1, 5), settings=other)

    def test_every_earlier_sum_counts_and_survives_a_restart(self, make: Make, ledger: Ledger) -> None:
        self.agree(ledger, make(), range(1, 5))
        self.agree(ledger, make(exchange=2), range(1, 9))
        with pytest.raises(ProtocolViolation, match="differencing"):
            self.agree(ledger, make(exchange=3), range(1, 6))

    def test_another_model_or_purpose_is_another_matter(self, make: Make, ledger: Ledger) -> None:
        self.agree(ledger, make(), range(1, 5))
        self.agree(ledger, make(model=ModelRef(sha256="1" * 64, size=1)), range(1, 6))
        self.agree(ledger, make(message_type="evaluate"), range(1, 6))
        with pytest.raises(ProtocolViolation, match="differencing"):
            self.agree(ledger, make(message_type="train.again", encoding=make().encoding), range(1, 6))

    def test_no_more_of_one_model_than_the_owner_allows(self, make: Make, ledger: Ledger) -> None:
        for _ in range(10):
            check_frequency(make(), self.STRICT, ledger)
            self.agree(ledger, make(), range(1, 5))
        with pytest.raises(ProtocolViolation, match="too-many-releases"):
            check_frequency(make(), self.STRICT, ledger)
        check_frequency(make(), Policy.own(4), ledger)

    def test_queries_count_together_whatever_they_ask(self, make: Make, ledger: Ledger) -> None:
        """The message, its kind and a model that comes along are the server's to change."""
        other = ModelRef(sha256="cd" * 32, size=100)
        self.agree(ledger, make(message_type="query.age"), range(1, 7))
        for changes in (
            {"message_type": "query.age"},
            {"message_type": "query.weight"},
            {"message_type": "query", "model": other},
            {"message_type": "query", "model": None, "configs": {"config": {"bins": 7}}},
            {"message_type": "query.age", "run": "another"},
        ):
            with raises(ProtocolViolation, check="differencing", asked=1, allowed=3):
                self.agree(ledger, make(**changes), range(1, 6))
            self.agree(ledger, make(**changes), range(1, 7))
        self.agree(ledger, make(message_type="evaluate"), range(1, 6))

    def test_queries_of_others_count_whatever_their_model(self, make: Make, ledger: Ledger) -> None:
        chain = chain_of((4, 5, 6, 7, 8, 9), (4, 5, 6), model=make().model, message_type="query.age")
        with pytest.raises(ProtocolViolation, match="differencing"):
            self.agree(ledger, make(message_type="query.weight", model=None), (1, 2, 3, 4), chain)

    @pytest.mark.parametrize(("present", "refused"), [((1,), False), ((7, 8), True), ((), True)])
    def test_a_query_that_nobody_signed_stands_in_no_ones_way(
        self, make: Make, ledger: Ledger, present: Collection[int], refused: bool
    ) -> None:
        """Once so many of its cohort go on, one of six, whose shares are all needed; a complete one always does."""
        chain = chain_of((1, 2, 3, 4, 5, 6), complete=False, message_type="query.age")
        task = make(message_type="query.age", model=None)
        if refused:
            with pytest.raises(ProtocolViolation, match="differencing"):
                self.agree(ledger, task, range(1, 8), chain, present)
        else:
            self.agree(ledger, task, range(1, 8), chain, present)
        chain = chain_of((1, 2, 3, 4, 5, 6), message_type="query.age")
        with pytest.raises(ProtocolViolation, match="differencing"):
            self.agree(ledger, task, range(1, 8), chain, present)

    def test_no_more_queries_than_the_owner_allows(self, make: Make, ledger: Ledger) -> None:
        policy = replace(self.STRICT, max_queries=12)
        for number in range(12):
            task = make(message_type=f"query.number{number}")
            check_frequency(task, policy, ledger)
            self.agree(ledger, task, range(1, 5))
        with pytest.raises(ProtocolViolation, match=r"too-many-releases: .* \(max-queries\)"):
            check_frequency(make(message_type="query"), policy, ledger)
        check_frequency(make(message_type="evaluate"), policy, ledger)

    def test_a_planned_question_is_answered_as_often_as_the_plan_says(self, make: Make, ledger: Ledger) -> None:
        plan = StudyPlan((self.question("first", queries=3), self.question("other", runs=2)))
        task = make(message_type="query.first")
        for _ in range(3):
            name = check_planned(task, plan, ledger)
            self.agree(ledger, task, range(1, 5), planned=name)
        with raises(ProtocolViolation, check="not-planned"):
            check_planned(task, plan, ledger)
        for run in ("a", "b", "b"):
            task = make(message_type="query.other", run=run)
            self.agree(ledger, task, range(1, 5), planned=check_planned(task, plan, ledger))
        with raises(ProtocolViolation, check="not-planned"):
            check_planned(make(message_type="query.other", run="c"), plan, ledger)
        with raises(ProtocolViolation, check="not-planned"):
            check_planned(make(message_type="query.third"), plan, ledger)
        assert check_planned(make(message_type="train"), plan, ledger) == ""
        assert Counter(one.question for one in ledger.released("query", "")) == {"first": 3, "other": 3}

    def test_what_tells_of_each_site_needs_a_plan(self, make: Make, ledger: Ledger) -> None:
        one = DesignColumn(name="age", factors=(Factor(column="age"),))
        query = RegressionQuery(family="linear", target="y", target_name="y", columns=(one,), sites="random")
        step = RegressionStep(query=query, center=(0.0, 0.0), scale=(1.0, 1.0), coefficients=(0.0, 0.0))
        for plain, allowed in ((step, True), (MixedStep(step=step, spread=1.0), False)):
            task = make(message_type="query.regression", configs={"regression": dict(step_config(plain))})
            if allowed:
                assert check_planned(task, None, ledger) == ""
            else:
                with raises(ProtocolViolation, check="not-planned"):
                    check_planned(task, None, ledger)
            planned = StudyPlan((self.question("regression"),))
            assert check_planned(task, planned, ledger) == "regression"

    @staticmethod
    def question(name: str, *, queries: int = 9, runs: int = 1) -> PlannedQuestion:
        class Named(PlannedQuestion):
            def covers(self, message_type: str, config: Mapping[str, Any]) -> bool:
                return message_type == f"query.{self.name}"

        query = StatisticsQuery.of({"age": (0.0, 1.0)})
        return Named(name=name, text="", question=query, queries=queries, runs=runs, report=StatisticsReport)

    async def test_nothing_is_signed_for_a_sum_that_differs_by_one(
        self, script: Script, client: Client, allow: Callable[..., Client]
    ) -> None:
        model, others = script.task.model.sha256, ids_to_text({1, 2, 3})
        sum_of = {"purpose": "train", "model": model, "survivors": others}
        earlier = AgreedSum(run="r", exchange=1, scales=(), bounds="", **sum_of)
        client.ledger.release(earlier)
        strict = allow(client, min_cohort=3, min_threshold=3, allow_differencing=False)
        async with script.serving():
            await Agent(strict, Pauses(refusal=0.0, farewell=60.0)).take_part(script.task)
        assert [(item.reason, item.check) for item in script.withdrawals] == [(WithdrawalReason.POLICY, "differencing")]
        assert "PUT manifest" in script.requests
        assert "PUT consistency" not in script.requests

    async def test_a_sum_counts_from_the_signature_on(
        self, script: Script, client: Client, allow: Callable[..., Client]
    ) -> None:
        """The others may unmask as soon as this client has signed, and it may never hear of that."""
        seen: list[int] = []
        original = script.take

        async def watched(route: str, body: bytes) -> Any:
            if route == "consistency":
                seen.append(len(client.ledger.released("train", script.task.model.sha256)))
            return await original(route, body)

        script.take = watched
        async with script.serving():
            await Agent(client, Pauses(refusal=0.0, farewell=60.0)).take_part(script.task)
        assert seen == [1]


class TestRoster:
    """How many may collude counts from the federation, not from the cohort that the server picks."""

    @staticmethod
    def kit(kits: dict[int, ClientKit], members: int) -> ClientKit:
        """Client 1 of a federation of `members`, with the policy that `provision` writes for it."""
        keys = (Ed25519PrivateKey.generate().public_key().public_bytes_raw() for _ in range(members))
        listed = [Member(id=i, name=f"client-{i}", public_key=key) for i, key in enumerate(keys, start=1)]
        roster = Roster.sign("testing", listed, Ed25519PrivateKey.generate())
        return replace(kits[1], roster=roster, policy=Policy.default(members))

    @staticmethod
    def task(make: Make, cohort: int, members: int | None) -> Task:
        """What an honest server asks of `cohort` clients of a federation of `members`, with its default settings."""
        return make(
            cohort=list(range(1, cohort + 1)),
            quorum=quorum_for(SETTINGS, cohort, 3, members),
            protection=protection_for(SETTINGS, cohort, 3, members),
            encoding=first_encoding(CodecSettings(w_max=100), make().encoding.layout, cohort),  # type: ignore[union-attr]
        )

    @pytest.mark.parametrize(("members", "cohort"), [(4, 4), (4, 3), (19, 3), (20, 4), (100, 8), (100, 100)])
    def test_honest_cohorts_of_default_federations(
        self, make: Make, kits: dict[int, ClientKit], members: int, cohort: int
    ) -> None:
        check_task(self.task(make, cohort, members), self.kit(kits, members), APP, AGREED)

    def test_two_colluders_and_a_victim_of_a_hundred(self, make: Make, kits: dict[int, ClientKit]) -> None:
        kit = self.kit(kits, 100)
        lying = self.task(make, 3, 3)  # as if the cohort were the federation
        with raises(ProtocolViolation, check="corrupt-below-minimum", asked=0, allowed=5):
            check_task(lying, kit, APP, AGREED)
        assert lying.protection is not None
        for quorum, corrupt in ((3, 5), (7, 5)):
            protection = lying.protection.model_copy(update={"corrupt": corrupt})
            with pytest.raises(ProtocolViolation, match="cohort-below-minimum"):
                check_task(lying.model_copy(update={"quorum": quorum, "protection": protection}), kit, APP, AGREED)

    def test_the_quorum_of_a_cohort_of_a_large_federation(self) -> None:
        assert [quorum_for(JobSettings(), n, 3, 100) for n in (8, 9, 12, 40)] == [8, 8, 9, 27]
        assert [quorum_for(JobSettings(), n, 3, 4) for n in (3, 4)] == [3, 3]
        for n in (8, 20, 60):
            quorum, protection = quorum_for(JobSettings(), n, 3, 100), protection_for(JobSettings(), n, 3, 100)
            assert protection is not None
            assert protection.corrupt == 5
            assert 2 * quorum > n + 5
            assert quorum - 5 >= 3


async def test_the_owner_can_read_what_was_asked_and_refused(
    script: Script, client: Client, allow: Callable[..., Client], make: Make
) -> None:
    script.task = make(settings={**SETTINGS.for_clients(), "w-max": 50}, run_config={"lr": 2.0})
    async with script.serving():
        await Agent(allow(client, allow_config={"lr": True}), Pauses(refusal=0.0, farewell=60.0)).take_part(script.task)
    [withdrawal] = script.withdrawals
    assert (withdrawal.check, withdrawal.subject) == ("config-not-allowed", "fedcore.w-max")
    path = client.state_dir / LEDGER_FILE
    asked, refused = (
        entry for entry in read_entries(path, path.read_bytes()) if isinstance(entry, TaskEntry | RefusedEntry)
    )
    assert isinstance(asked, TaskEntry)
    assert asked.changed == {"lr": "2.0", "fedcore.w-max": "50"}
    assert isinstance(refused, RefusedEntry)
    assert (refused.check, refused.subject) == ("config-not-allowed", "fedcore.w-max")


def test_only_checks_of_a_task_tell_their_numbers(make: Make, kits: dict[int, ClientKit]) -> None:
    refused = refusal(make(seconds=7200.0), kits[1], max_seconds=3600.0)
    said = withdrawal_for(refused)
    assert said is not None
    assert (said.check, said.asked, said.allowed) == ("too-long", 7200.0, 3600.0)
    assert said.why == "too-long (the run: 7200, the policy: 3600)"
    of_data = ProtocolViolation("inconsistent-survivors", "whatever it says", asked=17, allowed=3)
    assert withdrawal_for(of_data) == WithdrawIn(
        reason=WithdrawalReason.PROTOCOL_VIOLATION, check="inconsistent-survivors"
    )
