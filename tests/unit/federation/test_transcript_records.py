"""Records: whoever has the roster can check one, and nothing in it can be changed."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from support.records import Notary, make_task

from fedcore.errors import ProtocolViolation
from fedcore.federation.transcript import Chain, SignedRecord, keys_of, update_bytes_of
from tests.support.raising import raises


def extend(notary: Notary, *records: SignedRecord, anchor: str = "") -> Chain:
    chain = Chain(anchor=anchor)
    for signed in records:
        chain.extend(signed, keys_of([notary.roster]))
    return chain


def altered(signed: SignedRecord, **changes: Any) -> SignedRecord:
    """The record with other fields, as JSON would bring it; a task's fields with a dot."""
    plain = signed.model_dump(mode="json")
    for name, value in changes.items():
        place = plain["record"]["task"] if name.startswith("task_") else plain["record"]
        place[name.removeprefix("task_")] = value
    return SignedRecord.model_validate(plain)


def test_a_chain_holds_and_survives_its_json() -> None:
    notary = Notary.of()
    for exchange in (1, 2, 3):
        notary.sum(exchange)
    again = [SignedRecord.model_validate_json(signed.model_dump_json()) for signed in notary.records]
    chain = extend(notary, *again)
    assert chain.head == notary.head
    assert [(link.run, link.exchange, link.complete) for link in chain.links] == [("run", n, True) for n in (1, 2, 3)]
    assert chain.links[0].signers == {1, 2, 3}
    assert chain.after("") == chain.links
    assert chain.after(chain.links[1].hash) == chain.links[2:]
    assert chain.after("00" * 32) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"task_run_config": {"lr": 0.2, "num-server-rounds": 3}},
        {"task_model": {"sha256": "00" * 32, "size": 100}},
        {"task_app_sha256": "00" * 32},
        {"task_server_round": 2},
        {"task_exchange": 2},
        {"task_run": "another"},
        {"task_quorum": 4},
        {"advertised": "00" * 32},
        {"federation": "another"},
        {"survivors": [1, 2, 3]},
        {"sharers": [1, 2, 3]},
        {"survivors": [1, 2]},
        {"survivors": [1, 2, 3, 3, 4]},
        {"survivors": [4, 3, 2, 1]},
        {"roster_sha256": "00" * 32},
        {"task_cohort": [1, 2, 3]},
        {"task_protection": {"degree": 3, "threshold": 2, "corrupt": 0, "agreement": "x25519"}},
        {"task_encoding": {}},
        {"task_unheard_of": 1},
        {"coin": base64.b64encode(bytes(32)).decode()},
    ],
    ids="-".join,
)
def test_nothing_in_a_record_can_be_changed(changes: dict[str, Any]) -> None:
    notary = Notary.of()
    with pytest.raises(ProtocolViolation) as refused:
        extend(notary, altered(notary.sum(1), **changes))
    assert refused.value.check == "transcript-forged"


def test_a_coin_is_signed_and_only_where_there_is_one_it_is_in_the_record() -> None:
    notary, coin = Notary.of(), b"c" * 32
    first, second = notary.sum(1), notary.sum(2, coin=coin)
    assert "coin" not in first.model_dump(mode="json")["record"]
    again = [SignedRecord.model_validate_json(signed.model_dump_json()) for signed in (first, second)]
    assert extend(notary, *again).head == notary.head
    for other in (None, base64.b64encode(b"d" * 32).decode()):
        with pytest.raises(ProtocolViolation) as refused:
            extend(notary, first, altered(second, coin=other))
        assert refused.value.check == "transcript-forged"


@pytest.mark.parametrize("signers", [(), (1,), (1, 2)])
def test_a_quorum_has_to_have_signed(signers: tuple[int, ...]) -> None:
    notary = Notary.of()
    with raises(ProtocolViolation, check="transcript-forged", numbers=(3,)):
        extend(notary, notary.sum(1, signers=signers))


def test_a_signature_of_another_exchange_does_not_count() -> None:
    notary = Notary.of()
    first, second = notary.sum(1), notary.sum(2)
    mixed = second.model_copy(update={"signatures": {**second.signatures, 1: first.signatures[1]}})
    with raises(ProtocolViolation, check="transcript-forged", numbers=(1, 2)):
        extend(notary, first, mixed)


def test_only_survivors_can_have_signed() -> None:
    notary = Notary.of()
    with raises(ProtocolViolation, check="transcript-forged", numbers=(4,)):
        extend(notary, notary.sum(1, survivors=(1, 2, 3), signers=(1, 2, 4)))


def test_a_record_that_is_left_out_is_a_gap() -> None:
    notary = Notary.of()
    first, _, third = (notary.sum(exchange) for exchange in (1, 2, 3))
    with pytest.raises(ProtocolViolation, match="transcript-gap"):
        extend(notary, first, third)


def test_records_in_another_order_are_a_gap() -> None:
    notary = Notary.of()
    first, second = notary.sum(1), notary.sum(2)
    with pytest.raises(ProtocolViolation, match="transcript-gap"):
        extend(notary, second, first)


def test_an_unfinished_record_has_the_signatures_that_came() -> None:
    notary = Notary.of()
    first = notary.sum(1, signers=(2,), complete=False)
    chain = extend(notary, first, notary.sum(2))
    assert [link.complete for link in chain.links] == [False, True]


def test_whether_a_record_is_complete_cannot_be_changed_afterwards() -> None:
    """The next task names it as what it was."""
    notary = Notary.of()
    first, second = notary.sum(1), notary.sum(2)
    with pytest.raises(ProtocolViolation, match="transcript-gap"):
        extend(notary, first.model_copy(update={"complete": False}), second)


def test_the_record_before_is_in_the_tasks_digest() -> None:
    assert make_task(previous="").digest() != make_task(previous="00" * 32).digest()


def test_updates_count_for_the_survivors_of_a_complete_record() -> None:
    notary = Notary.of()
    notary.sum(1)
    (signed,) = notary.records
    size = 8 * (signed.record.words or 0)
    assert update_bytes_of(signed) == dict.fromkeys(signed.record.survivors, size)
    assert size > 0
    assert update_bytes_of(signed.model_copy(update={"complete": False})) == {}
