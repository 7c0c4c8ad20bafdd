"""The chain of records, each naming the head of the chain at which its exchange was opened.

The head is the hash of the last record, which binds all before it. The groups of one draw (`fedcore.run.groups`) are
open at the same time: records of other groups may follow the head that they name, and the head after such a record is a
hash over the head before it and its own. Only other groups of the same draw may stand between a record and the head
that it names, so that what follows a draw binds all of its groups.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from fedcore.errors import ProtocolViolation
from fedcore.federation import Roster
from fedcore.federation.transcript.records import (
    TRANSCRIPT_FORGED,
    TRANSCRIPT_GAP,
    SignedRecord,
    check_signatures,
    name_of,
)
from fedcore.secagg.crypto.domain import pack
from fedcore.state import Layout
from fedcore.wire.tasks import Task, Updates

HEAD_TAG: Final = "fedcore/head/v1"
Keys: TypeAlias = Callable[[str], Mapping[int, bytes] | None]
"""SHA-256 of a roster -> client id -> raw Ed25519 public key; None for a roster that is not known."""


def keys_of(rosters: Iterable[Roster]) -> Keys:
    """The keys of these rosters, by their hashes."""
    known = {roster.hash().hex(): roster.keys for roster in rosters}
    return known.get


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """A record's position in the chain, and what was summed.

    previous: the head that its exchange was opened at.
    draw: of which draw it is a group, "" for none.
    signers: who stood at its end and signed.
    purpose: as the task has it.
    model: `Task.subject_model`.
    survivors: ids of 4 bytes each, a small part of what a set of them would take.
    cohort: likewise.
    threshold: as `NoisedSum` has it.
    corrupt: likewise.
    full_graph: likewise.
    message_type: of the task.
    layouts: of a training, the digests of its model's layout and of that without control variates, hex; "" of anything
        else, and of an encoding that this version cannot read.
    versions: of a buffered exchange, the models that it names (`Task.versions`).
    buffered: of a buffered exchange, what was summed: client, SHA-256 of the model that it began from, and what its
        update counts (`Task.updates_of`).
    """

    hash: str
    previous: str
    draw: str
    run: str
    exchange: int
    complete: bool
    signers: frozenset[int]
    purpose: str
    model: str
    survivors: bytes
    cohort: bytes
    threshold: int
    corrupt: int
    full_graph: bool
    buffered: tuple[tuple[int, str, float], ...] = ()
    versions: frozenset[tuple[int, str]] = frozenset()
    message_type: str = ""
    layouts: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, record_hash: str, task: Task, signed: SignedRecord) -> ChainLink:
        """The link of a record that has been checked."""
        return cls.of_sum(
            record_hash,
            task,
            survivors=signed.record.survivors,
            signers=signed.signatures,
            complete=signed.complete,
        )

    @classmethod
    def of_sum(
        cls, record_hash: str, task: Task, *, survivors: Collection[int], signers: Collection[int], complete: bool
    ) -> ChainLink:
        """The link of a record, out of what it consists of."""
        layout = task.encoding.layout if task.encoding is not None else None
        return cls(
            hash=record_hash,
            previous=task.previous,
            draw=task.group.draw if task.group else "",
            run=task.run,
            exchange=task.exchange,
            complete=complete,
            signers=frozenset(signers),
            purpose=task.purpose,
            model=task.subject_model,
            survivors=array("I", survivors).tobytes(),
            cohort=array("I", task.cohort).tobytes(),
            threshold=task.protection.threshold if task.protection else 0,
            corrupt=task.protection.corrupt if task.protection else 0,
            full_graph=task.protection is not None and task.protection.degree == len(task.cohort) - 1,
            buffered=buffered_of(task, survivors),
            versions=task.versions(),
            message_type=sys.intern(task.message_type),
            layouts=_digests(layout) if layout is not None else ("", ""),
        )

    @property
    def updates(self) -> Updates:
        """What was summed, as `Task.updates_of` has it."""
        if self.buffered:
            return {(client, start): factor for client, start, factor in self.buffered}
        return dict.fromkeys(((client, self.model) for client in array("I", self.survivors)), 1.0)

    def closed_for(self, elsewhere: Set[int]) -> bool:
        """Whether the sum is proven to stay masked for good, by those of its cohort who went `elsewhere`.

        A client that continues a chain in which the record is unfinished saw no quorum, and keeps its shares; if too
        few others are left, nobody can rebuild a secret (`never_unmasked` has the argument in full).
        """
        cohort = array("I", self.cohort)
        departed = sum(client in elsewhere for client in cohort)
        return not self.complete and self.full_graph and departed > len(cohort) - self.threshold + self.corrupt


def _digests(layout: Layout) -> tuple[str, str]:
    """What `ChainLink.layouts` says; one text for all links with the same layout."""
    full, model = layout.digest().hex(), layout.without_controls().digest().hex()
    return sys.intern(full), sys.intern(model)


def buffered_of(task: Task, survivors: Iterable[int]) -> tuple[tuple[int, str, float], ...]:
    """What `ChainLink.buffered` says of a task's sum."""
    if task.buffer is None:
        return ()
    return tuple((client, start, factor) for (client, start), factor in task.updates_of(survivors).items())


@dataclass(slots=True)
class Chain:
    """What is known of a transcript: everything after the record `anchor`, or all of it if that is "".

    earlier: the records up to the anchor, as the server has them. The hash of the anchor binds what was summed in them;
        their signatures were not all checked, so they count as sums and for nothing else.
    """

    anchor: str = ""
    links: list[ChainLink] = field(default_factory=list)
    earlier: list[ChainLink] = field(default_factory=list)
    _heads: list[str] = field(default_factory=list)

    @property
    def head(self) -> str:
        """What the next exchange names: it binds all records so far."""
        return self._heads[-1] if self._heads else self.anchor

    def copy(self) -> Chain:
        """A separate chain with the same records."""
        return Chain(anchor=self.anchor, links=[*self.links], earlier=[*self.earlier], _heads=[*self._heads])

    def add(self, link: ChainLink) -> None:
        """Append a record that has been checked."""
        self._heads.append(next_head(self.head, link.previous, link.hash))
        self.links.append(link)

    def extend(self, signed: SignedRecord, keys: Keys) -> tuple[ChainLink, Task]:
        """Check a record against its signatures and the head, and add it.

        Raises ProtocolViolation: "transcript-forged" if signatures do not hold, "transcript-gap" if records other than
        groups of its own draw stand between it and the head that it names.
        """
        task = signed.record.announced()
        if task.previous != self.head and not self._is_sibling(task):
            before = f"{task.previous[:12]}…" if task.previous else "none"
            raise ProtocolViolation(
                TRANSCRIPT_GAP,
                f"{name_of(task)} follows on the record {before}, the one before it is {self.head[:12] or 'none'}…",
            )
        known = keys(signed.record.roster_sha256)
        if known is None:
            raise ProtocolViolation(
                TRANSCRIPT_FORGED,
                f"{name_of(task)} is of the roster {signed.record.roster_sha256[:12]}…, which is not known here",
            )
        link = ChainLink.of(check_signatures(signed, task, known), task, signed)
        self.add(link)
        return link, task

    def _is_sibling(self, task: Task) -> bool:
        """Whether the head that the task names was one, and only groups of the task's own draw came after it."""
        since = self.after(task.previous)
        return task.group is not None and since is not None and all(link.draw == task.group.draw for link in since)

    def sums(self, purpose: str, model: str, *, present: Collection[int] | None = None) -> set[frozenset[int]]:
        """The sets of survivors of all records of one purpose and model, unfinished ones among them.

        Args:
            present: who takes part in an exchange that continues this chain, as their signed keys show; sums that are
                proven to stay masked for good are then left out.
        """
        survivor_sets: set[bytes] = set()
        elsewhere = set(present or ())
        for link in reversed([*self.earlier, *self.links]):
            if (link.purpose, link.model) == (purpose, model) and (present is None or not link.closed_for(elsewhere)):
                survivor_sets.add(link.survivors)
            elsewhere |= link.signers
        return {frozenset(array("I", survivors)) for survivors in survivor_sets}

    def after(self, head: str) -> list[ChainLink] | None:
        """The records after those that this head stands for; None if the chain does not reach back to it."""
        if head == self.anchor:
            return self.links
        for index, known in enumerate(self._heads):
            if known == head:
                return self.links[index + 1 :]
        return None


def next_head(head: str, previous: str, record_hash: str) -> str:
    """The head after a record that was opened at the head `previous`, if `head` was the one before it."""
    if previous == head:
        return record_hash  # ctx, and so the record's hash, binds the head that it names
    return hashlib.sha256(pack(HEAD_TAG, head, record_hash)).hexdigest()
