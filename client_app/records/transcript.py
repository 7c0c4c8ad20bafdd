"""The client's copy of the federation's transcript, and the check of the server's against it.

The copy is a file in the state folder. A record that this client signs is in it before the signature leaves, so no
crash makes it forget; a record of others is in it once its signatures have been checked. Every secure task names the
head of the chain. If that is not the head known here, the client first fetches the records between:

| check             | stops                                                                                    |
| ----------------- | ---------------------------------------------------------------------------------------- |
| transcript-fork   | a transcript without a record that this client signed, or knows                          |
| transcript-gap    | a transcript that does not lead from this client's last record to the one the task names |
| transcript-forged | a record whose signatures do not hold                                                    |

After any of these the copy stays as it was, so the client takes part again only in a transcript that contains it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from client_app.records.journal import AppendOnlyFile, read_lines
from fedcore.errors import ConfigurationError, ProtocolViolation, Refused
from fedcore.federation import Roster
from fedcore.federation.transcript import (
    TRANSCRIPT_FORK,
    TRANSCRIPT_GAP,
    Chain,
    ChainLink,
    ExchangeRecord,
    Keys,
    SignedRecord,
    TranscriptOut,
    check_signatures,
    keys_of,
    record_hash,
    update_bytes_of,
)
from fedcore.secagg import Outcome, SignatureSet, verifies
from fedcore.system.concurrency import in_thread
from fedcore.wire.base import Message, Sha256
from fedcore.wire.problems import ProblemKind
from fedcore.wire.tasks import Task
from fedcore.wire.uploads import NOTHING, Contribution

TRANSCRIPT_FILE: Final = "transcript.jsonl"
MAX_FETCHED: Final = 10_000
"""Most records fetched before one exchange: a server could make up unfinished ones without end."""
MAX_AT_FIRST: Final = 100_000
"""The same at first contact."""

Fetch = Callable[[str], Awaitable[TranscriptOut | None]]
"""The hash of a record -> those after it, as the server has them."""


class TranscriptEntry(Message):
    """A line of the file.

    A roster, a record from before the start of the copy, that start, a record that this client signs, or one with its
    place.
    """

    event: Literal["roster", "earlier", "began", "signed", "linked"]
    hash: Sha256 | Literal[""]
    roster: Roster | None = None
    unfinished: Sha256 | Literal[""] = ""
    """Of a signed record, whose `hash` is that of the complete one: the hash that it has if too few others sign; ""
    once enough have signed."""
    record: ExchangeRecord | None = None
    linked: SignedRecord | None = None
    earlier: SignedRecord | None = None


def contributions_by_run(entries: Iterable[TranscriptEntry], client: int) -> dict[str, Contribution]:
    """What one client gave to each run, by the records that have their place in its copy."""
    runs: dict[str, Contribution] = {}
    for entry in entries:
        updates = update_bytes_of(entry.linked) if entry.linked is not None else {}
        if entry.linked is not None and client in updates:
            run = str(entry.linked.record.task["run"])
            gave = Contribution(exchanges=1, update_bytes=updates[client])
            runs[run] = runs.get(run, NOTHING) + gave
    return runs


class ClientTranscript:
    """The copy of one client, in a folder that the ledger locks."""

    def __init__(self, folder: Path, roster: Roster) -> None:
        """Read the file; raises ConfigurationError if it is damaged.

        Args:
            folder: the client's state folder.
            roster: the newest one of the client; `know` adds later ones.
        """
        self.path = folder / TRANSCRIPT_FILE
        self.chain = Chain()
        self._begun = False
        self._rosters: dict[str, Roster] = {}
        self._signed: dict[str, str] = {}
        """Records that this client signed and that have no place yet: hash if complete -> hash if unfinished."""
        self._file = AppendOnlyFile(self.path, what="the agent's transcript")
        try:
            for entry in read_entries(self.path, self._file.read()):
                self._apply(entry)
            self.know(roster)
        except BaseException:
            self._file.close()
            raise

    def know(self, roster: Roster) -> None:
        """Add a verified roster, under which records can be checked from now on."""
        if (name := roster.hash().hex()) not in self._rosters:
            self._append(TranscriptEntry(event="roster", hash=name, roster=roster))

    async def follow(self, task: Task, fetch: Fetch, *, whole_run: bool = False) -> str:
        """Extend the copy to the record that the task names; returns a line for the owner, or "".

        Raises ProtocolViolation, as above, and what `fetch` raises.

        Args:
            task: of the exchange.
            fetch: gets records from the server.
            whole_run: at first contact in the middle of a run, begin with the run's first record, if its signatures and
                those after it hold under the keys that this client knows.
        """
        if not self._begun:
            return await self._begin(task, fetch, whole_run=whole_run and task.exchange > 1)
        chain, known = self.chain.copy(), len(self.chain.links)
        entries: list[TranscriptEntry] = []
        while chain.head != task.previous:
            page = await self._page(chain, len(chain.links) - known, fetch)
            entries += await in_thread(_check, chain, page, keys_of(self._rosters.values()), task.previous)
        self._check_signed(chain.links[known:])
        for entry in entries:
            await in_thread(self._append, entry)
        return f"{len(entries)} records of others checked" if entries else ""

    async def _begin(self, task: Task, fetch: Fetch, *, whole_run: bool) -> str:
        """Take over all that came before: the sums in it count, as they do for those who were in them."""
        walked = await self._walk(task, fetch)
        start = len(walked)
        if whole_run:
            start = next((at for at, (_, _, link) in enumerate(walked) if link.run == task.run), start)
        try:
            checked = [await in_thread(self._check_under_own, signed) for _, signed, _ in walked[start:]]
        except ProtocolViolation:
            start, checked = len(walked), []
        for _, signed, link in walked[:start]:
            entry = TranscriptEntry(event="earlier", hash=link.hash, earlier=signed)
            await in_thread(partial(self._append, entry, sync=False))  # with the line that follows them
        anchor = walked[start][0] if checked else task.previous
        await in_thread(self._append, TranscriptEntry(event="began", hash=anchor))
        for name, (_, signed, _) in zip(checked, walked[start:], strict=True):
            await in_thread(self._append, TranscriptEntry(event="linked", hash=name, linked=signed))
        return (
            f"first contact: taking the transcript as it is, {len(walked)} records up to {task.previous[:12] or 'now'}"
        )

    async def _walk(self, task: Task, fetch: Fetch) -> list[tuple[str, SignedRecord, ChainLink]]:
        """All records up to the task's, each with the head before it; raises ProtocolViolation if there is a gap.

        The head that the task names binds them, and the members who have checked them take part under no other. Of
        their signatures those are left that hold under the keys of today's members.
        """
        walked: list[tuple[str, SignedRecord, ChainLink]] = []
        chain = Chain()
        while chain.head != task.previous:
            page = await fetch(chain.head)
            if page is None or not page.records or len(walked) > MAX_AT_FIRST:
                raise _gap()
            for signed in page.records:
                if chain.head == task.previous:
                    break
                before, (own, link) = chain.head, await in_thread(self._as_heard, signed)
                chain.add(link)
                walked.append((before, own, link))
        return walked

    def _as_heard(self, signed: SignedRecord) -> tuple[SignedRecord, ChainLink]:
        """A record and its link, whose hash is that of its content, with the signatures that hold here."""
        task = signed.record.announced()
        outcome = signed.record.outcome(task)
        statement, keys = outcome.statement(), self._keys_for(signed)
        valid = {
            signer: signature
            for signer, signature in signed.signatures.items()
            if signer in outcome.survivors and signer in keys and verifies(keys[signer], signature, statement)
        }
        own = signed.model_copy(update={"signatures": valid})
        return own, ChainLink.of(record_hash(outcome, complete=signed.complete), task, own)

    def _check_under_own(self, signed: SignedRecord) -> str:
        """The hash of a record of which enough signatures hold here; raises ProtocolViolation."""
        return check_signatures(signed, signed.record.announced(), self._keys_for(signed))

    def _keys_for(self, signed: SignedRecord) -> Mapping[int, bytes]:
        """Those of the record's roster.

        Rosters before this client's own are unknown to it: then they are the keys of its own, which is to say that
        members of today signed.
        """
        newest = max(self._rosters.values(), key=lambda roster: roster.version)
        return self._rosters.get(signed.record.roster_sha256, newest).keys

    @property
    def signed(self) -> Mapping[str, str]:
        """The records that this client signed and that have no place yet, as `JoinIn` names them."""
        return self._signed

    def lost_records(self) -> ProtocolViolation:
        """The finding that the server does not have all that this client knows and signed."""
        names = [f"{name[:12]}…" for name in (self.chain.head, *self._signed) if name]
        return self._fork(f"all records that this client knows or signed ({', '.join(names)})")

    def _unknown_head(self, chain: Chain) -> ProtocolViolation:
        return self._fork(f"the record {chain.head[:12]}…, the last one that this client knows")

    def sign(self, task: Task, outcome: Outcome, roster: Roster) -> ExchangeRecord:
        """Write down a record whose survivors this client is about to sign; `roster` is the one in its ctx."""
        record = ExchangeRecord.of(task, federation=roster.federation, roster_hash=roster.hash(), outcome=outcome)
        complete, unfinished = (record_hash(outcome, complete=complete) for complete in (True, False))
        self._append(TranscriptEntry(event="signed", hash=complete, unfinished=unfinished, record=record))
        return record

    def complete(self, record: ExchangeRecord, outcome: Outcome, signatures: SignatureSet) -> None:
        """Link a record whose quorum of signatures this client has checked.

        A group's record gets its place only with those of the other groups; until then it is noted as complete.
        """
        if record.announced().group is not None:
            self._append(TranscriptEntry(event="signed", hash=record_hash(outcome, complete=True), record=record))
            return
        linked = SignedRecord(record=record, complete=True, signatures=dict(signatures.signatures))
        self._append(TranscriptEntry(event="linked", hash=record_hash(outcome, complete=True), linked=linked))

    def close(self) -> None:
        """Release the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _page(self, chain: Chain, fetched: int, fetch: Fetch) -> TranscriptOut:
        try:
            page = await fetch(chain.head)
        except Refused as refused:
            if refused.kind != ProblemKind.NOT_FOUND:
                raise
            raise self._unknown_head(chain) from None
        if page is None or not page.records or fetched + len(page.records) > MAX_FETCHED:
            raise _gap()
        return page

    def _check_signed(self, links: list[ChainLink]) -> None:
        """Check that the chain has every record that this client signed."""
        hashes = {link.hash for link in links}
        for complete, unfinished in self._signed.items():
            if not hashes & {complete, unfinished}:
                raise self._fork(f"the record {complete[:12]}…, which this client signed")

    def _fork(self, what: str) -> ProtocolViolation:
        return ProtocolViolation(
            TRANSCRIPT_FORK,
            f"the server's transcript does not contain {what}: somebody may be hiding what was summed, or has "
            "put an older backup back. This client takes part in nothing without it. Compare `fedcore transcript show` "
            "with other members and the server's operator; to take the server's transcript as a new beginning, move "
            f"{self.path} away and start again",
        )

    def _append(self, entry: TranscriptEntry, *, sync: bool = True) -> None:
        self._file.append(entry.model_dump_json(exclude_none=True), sync=sync)
        self._apply(entry)

    def _apply(self, entry: TranscriptEntry) -> None:
        match entry.event:
            case "roster" if entry.roster is not None:
                self._rosters[entry.hash] = entry.roster
            case "earlier" if entry.earlier is not None:
                task = entry.earlier.record.announced()
                self.chain.earlier.append(ChainLink.of(entry.hash, task, entry.earlier))
            case "began":
                self._begun, self.chain.anchor = True, entry.hash
            case "signed":
                self._signed[entry.hash] = entry.unfinished
            case "linked":
                self._link(entry)

    def _link(self, entry: TranscriptEntry) -> None:
        if entry.linked is None:
            raise ConfigurationError("a record that has its place is there as a whole")
        self.chain.add(ChainLink.of(entry.hash, entry.linked.record.announced(), entry.linked))
        self._signed = {
            complete: unfinished
            for complete, unfinished in self._signed.items()
            if entry.hash not in (complete, unfinished)
        }


def _gap() -> ProtocolViolation:
    return ProtocolViolation(
        TRANSCRIPT_GAP,
        "the server's records do not lead to the one that the task names; ask the server's operator for the whole "
        "transcript. Until then this client takes part in nothing",
    )


def _check(chain: Chain, page: TranscriptOut, keys: Keys, last: str) -> list[TranscriptEntry]:
    """Extend the chain by a page, up to the record `last`; returns the lines to write."""
    entries: list[TranscriptEntry] = []
    for signed in page.records:
        if chain.head == last:
            break
        link, _ = chain.extend(signed, keys)
        entries.append(TranscriptEntry(event="linked", hash=link.hash, linked=signed))
    return entries


def read_entries(path: Path, content: bytes) -> Iterator[TranscriptEntry]:
    """Parse complete lines of the copy at `path`; raises ConfigurationError."""
    return read_lines(path, content, TranscriptEntry.model_validate_json, unknown="what this client has signed")
