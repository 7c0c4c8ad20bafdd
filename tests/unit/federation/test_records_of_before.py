"""What was signed is compared as what was signed, whatever a version of fedcore makes of it."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.records import FEDERATION, LAYOUT, PROTECTION, Notary, make_task

from fedcore.codec import CodecSettings, auto_field_bits, first_encoding, rotation_seed
from fedcore.errors import ProtocolViolation
from fedcore.federation import Roster
from fedcore.federation.admission.bounds import scales_and_bounds
from fedcore.federation.transcript import Chain, ExchangeRecord, SignedRecord, keys_of
from fedcore.federation.transcript.legacy_encodings import signed_parts
from fedcore.run.exchange import Signed, parameters_of
from fedcore.secagg import Outcome
from fedcore.wire.tasks import task_digest

KEPT = Path(__file__).parents[2] / "compatibility" / "dbcbb8e.tar.gz"
STATE = "fed/clients/client-1/state"


def lines(name: str) -> Iterator[dict[str, Any]]:
    """Of a journal of client 1, as fedcore 0.1.0 at dbcbb8e left it."""
    with tarfile.open(KEPT) as tar:
        file = tar.extractfile(f"{STATE}/{name}")
        assert file is not None
        return map(json.loads, file.read().splitlines())


def kept() -> tuple[Roster, list[dict[str, Any]]]:
    entries = list(lines("transcript.jsonl"))
    (roster,) = (Roster.of(entry["roster"]) for entry in entries if entry["event"] == "roster")
    return roster, [entry["linked"] for entry in entries if entry["event"] == "linked"]


def extended(roster: Roster, records: list[dict[str, Any]]) -> Chain:
    chain = Chain()
    for record in records:
        chain.extend(SignedRecord.model_validate(record), keys_of([roster]))
    return chain


def test_records_of_an_earlier_version_hold() -> None:
    roster, records = kept()
    assert [link.complete for link in extended(roster, records).links] == [True] * len(records)
    assert len(records) > 1


@pytest.mark.parametrize("place", ["run_config", "model", "encoding", "settings", "app_sha256"])
def test_nothing_in_them_can_be_changed(place: str) -> None:
    roster, records = kept()
    task = records[0]["record"]["task"]
    match place:
        case "model":
            task["model"]["sha256"] = "00" * 32
        case "encoding":
            task["encoding"]["scales"] = [scale * 2 for scale in task["encoding"]["scales"]]
        case "app_sha256":
            task["app_sha256"] = "00" * 32
        case _:
            task[place]["more"] = 1
    with pytest.raises(ProtocolViolation) as refused:
        extended(roster, records)
    assert refused.value.check == "transcript-forged"


def test_a_ledger_of_an_earlier_version_knows_the_same_bounds() -> None:
    """Else the same app would be refused after an upgrade, for a sum that differs from an earlier one in nothing."""
    _, records = kept()
    released = [entry for entry in lines("ledger.jsonl") if "bounds" in entry]
    bounds = {(entry["run"], entry["exchange"]): entry["bounds"] for entry in released}
    for record in records:
        task = SignedRecord.model_validate(record).record.announced()
        assert task.encoding is not None
        names = scales_and_bounds(task.encoding)[1]
        assert bounds[task.run, task.exchange] in names[1:], "a name of before"


def of_tomorrow(notary: Notary, **changes: Any) -> SignedRecord:
    """A record of a version that says more in a task, and encodes in a way that nobody here knows."""
    task = make_task()
    content = {**task.content(), "encoding": {"form": "v99"}, "of_tomorrow": {"x": 0.1}}
    signed = Signed(words=17, encoding=b"canonical, as they say there", task_hash=task_digest(content))
    hashes: dict[str, Any] = {"roster_hash": notary.roster.hash(), "model_hash": bytes.fromhex(task.model_sha256)}
    context = parameters_of(task, signed, federation=FEDERATION, **hashes).ctx()
    outcome = Outcome(context=context, cohort=b"L" * 32, sharers=(1, 2, 3, 4), survivors=(1, 2, 3, 4))
    fields: dict[str, Any] = {
        "federation": FEDERATION,
        "roster_sha256": notary.roster.hash().hex(),
        "task": content,
        "advertised": outcome.cohort.hex(),
        "sharers": [1, 2, 3, 4],
        "survivors": [1, 2, 3, 4],
        "words": signed.words,
        "encoding": signed.encoding,
    }
    return SignedRecord(
        record=ExchangeRecord.model_validate({**fields, **changes}),
        complete=True,
        signatures={signer: notary.keys[signer].sign(outcome.statement()) for signer in (1, 2, 3)},
    )


def test_a_record_of_a_later_version_holds() -> None:
    notary = Notary.of()
    again = SignedRecord.model_validate_json(of_tomorrow(notary).model_dump_json())
    link, task = Chain().extend(again, keys_of([notary.roster]))
    assert (link.exchange, link.model, task.protection) == (1, task.model_sha256, PROTECTION)


@pytest.mark.parametrize("changes", [{"words": 18}, {"encoding": b"another"}, {"words": None}])
def test_nor_can_what_is_said_of_its_vector(changes: dict[str, Any]) -> None:
    notary = Notary.of()
    with pytest.raises(ProtocolViolation) as refused:
        Chain().extend(of_tomorrow(notary, **changes), keys_of([notary.roster]))
    assert refused.value.check == "transcript-forged"


@pytest.mark.parametrize("file", ["encodings-dbcbb8e.json", "encodings-a45d1a3.json"])
def test_what_ctx_took_from_an_encoding_is_what_that_version_made_of_it(file: str) -> None:
    for made in json.loads((KEPT.parent / file).read_text(encoding="utf-8")):
        words, canonical = signed_parts(made["encoding"])
        assert (words, canonical.hex()) == (made["words"], made["canonical"]), made["encoding"]


@pytest.mark.parametrize("fraction", [0.5, 0.25, 0.1, 0.05])
@pytest.mark.parametrize("clients", [4, 100])
def test_bounds_have_names_at_any_width_of_the_settings(fraction: float, clients: int) -> None:
    bits = auto_field_bits(clients, fraction)
    settings = CodecSettings(w_max=100, field_bits=bits, upload_fraction=fraction)
    first = first_encoding(settings, LAYOUT, clients, rotation=rotation_seed("0" * 64))
    assert scales_and_bounds(first)[1]
