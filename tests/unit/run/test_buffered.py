"""Buffered exchanges: what their tasks say, who may be in them, and that no update is in two sums."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pydantic
import pytest
from support.records import LAYOUT, Notary, make_task

from fedcore.codec import CodecSettings, decode, encode, first_encoding
from fedcore.errors import ConfigurationError, ProtocolViolation, RoundFailed, UsageError
from fedcore.federation import Policy
from fedcore.federation.admission.releases import agree, check_versions
from fedcore.federation.admission.simulated import MemoryHistory
from fedcore.federation.admission.tasks import check_start
from fedcore.federation.transcript import Chain, SignedRecord, keys_of
from fedcore.run.buffer import NamedUpdates, WorkBook, buffer_seconds, buffer_size, model_of, staleness_metrics
from fedcore.run.exchange import ExchangeRequest
from fedcore.run.settings import JobSettings
from fedcore.state import ModelState
from fedcore.wire.tasks import Buffer, Task, Version, staleness_factor
from tests.support.raising import raises

POLICY = Policy(min_cohort=3, min_threshold=3)
SETTINGS = JobSettings(asynchrony="buffered").for_clients()


def version(number: int) -> Version:
    return Version(number=number, sha256=f"{number:064x}")


def buffer(*starts: int, newest: int | None = None) -> Buffer:
    """The updates of clients 1, 2, ... from these versions."""
    return Buffer(newest=max(starts) if newest is None else newest, starts=[version(start) for start in starts])


def task(exchange: int, *starts: int, newest: int | None = None, **changes: Any) -> Task:
    return make_task(exchange, buffer=buffer(*starts, newest=newest), settings=SETTINGS, **changes)


class TestTask:
    def test_a_buffer_is_bound_into_ctx(self) -> None:
        digests = {task(1, *starts).digest() for starts in ((0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0))}
        digests |= {task(1, 0, 0, 0, 0, newest=1).digest(), make_task(1, settings=SETTINGS).digest()}
        assert len(digests) == 5

    def test_without_one_it_says_nothing_of_it(self) -> None:
        assert "buffer" not in make_task().content()

    def test_each_of_the_cohort_has_a_start(self) -> None:
        with pytest.raises(pydantic.ValidationError, match="type=value_error"):
            task(1, 0, 0, 0)

    def test_what_an_update_counts_falls_with_its_age(self) -> None:
        assert [staleness_factor(age, "sqrt") for age in (0, 3, 99)] == pytest.approx([1, 0.5, 0.1])
        assert {staleness_factor(age, "constant") for age in (0, 3, 99)} == {1.0}
        assert task(1, 4, 3, 1, 0).updates_of([1, 3]) == {(1, version(4).sha256): 1.0, (3, version(1).sha256): 0.5}

    def test_a_client_gives_its_update_only_as_what_it_is(self) -> None:
        check_start(task(1, 2, 0, 0, 0), 1, version(2))
        check_start(make_task(), 1, None)
        for own in (None, version(1), Version(number=2, sha256="ab" * 32), Version(number=3, sha256=version(2).sha256)):
            with pytest.raises(ProtocolViolation, match="start-mismatch"):
                check_start(task(1, 2, 0, 0, 0), 1, own)


def extended(*records: SignedRecord, notary: Notary) -> Chain:
    chain = Chain()
    for signed in records:
        chain.extend(SignedRecord.model_validate_json(signed.model_dump_json()), keys_of([notary.roster]))
    return chain


def summed(*sums: tuple[int, ...], complete: bool = True, newest: int | None = None) -> Chain:
    """A transcript of buffered sums, one after another, each of four clients' updates from these versions."""
    notary = Notary.of()
    for exchange, starts in enumerate(sums, start=1):
        found = buffer(*starts, newest=newest)
        notary.sum(exchange, buffer=found, settings=SETTINGS, complete=complete)
    return extended(*notary.records, notary=notary)


def consent(asked: Task, chain: Chain, survivors: Sequence[int] = (1, 2, 3, 4), policy: Policy = POLICY) -> None:
    assert asked.encoding is not None
    agree(asked, asked.encoding, survivors, policy, MemoryHistory(), chain)


class TestOneSum:
    """`agree` with a transcript in which some updates were summed."""

    def test_other_updates_of_the_same_clients_are_welcome(self) -> None:
        consent(task(3, 2, 2, 2, 2), summed((0, 0, 0, 0), (1, 1, 1, 1)))

    @pytest.mark.parametrize("complete", [True, False])
    @pytest.mark.parametrize("starts", [(0, 1, 1, 1), (1, 1, 1, 0), (0, 0, 0, 1)])
    def test_one_update_again_is_one_too_many(self, starts: tuple[int, ...], complete: bool) -> None:
        with pytest.raises(ProtocolViolation, match="update-reused"):
            consent(task(2, *starts), summed((0, 0, 0, 0), complete=complete))

    def test_but_who_did_not_survive_was_not_summed(self) -> None:
        notary = Notary.of()
        notary.sum(1, buffer=buffer(0, 0, 0, 0), settings=SETTINGS, survivors=(1, 2, 3))
        chain = extended(*notary.records, notary=notary)
        consent(task(2, 1, 1, 1, 0), chain)
        with pytest.raises(ProtocolViolation, match="update-reused"):
            consent(task(2, 1, 1, 0, 1), chain)

    def test_the_very_same_sum_may_be_asked_for_again(self) -> None:
        consent(task(2, 0, 1, 0, 1), summed((0, 1, 0, 1)))

    def test_the_same_updates_with_other_weights_are_another_sum(self) -> None:
        with pytest.raises(ProtocolViolation, match="update-reused"):
            consent(task(2, 0, 1, 0, 1, newest=2), summed((0, 1, 0, 1)))
        constant = {**SETTINGS, "staleness": "constant"}
        with pytest.raises(ProtocolViolation, match="update-reused"):
            consent(task(2, 0, 1, 0, 1).model_copy(update={"settings": constant}), summed((0, 1, 0, 1)))

    def test_fewer_of_the_same_updates_are_another_sum(self) -> None:
        with pytest.raises(ProtocolViolation, match="update-reused"):
            consent(task(2, 0, 0, 0, 0), summed((0, 0, 0, 0)), survivors=(1, 2, 3))

    def test_one_number_stands_for_one_model(self) -> None:
        """Pasquini et al. 2022: models that teach nothing for all but one, under one number."""
        other = Version(number=0, sha256="ef" * 32)
        forked = buffer(0, 0, 0, 0).model_copy(update={"starts": [version(0)] * 3 + [other]})
        later = buffer(1, 1, 1, 0).model_copy(update={"starts": [version(1)] * 3 + [other]})
        for chain, named in ((Chain(), forked), (summed((0, 0, 0, 0)), later)):
            with pytest.raises(ProtocolViolation, match="version-fork"):
                check_versions(make_task(2, buffer=named, settings=SETTINGS), chain)

    def test_there_are_no_more_models_than_sums_made(self) -> None:
        check_versions(task(2, 0, 1, 1, 1), summed((0, 0, 0, 0)))
        for chain, named in ((Chain(), (0, 0, 0, 1)), (summed((0, 0, 0, 0)), (1, 1, 1, 2))):
            with pytest.raises(ProtocolViolation, match="version-fork"):
                check_versions(task(2, *named), chain)

    def test_a_copy_that_begins_later_cannot_count_them(self) -> None:
        check_versions(task(1, 7, 7, 7, 8), Chain(anchor="ab" * 32))

    def test_a_model_that_a_whole_cohort_trained_counts(self) -> None:
        notary = Notary.of()
        notary.sum(1)
        chain = extended(*notary.records, notary=notary)
        model = make_task().model_sha256
        asked = task(2, 1, 1, 1, 1)
        assert asked.buffer is not None
        starts = [Version(number=1, sha256=model), *asked.buffer.starts[1:]]
        with pytest.raises(ProtocolViolation, match="update-reused"):
            consent(asked.model_copy(update={"buffer": Buffer(newest=1, starts=starts)}), chain)

    def test_and_the_other_way_round(self) -> None:
        model = make_task().model
        assert model is not None
        chain = summed((0, 0, 0, 0))
        again = model.model_copy(update={"sha256": version(0).sha256})
        with pytest.raises(ProtocolViolation, match="update-reused"):
            consent(make_task(2, model=again), chain)
        consent(make_task(2), chain)

    def test_an_owner_may_allow_it(self) -> None:
        allowed = replace(POLICY, allow_differencing=True)
        consent(task(2, 0, 1, 1, 1), summed((0, 0, 0, 0)), policy=allowed)


class TestBook:
    def book(self, **changes: int) -> WorkBook:
        return WorkBook(**{"size": 2, "concurrency": 3, "max_staleness": 1, **changes})

    def test_nobody_is_given_work_before_there_is_a_model(self) -> None:
        book = self.book()
        assert book.free([1, 2]) == []
        with pytest.raises(UsageError, match=r"\bversion\b"):
            _ = book.version

    def test_one_piece_of_work_or_one_update_at_a_time(self) -> None:
        book = self.book()
        book.publish("00" * 32)
        assert book.hand_out(1) == Version(number=0, sha256="00" * 32)
        for _ in range(2):
            assert book.free([1, 2]) == [2]
            with raises(UsageError, numbers=(1,)):
                book.hand_out(1)
            if book.training:
                book.finish(1)
        assert (book.training, book.ready, book.buffer()) == (0, (1,), ())

    def test_who_waited_longest_is_summed_first(self) -> None:
        book = self.book()
        book.publish("00" * 32)
        for client in (1, 2, 3):
            book.hand_out(client)
        assert book.room == 0
        for client in (3, 1, 2):
            book.finish(client)
        assert book.buffer() == (3, 1)
        ready = book.ready_updates(book.buffer())
        assert (ready.cohort, ready.all_survive) == ([1, 3], False)
        assert ready.buffer == Buffer(newest=0, starts=[Version(number=0, sha256="00" * 32)] * 2)

    def test_a_version_that_a_client_has_given_to_a_sum_is_not_given_to_it_again(self) -> None:
        book = self.book()
        book.publish("00" * 32)
        book.hand_out(1)
        book.finish(1)
        book.spend(task(1, 0, 0, 0, 0), [1])
        assert book.free([1, 2]) == [2]
        book.publish("01" * 32)
        assert book.free([1, 2]) == [1, 2]

    def test_whether_a_buffer_can_be_filled_at_all(self) -> None:
        book = self.book()
        book.publish("00" * 32)
        book.check_fillable([1, 2], "")
        self.unfillable(book, 1)
        for client in (1, 2):
            book.hand_out(client)
            book.finish(client)
        book.check_fillable([1, 2], "")  # they have something in hand
        book.spend(task(1, 0, 0, 0, 0), [1, 2])
        self.unfillable(book, 1, 2, 3)
        book.hand_out(3)
        book.check_fillable([1, 2, 3, 4], "")
        book.give_up(3)
        self.unfillable(book, 1, 2, 3, 4)
        book.publish("01" * 32)
        book.check_fillable([1, 2], "")

    def unfillable(self, book: WorkBook, *clients: int) -> None:
        with raises(RoundFailed, check="buffer-not-fillable", match="quorum-lost", numbers=(2,)):
            book.check_fillable(clients, "quorum-lost")

    def test_work_that_is_too_old_comes_to_nothing(self) -> None:
        book = self.book()
        book.publish("00" * 32)
        book.hand_out(1)
        book.hand_out(2)
        book.finish(2)
        assert book.publish("01" * 32) == {}
        old = book.publish("02" * 32)
        assert sorted(old) == [1, 2]
        assert {tuple(re.findall(r"\d+", reason)) for reason in old.values()} == {("2", "1")}, "its age, and the bound"
        assert (book.in_hand, book.free([1, 2])) == ({}, [1, 2])


class TestNamed:
    """What becomes of updates in a sum whose survivors were named, and that stayed closed."""

    FIRST = task(1, 0, 1, 1, 0, newest=2)

    def named(self) -> NamedUpdates:
        updates = NamedUpdates()
        assert updates.note_failure(self.FIRST, (3, 1), again=True, repeated=False) == ()
        return updates

    def test_the_very_same_sum_is_asked_for_once_more(self) -> None:
        ready = self.named().ready()
        assert ready is not None
        assert (ready.cohort, ready.all_survive) == ((1, 3), True)
        assert ready.buffer == buffer(0, 1, newest=2)

    @pytest.mark.parametrize("survivors", [(), (1, 3)])
    def test_and_in_no_other_sum_if_that_stays_closed_too(self, survivors: tuple[int, ...]) -> None:
        updates = self.named()
        assert updates.note_failure(self.FIRST, survivors, again=True, repeated=False) == (1, 3)
        assert updates.ready() is None

    def test_a_repeat_of_the_very_same_sum_does_not_count(self) -> None:
        updates = self.named()
        for _ in range(2):
            assert updates.note_failure(self.FIRST, (1, 3), again=True, repeated=True) == ()
            assert updates.ready() is not None

    def test_an_attempt_that_named_nobody_costs_no_update(self) -> None:
        updates = NamedUpdates()
        assert updates.note_failure(self.FIRST, (), again=True, repeated=False) == ()
        assert updates.ready() is None

    @pytest.mark.parametrize("survivors", [(), (1, 3)])
    def test_where_no_attempt_follows_they_come_to_nothing(self, survivors: tuple[int, ...]) -> None:
        assert self.named().note_failure(self.FIRST, survivors, again=False, repeated=True) == (1, 3)
        assert NamedUpdates().note_failure(self.FIRST, survivors, again=False, repeated=False) == survivors


def test_a_training_that_names_no_model_is_refused() -> None:
    request = ExchangeRequest(
        message_type="train",
        nodes=(1, 2, 3),
        server_round=1,
        model=None,
        arrays_key="",
        configs={},
        weight_key="num-examples",
    )
    with raises(RoundFailed, check="training-without-model", match="asynchrony"):
        model_of(request)


def test_a_buffer_that_is_not_full_in_time_says_which_settings_help() -> None:
    book = WorkBook(size=3, concurrency=5, max_staleness=1)
    book.publish("00" * 32)
    for client in (1, 2):
        book.hand_out(client)
    book.finish(1)
    assert buffer_seconds(JobSettings(train_seconds=5.0, join_seconds=3.0)) == 8.0
    with raises(RoundFailed, check="buffer-not-full", match="buffer-size.*concurrency", numbers=(1, 3, 8, 1)):
        raise book.not_full(8.0)


@pytest.mark.parametrize(
    ("settings", "members", "size"),
    [({}, 10, 3), ({"buffer_size": 6}, 10, 6), ({"quorum": 5}, 10, 5), ({"max_corrupt": 0.1}, 10, 4)],
)
def test_a_buffer_is_as_large_as_a_sum_has_to_be(settings: dict[str, Any], members: int, size: int) -> None:
    assert buffer_size(JobSettings(asynchrony="buffered", **settings), members, 3) == size


@pytest.mark.parametrize(("size", "other"), [(3, 4), (11, 10)])
def test_other_sizes_are_refused(size: int, other: int) -> None:
    with raises(ConfigurationError, match="buffer-size", numbers=(size, other)):
        buffer_size(JobSettings(asynchrony="buffered", buffer_size=size, max_corrupt=0.1), 10, 3)


def test_what_a_strategy_is_told() -> None:
    assert staleness_metrics([0, 1, 5]) == {"staleness_mean": 2.0, "staleness_max": 5.0}


def test_a_factor_scales_the_update_and_not_its_weight() -> None:
    """The mean of scaled updates, divided by all examples (FedBuff, algorithm 1)."""
    rng, encoding = np.random.default_rng(1), first_encoding(CodecSettings(w_max=100), LAYOUT, 2)
    base = ModelState.from_arrays({"weight": rng.normal(size=(3, 4)).astype(np.float32)})
    deltas, factors, examples = rng.normal(size=(2, 3, 4)).astype(np.float32), (1.0, 0.5), (30, 10)
    total = np.zeros(encoding.words, np.uint64)
    for delta, factor, count in zip(deltas, factors, examples, strict=True):
        local = ModelState.from_arrays({"weight": base["weight"] + delta})
        words = encode(
            encoding, base=base, local=local, examples=count, metrics={}, randomness=os.urandom, factor=factor
        ).words
        np.add(total, words, out=total)
    decoded = decode(encoding, total, survivors=2, base=base)
    assert decoded.state is not None
    mean = sum(f * n * d for f, n, d in zip(factors, examples, deltas, strict=True)) / sum(examples)
    np.testing.assert_allclose(decoded.state["weight"], base["weight"] + mean, atol=1e-5)
    assert decoded.examples == 40
