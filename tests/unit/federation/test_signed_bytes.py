"""A signature holds for the content that was signed, however its JSON is laid out, and for nothing else.

What was kept is hashed as it was kept: another version of fedcore would perhaps write other JSON of the same task.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import sqlite3
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from hypothesis import given
from hypothesis import strategies as st
from support.records import Notary, make_task

from fedcore.errors import KitError, ProtocolViolation
from fedcore.federation import Roster
from fedcore.federation.requests import Admission, JoinRequest
from fedcore.federation.roster import MALFORMED
from fedcore.federation.transcript import Chain, SignedRecord, keys_of
from fedcore.federation.transcript.legacy_encodings import signed_parts
from fedcore.run.exchange import Signed, parameters_of
from fedcore.secagg import ServerRound, dealing
from fedcore.state import ModelState
from fedcore.wire import secagg_codec
from fedcore.wire.forms import understands
from fedcore.wire.secagg import AdvertisementIn, KeySharesIn
from fedcore.wire.tasks import StoredTask, Task, task_digest

STORE = Path(__file__).parents[2] / "compatibility"
ARCHIVES = sorted(path for path in STORE.glob("*.tar.gz") if "-" not in path.name)
AUTHORITY = Ed25519PrivateKey.from_private_bytes(bytes(32))
PUBLIC = AUTHORITY.public_key().public_bytes_raw()


def otherwise(document: Any) -> Any:
    """The same JSON with the keys of all objects in the opposite order."""
    if isinstance(document, dict):
        return {key: otherwise(document[key]) for key in reversed(document)}
    return [otherwise(one) for one in document] if isinstance(document, list) else document


def laid_out(text: str) -> str:
    """The same JSON with other spaces, escapes and order of keys."""
    return json.dumps(otherwise(json.loads(text)), indent=3, separators=(" , ", " : "), ensure_ascii=True)


def with_one_more(text: str) -> str:
    return json.dumps({**json.loads(text), "of_tomorrow": 1})


def test_a_roster_in_another_layout_is_the_same_roster() -> None:
    roster = Notary.of().roster
    assert Roster.received(laid_out(roster.to_json()), PUBLIC) == roster
    with pytest.raises(ProtocolViolation) as refused:
        Roster.received(with_one_more(roster.to_json()), PUBLIC)
    assert refused.value.check == MALFORMED, "what no signature covers is not read"


def test_a_request_and_an_admission_likewise(tmp_path: Path) -> None:
    notary = Notary.of()
    request = JoinRequest.make("client-9", notary.keys[1])
    admission = Admission.sign(1, notary.roster, server_url="https://h:1", ca="ca", authority=AUTHORITY)
    for document in (request, admission):
        path = tmp_path / "document.json"
        path.write_text(laid_out(document.to_json()), encoding="utf-8")
        assert type(document).load(path) == document
        path.write_text(with_one_more(document.to_json()), encoding="utf-8")
        with pytest.raises(KitError):
            type(document).load(path)


def records(archive: Path) -> Iterator[tuple[Roster, dict[str, Any]]]:
    """The records of client 1's transcript in an archive, each with the roster."""
    content = file_in(archive, "fed/clients/client-1/state/transcript.jsonl")
    lines = [json.loads(line) for line in content.splitlines()]
    (roster,) = (Roster.of(line["roster"]) for line in lines if line["event"] == "roster")
    for line in lines:
        if line["event"] == "linked":
            yield roster, line


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_a_record_in_another_layout_has_the_same_hash(archive: Path) -> None:
    chain = Chain()
    for roster, line in records(archive):
        signed = SignedRecord.model_validate_json(laid_out(json.dumps(line["linked"])))
        again = SignedRecord.model_validate_json(signed.model_dump_json())
        link, _ = chain.extend(again, keys_of([roster]))
        assert link.hash == line["hash"]
    assert len(chain.links) > 2


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_the_rosters_of_all_kits_hold(archive: Path) -> None:
    """Under the authority's key in each kit; the hash that records name is that of the very same bytes."""
    ((roster, _), *_) = records(archive)
    kits = ("clients/client-1/roster.json", "clients/client-3/roster.json", "server/rosters.json")
    for name in (*kits, "authority/rosters.json"):
        text, key = file_in(archive, f"fed/{name}").decode(), f"fed/{Path(name).parent}/authority.pub"
        public = load_pem_public_key(file_in(archive, key))
        assert isinstance(public, Ed25519PublicKey)
        documents = json.loads(text)
        for document in documents if isinstance(documents, list) else [documents]:
            assert Roster.received(json.dumps(document), public.public_bytes_raw()).hash() == roster.hash()


def test_who_joined_by_an_earlier_version_is_admitted(tmp_path: Path) -> None:
    """dbcbb8e signed these; every kept commit since signs the same bytes of the same people."""
    made = json.loads((STORE / "signed-dbcbb8e.json").read_text(encoding="utf-8"))
    public = base64.b64decode(made["admissions"][0]["authority"])
    first, second = (Roster.received(json.dumps(one), public) for one in made["rosters"])
    first.check_successor(second)
    path = tmp_path / "document.json"
    for kind, form in (("requests", JoinRequest), ("admissions", Admission)):
        for document in made[kind]:
            path.write_text(json.dumps(document), encoding="utf-8")
            assert json.loads(form.load(path).to_json()) == document
            changed = {**document, "name": "client-7"}
            path.write_text(json.dumps(changed), encoding="utf-8")
            with pytest.raises(KitError):
                form.load(path)
    assert (len(made["requests"]), len(made["admissions"])) == (2, 1)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_what_clients_sent_to_an_open_exchange_is_what_they_signed(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys that each advertised, and what it dealt to each other one: the evidence if one of the two complains.

    Between the forms before numbers, which records do not hold, and those of today nobody can compute what was signed:
    an upgraded server begins such an exchange again. Nor did clients of that time prove that they have their keys.
    """
    if not is_legacy(archive) and archive not in of_today():
        pytest.skip("written in forms that only records hold")
    ((roster, _), *_) = records(archive)
    ((content, run, exchange),) = rows(archive, "SELECT task, run, exchange FROM exchanges WHERE result IS NULL")
    task = StoredTask.model_validate_json(content)
    assert task.encoding is not None
    assert task.model is not None
    words, encoding = (
        signed_parts(json.loads(content)["encoding"])
        if is_legacy(archive)
        else (task.encoding.words, task.encoding.canonical())
    )
    parameters = parameters_of(
        task,
        Signed(words=words, encoding=encoding, task_hash=task.digest()),
        federation=roster.federation,
        roster_hash=roster.hash(),
        model_hash=bytes.fromhex(task.model.sha256),
    )
    server = ServerRound(parameters=parameters, roster=roster.keys)
    where = f"WHERE run = '{run}' AND exchange = {exchange} ORDER BY seq"
    receipts = rows(archive, f"SELECT step, client, body FROM receipts {where}")
    if is_legacy(archive):
        monkeypatch.setattr(dealing, "is_possessed", lambda *_: True)
    for step, form in (("advertisement", AdvertisementIn), ("key-shares", KeySharesIn)):
        for client, body in [
            (client, form.model_validate({**added, **json.loads(body)}))
            for name, client, body in receipts
            if name == step
            for added in ({"possession": bytes(128)} if step == "key-shares" and is_legacy(archive) else {},)
        ]:
            if isinstance(body, AdvertisementIn):
                server.receive_advertisement(secagg_codec.advertisement_from_wire(client, body))
            else:
                server.receive_shares(secagg_codec.key_shares_from_wire(client, body, *server.receivers(client)))
        assert len(server.answered) == 3
        server.close_stage()
    for one, other in itertools.permutations(roster.keys, 2):
        assert server.dealing(one, other).signature
    assert server.blamed == {}, "whose signature is none"


def of_today() -> list[Path]:
    """Stores whose server and clients spoke the forms of today."""
    return [archive for archive in ARCHIVES if understands(version_in(archive))]


def is_legacy(archive: Path) -> bool:
    """Whether its versions say no forms."""
    return "(" not in version_in(archive)


def version_in(archive: Path) -> str:
    ((version,),) = rows(archive, "SELECT DISTINCT version FROM clients")
    return str(version)


def rows(archive: Path, statement: str) -> list[tuple[Any, ...]]:
    """Of the server's database in an archive."""
    content = bytearray(file_in(archive, "fed/server/data/server.sqlite3"))
    content[18:20] = b"\1\1"  # without a log of writes, which no database in memory has
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(content)
        return connection.execute(statement).fetchall()


def file_in(archive: Path, name: str) -> bytes:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def test_what_was_announced_in_these_forms_is_digested_alike() -> None:
    """A client hashes the task that it read: where this fails, the forms have changed (`fedcore.wire.forms`)."""
    assert of_today(), "add a store: python tests/compatibility/make.py COMMIT"
    for archive in of_today():
        for _, line in records(archive):
            stored = line["linked"]["record"]["task"]
            announced = Task.model_validate({**stored, "attempt": 1, "seconds": 1.0})
            assert announced.digest() == task_digest(stored)
            assert announced.content() == stored


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_a_model_of_before_is_canonical(archive: Path, tmp_path: Path) -> None:
    """Else clients would refuse the runs that begin with it."""
    with tarfile.open(archive) as tar:
        models = [member for member in tar if member.name.endswith(".safetensors") and "/state/models/" in member.name]
        for member in models:
            file = tar.extractfile(member)
            assert file is not None
            path = tmp_path / Path(member.name).name
            path.write_bytes(file.read())
            assert ModelState.open(path).is_canonical()
    assert models


def test_a_kept_task_is_digested_as_it_was_kept() -> None:
    content = {**make_task().content(), "of_tomorrow": {"x": 0.1}, "weight_key": "num-examples"}
    content["run_config"] = {"lr": 1, **content["run_config"]}
    stored = StoredTask.model_validate({**content, "attempt": 2, "seconds": 5.0, "version": None, "places": None})
    assert stored.content() == content
    assert stored.digest() == task_digest(content)
    assert stored.model_copy(update={"seconds": 1.0}).digest() == task_digest(content)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_no_value_changes_on_the_way_through_a_record(config: dict[str, Any]) -> None:
    """From the server's task over its database, the network and the client's file to the check of the signatures."""
    signed = Notary.of().sum(1, configs={"config": config})
    announced = make_task(configs={"config": config})
    read = Task.model_validate_json(announced.model_dump_json())
    assert read.digest() == announced.digest() == task_digest(signed.record.task)
    stored = SignedRecord.model_validate(json.loads(signed.model_dump_json()))
    sent = SignedRecord.model_validate_json(stored.model_dump_json())
    assert task_digest(sent.record.task) == announced.digest()
