"""The client's copy of the transcript: a server that hides, skips or makes up an exchange is named, and left alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.agents import agent_running, until
from support.authority import authority_key
from support.records import Notary
from support.scripted import problem
from typer.testing import CliRunner

from client_app.agent.agent import Agent, Pauses
from client_app.exchange.client import Client
from client_app.exchange.first_model import NoFirstModels
from client_app.records.transcript import TRANSCRIPT_FILE, ClientTranscript
from fedcore.cli.main import app
from fedcore.errors import ConfigurationError
from fedcore.federation import ClientKit, FederationFolder
from fedcore.federation.admission.first_model import AppModel
from fedcore.federation.transcript import SignedRecord, record_hash
from fedcore.wire.presence import JoinIn
from fedcore.wire.tasks import ModelRef, Task
from tests.support.raising import raises

Script = Any  # support.scripted.Scripted
MakeTask = Callable[..., Task]
OTHERS = {"cohort": [2, 3, 4], "quorum": 3, "signers": (2, 3, 4), "survivors": (2, 3, 4)}


async def offer(script: Script, client: Client, task: Task | None = None) -> str:
    """One exchange with an agent; the check that it withdrew with, "" where it went to the end."""
    if task is not None:
        script.go_on(task)
    before = len(script.withdrawals)
    async with script.serving():
        await Agent(client, Pauses(refusal=0.0, farewell=60.0)).take_part(script.task)
    assert (script.decoded is not None) != (len(script.withdrawals) > before)
    return script.withdrawals[-1].check if len(script.withdrawals) > before else ""


@pytest.fixture
def others(script: Script, kits: dict[int, ClientKit]) -> Callable[..., list[SignedRecord]]:
    """Exchanges of the clients 2, 3 and 4, after what is in the script's transcript."""

    def sums(count: int, **changes: Any) -> list[SignedRecord]:
        notary = Notary(kits[1].roster, {number: kit.identity for number, kit in kits.items()}, head=script.head)
        asked = {"run": "of others", "protection": _three(script), **OTHERS, **changes}
        made = [notary.sum(number, **asked) for number in range(1, count + 1)]
        script.head = notary.head
        return made

    return sums


def _three(script: Script) -> Any:
    return script.task.protection.model_copy(update={"degree": 2})


def verify(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["transcript", "verify", "--json", *arguments])
    return done.exit_code, json.loads(done.output)


def copy_of(client: Client) -> list[str]:
    return [str(client.state_dir), "--authority", str(client.kit.folder / "authority.pub")]


async def test_every_exchange_that_it_signed_is_in_its_copy(
    script: Script, client: Client, make_task: MakeTask, log: StringIO
) -> None:
    assert await offer(script, client) == ""
    assert "first contact" in log.getvalue()
    assert await offer(script, client, make_task(exchange=2)) == ""
    assert client.transcript.chain.head == script.head
    status, found = verify(*copy_of(client))
    assert (status, found["holds"], found["anchor"], found["open"]) == (0, True, "", 0)
    assert [(line["exchange"], line["survivors"], line["complete"]) for line in found["exchanges"]] == [
        (1, 4, True),
        (2, 4, True),
    ]
    assert found["exchanges"][-1]["record"] == script.head


async def test_it_checks_what_others_did_meanwhile(
    script: Script, client: Client, make_task: MakeTask, others: Callable[[int], list[SignedRecord]], log: StringIO
) -> None:
    assert await offer(script, client) == ""
    script.records += others(3)
    assert await offer(script, client, make_task(exchange=2)) == ""
    assert "3 records of others checked" in log.getvalue()
    assert [line["run"] for line in verify(*copy_of(client))[1]["exchanges"]].count("of others") == 3


async def test_what_others_summed_meanwhile_counts(
    script: Script,
    client: Client,
    make_task: MakeTask,
    others: Callable[..., list[SignedRecord]],
    allow: Callable[..., Client],
) -> None:
    """The same clients again would be no new question, if the others had not gone on without this one."""
    own = allow(client, min_cohort=3, min_threshold=3, allow_differencing=False)
    assert await offer(script, own) == ""
    assert await offer(script, own, make_task(exchange=2)) == ""
    script.records += others(1, model=script.task.model)
    assert await offer(script, own, make_task(exchange=3)) == "differencing"


async def test_a_transcript_without_what_it_signed_is_a_fork(
    script: Script, client: Client, make_task: MakeTask, others: Callable[[int], list[SignedRecord]], log: StringIO
) -> None:
    """The server leaves out the exchange that this client was in, and continues with others from before it."""
    await offer(script, client)
    honest, head = list(script.records), script.head
    script.head = ""
    script.records = others(2)
    assert await offer(script, client, make_task(exchange=2)) == "transcript-fork"
    assert str(client.transcript.path) in log.getvalue(), "the owner reads what to do"
    assert await offer(script, client, make_task(exchange=3)) == "transcript-fork"
    script.records, script.head = honest, head
    assert await offer(script, client, make_task(exchange=4)) == "", "what contains its record is taken up again"


async def test_what_it_signed_counts_before_anybody_else_signs(
    script: Script, client: Client, make_task: MakeTask, others: Callable[[int], list[SignedRecord]]
) -> None:
    """It never saw the signatures; a server that says that the exchange never came that far is found out."""
    script.lies["consistency"] = lambda _: problem(409, "round-failed", "not enough clients")
    await _until_signed(script, client)
    assert await _signed_at_join(script, client) == 1
    signed, script.records, script.head, script.lies = script.records, [], "", {}
    assert await offer(script, client, make_task(exchange=2)) == "transcript-fork"
    script.records = others(1)
    assert await offer(script, client, make_task(exchange=3)) == "transcript-fork"
    assert verify(*copy_of(client))[1]["open"] == 1
    # As an honest server keeps it: without enough signatures it is unfinished.
    record = signed[0].model_copy(update={"complete": False, "signatures": {}})
    outcome = record.record.outcome(record.record.announced())
    script.records, script.head = [record], record_hash(outcome, complete=False)
    assert await offer(script, client, make_task(exchange=4)) == ""
    assert [line["complete"] for line in verify(*copy_of(client))[1]["exchanges"]] == [False, True]
    assert await _signed_at_join(script, client) == 0, "it has its place"


async def _signed_at_join(script: Script, client: Client) -> int:
    """How many records the client names as it joins, by which the server may know that it lost one."""
    async with script.serving(), agent_running(client) as running:
        await until(lambda: script.polls, running)
    script.polls.clear()
    hello = JoinIn.model_validate_json(script.bodies["join"])
    assert hello.signed is None or hello.signed == client.transcript.signed
    return len(hello.signed or {})


async def _until_signed(script: Script, client: Client) -> None:
    async with script.serving():
        await Agent(client, Pauses(refusal=0.0, farewell=60.0)).take_part(script.task)
    assert verify(*copy_of(client))[1]["open"]


async def test_the_same_exchange_cannot_be_complete_for_one_and_unfinished_for_another(
    script: Script, client: Client, make_task: MakeTask
) -> None:
    await offer(script, client)
    [record] = script.records
    script.records = [record.model_copy(update={"complete": False})]
    script.head = "00" * 32
    assert await offer(script, client, make_task(exchange=2)) == "transcript-fork"


@pytest.mark.parametrize("left", [[0, 2], [1, 2], [0, 1], []])
async def test_records_that_are_left_out_are_a_gap(
    script: Script,
    client: Client,
    make_task: MakeTask,
    others: Callable[[int], list[SignedRecord]],
    left: list[int],
) -> None:
    await offer(script, client)
    made = others(3)
    script.lies["transcript"] = lambda page: page.model_copy(update={"records": [made[i] for i in left]})
    script.records += made
    assert await offer(script, client, make_task(exchange=2)) == "transcript-gap"
    script.lies.clear()
    assert await offer(script, client, make_task(exchange=3)) == ""


@pytest.mark.parametrize("lie", ["signature", "content", "signers"])
async def test_records_that_were_not_signed_are_forged(
    script: Script,
    client: Client,
    make_task: MakeTask,
    others: Callable[[int], list[SignedRecord]],
    lie: str,
) -> None:
    await offer(script, client)
    [made] = others(1)
    plain = made.model_dump(mode="json")
    if lie == "content":
        plain["record"]["task"]["run_config"] = {"lr": 7.0}
    elif lie == "signers":
        del plain["signatures"]["2"]
    else:
        plain["signatures"]["2"] = plain["signatures"]["3"]
    script.records.append(SignedRecord.model_validate(plain))
    assert await offer(script, client, make_task(exchange=2)) == "transcript-forged"


async def test_what_it_signed_is_known_after_a_restart(script: Script, client: Client, tmp_path: Path) -> None:
    await offer(script, client)
    with ClientTranscript(tmp_path / "state", client.kit.roster) as again:
        assert again.chain == client.transcript.chain
        assert again.chain.links[0].signers == {1, 2, 3}


async def test_a_damaged_copy_stops_the_agent(client: Client, tmp_path: Path) -> None:
    (tmp_path / TRANSCRIPT_FILE).write_text("rubbish\n")
    with raises(ConfigurationError, check="damaged", match=r"\b1\b.*transcript\.jsonl"):
        ClientTranscript(tmp_path, client.kit.roster)


@pytest.mark.parametrize(
    ("change", "check"),
    [("drop", "transcript-gap"), ("survivors", "transcript-forged"), ("authority", "roster-unsigned"), ("last", "")],
)
async def test_the_command_names_what_does_not_hold(
    script: Script, client: Client, make_task: MakeTask, federation: FederationFolder, change: str, check: str
) -> None:
    await offer(script, client)
    await offer(script, client, make_task(exchange=2))
    path = client.transcript.path
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == ["roster", "began", "signed", "linked", "signed", "linked"]
    assert all(line.pop("sum") for line in lines)  # the disk is not at fault
    match change:
        case "drop":
            del lines[2:4]
        case "survivors":
            lines[5]["linked"]["record"]["survivors"] = [1, 2, 3]
        case "authority":
            lines[0]["roster"]["members"][0]["name"] = "somebody"
        case "last":
            del lines[5]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, found = verify(*copy_of(client))
    assert (status, found["check"]) == (3 if check else 0, check)
    if change == "last":
        assert found["open"] == 1, "signed, and not shown the place of yet"


async def test_records_of_a_roster_between_are_checked_under_it(
    script: Script, client: Client, make_task: MakeTask, federation: FederationFolder, kit: Path
) -> None:
    """While it was away, client 2 had another key for one exchange; two rosters are behind when it is back."""
    own = replace(client, kit=ClientKit.load(kit))
    await offer(script, own)
    authority = authority_key(federation.folder)
    first, another = own.kit.roster, Ed25519PrivateKey.generate()
    changed = replace(first.members[1], public_key=another.public_key().public_bytes_raw())
    second = first.followed_by((first.members[0], changed, *first.members[2:]), (), authority)
    keys = {**{number: kit.identity for number, kit in script.kits.items()}, 2: another}
    notary = Notary(second, keys, head=script.head)
    script.records.append(notary.sum(1, run="of others", roster=2, protection=_three(script), **OTHERS))
    script.head = notary.head
    script.use(second, second.followed_by(first.members, (), authority))
    assert await offer(script, own, make_task(exchange=2, roster=3)) == ""
    assert [line["roster"] for line in verify(*copy_of(own))[1]["exchanges"]] == [1, 2, 3]


class Fixed(NoFirstModels):
    """What the client derives."""

    def __init__(self, sha256: str) -> None:
        self.sha256 = sha256

    async def of(self, task: Task, app_sha256: str, members: Sequence[int]) -> AppModel:
        return AppModel(sha256=self.sha256)


async def test_who_comes_in_the_middle_of_a_run_takes_its_beginning_from_those_who_signed(
    script: Script,
    client: Client,
    make_task: MakeTask,
    others: Callable[..., list[SignedRecord]],
    allow: Callable[..., Client],
) -> None:
    """The task's model is that of a later round; the run's records say with which it began."""
    first = ModelRef(sha256="0a" * 32, size=100)
    own = replace(allow(client, first_models=("app",)), first_models=Fixed(first.sha256))
    script.records += others(1, run="of others")
    script.records += others(1, run=script.task.run, model=first)
    assert await offer(script, own, make_task(exchange=2)) == ""
    assert await offer(script, own, make_task(exchange=3)) == "", "and remembers it"
    assert {link.run for link in own.transcript.chain.links} == {script.task.run}


@pytest.mark.parametrize("lie", ["another first model", "signatures that do not hold", "no record of the run"])
async def test_without_a_beginning_that_it_can_trace_it_leaves(
    script: Script,
    client: Client,
    make_task: MakeTask,
    others: Callable[..., list[SignedRecord]],
    allow: Callable[..., Client],
    lie: str,
) -> None:
    first = ModelRef(sha256="0a" * 32, size=100)
    own = replace(allow(client, first_models=("app",)), first_models=Fixed("0b" * 32 if "model" in lie else "0a" * 32))
    made = others(1, run="of others" if "no record" in lie else script.task.run, model=first)
    if "signatures" in lie:
        made = [one.model_copy(update={"signatures": dict.fromkeys(one.signatures, bytes(64))}) for one in made]
    script.records += made
    assert await offer(script, own, make_task(exchange=2)) == "first-model"
