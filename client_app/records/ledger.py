"""The client's ledger: a durable record of its exchanges, so that no crash makes it take part twice.

A client that restarts in the middle of a round is a dropout of that round (docs/protocol.md), and shares for the
unmasking leave it exactly once. Both must outlive the process, so each is written and synced before the first byte of
it leaves the machine. So is the epsilon of each noised sum, which the policy may bound for all runs together; if the
transcript later proves that a sum stayed masked, its epsilon is refunded
(`fedcore.federation.transcript.never_unmasked`). The file has one JSON object a line and only grows;
`client_app.records.ledger_entries` defines the lines.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias

from client_app.records.journal import AppendOnlyFile
from client_app.records.ledger_entries import (
    LEDGER_FILE,
    DrawEntry,
    EnteredEntry,
    Entry,
    LeaveEntry,
    RefundEntry,
    RefusedEntry,
    ScalesEntry,
    SpentEntry,
    TaskEntry,
    UnmaskEntry,
    UploadEntry,
    WorkEntry,
    read_entries,
)
from fedcore.codec import ScaleMemory
from fedcore.codec.privacy import Accountant
from fedcore.errors import ProtocolViolation
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.admission.owner import AgreedSum, ModelEntry
from fedcore.federation.near_models import ModelHistory
from fedcore.federation.transcript import NoisedSum
from fedcore.run.groups import GroupAssignmentRecord
from fedcore.state import Sketch
from fedcore.system.files import Lock
from fedcore.wire.tasks import Task

_DAY_SECONDS: Final = 86_400.0

ExchangeId: TypeAlias = tuple[str, int]
"""A run and the number of an exchange in it."""


def lock_folder(folder: Path) -> Lock:
    """Lock a kit or a state folder for one agent; raises ConfigurationError if another agent uses it."""
    message = f"another agent uses {folder} already; stop it first, two agents must not share one identity"
    return Lock(folder, in_use=message)


class Ledger:
    """The ledger of one client. Every method that writes raises StorageFull if the disk is full."""

    def __init__(self, folder: Path, *, wall: Callable[[], float] = time.time) -> None:
        """Lock the folder and read the file; raises ConfigurationError if it is in use, or damaged.

        Args:
            folder: the client's state folder.
            wall: seconds since 1970.
        """
        self._lock = lock_folder(folder)
        self._wall = wall
        self.models = ModelHistory()
        """The models that this client had for sums."""
        self._highest: dict[str, int] = {}
        self._entered: Counter[str] = Counter()
        self._times: deque[float] = deque()
        self._released: dict[tuple[str, str], list[AgreedSum]] = {}
        self._scales: dict[tuple[str, str], ScaleMemory] = {}
        self._drawn: dict[str, GroupAssignmentRecord] = {}
        self._draws: Counter[tuple[str, str]] = Counter()
        self._unmasked: set[ExchangeId] = set()
        self._attempts: dict[ExchangeId, NoisedSum] = {}
        self._open: ExchangeId | None = None
        self._last: ExchangeId | None = None
        try:
            self._file = AppendOnlyFile(folder / LEDGER_FILE, what="the agent's ledger")
            for entry in read_entries(folder / LEDGER_FILE, self._file.read()):
                self._apply(entry)
        except BaseException:
            self._lock.close()
            raise

    @property
    def open_exchange(self) -> ExchangeId | None:
        """The exchange that was entered and not left: after a crash, the client withdraws from it."""
        return self._open

    @property
    def last(self) -> ExchangeId | None:
        """The last exchange that was entered."""
        return self._last

    @property
    def attempts(self) -> tuple[NoisedSum, ...]:
        """The noised sums that this client's update went to, without those that were refunded."""
        return tuple(self._attempts.values())

    def spent(self, *, without: Collection[NoisedSum] = (), rows: bool = False) -> Accountant:
        """What all these sums may reveal about this client; with `rows` about a row, noise for rows alone included."""
        left_out = {(attempt.run, attempt.exchange) for attempt in without}
        releases = Counter(
            attempt.release
            for key, attempt in self._attempts.items()
            if key not in left_out and (rows or not attempt.rows)
        )
        accountant = Accountant()
        for release, times in releases.items():
            accountant.add(release, times)
        return accountant

    def entered_in(self, run: str) -> int:
        """How many exchanges of a run were entered."""
        return self._entered[run]

    def entered_in_a_day(self) -> int:
        """How many exchanges were entered in the last 24 hours."""
        while self._times and self._times[0] < self._wall() - _DAY_SECONDS:
            self._times.popleft()
        return len(self._times)

    def released(self, purpose: str, model: str) -> tuple[AgreedSum, ...]:
        """The sums of one purpose and model that this client agreed to."""
        return tuple(self._released.get((purpose, model), ()))

    def scales(self, run: str, layout: str) -> ScaleMemory | None:
        """The last scales of a model's layout in a run."""
        return self._scales.get((run, layout))

    def remember_scales(self, run: str, layout: str, memory: ScaleMemory) -> None:
        """Note the scales of an exchange, before anything private is touched."""
        self._append(
            ScalesEntry(run=run, exchange=memory.exchange, layout=layout, scales=memory.scales, falls=memory.falls)
        )

    def ask(self, run: str, exchange: int, **fields: Any) -> None:
        """Note a task of the server: the fields of `TaskEntry`."""
        self._append(TaskEntry(run=run, exchange=exchange, at=self._now(), **fields), sync=False)

    def work(self, task: Task, agreed: AppAgreement) -> None:
        """Note that the server asks for background training."""
        self._append(
            WorkEntry(
                run=task.run,
                exchange=task.exchange,
                at=self._now(),
                app_sha256=task.app_sha256,
                model=task.model_sha256,
                changed=agreed.changed(task),
            ),
            sync=False,
        )

    def refuse(self, run: str, exchange: int, check: str, subject: str = "") -> None:
        """Note why this client left an exchange."""
        self._append(RefusedEntry(run=run, exchange=exchange, at=self._now(), check=check, subject=subject), sync=False)

    def enter(self, run: str, exchange: int) -> None:
        """Use up an exchange's number, before any message is sent in it.

        Raises ProtocolViolation("exchange-reused") if the run offered this number, or a higher one, before.
        """
        if exchange <= self._highest.get(run, 0):
            raise ProtocolViolation("exchange-reused", f"exchange {exchange} of this run was entered before")
        self._append(EnteredEntry(run=run, exchange=exchange, at=self._now()))

    def release(self, released: AgreedSum) -> None:
        """Note that this client is about to agree to a sum: others may unmask it as soon as its signature leaves."""
        self._append(released)

    def add_model(self, task: Task, sketch: Sketch | None) -> None:
        """Note that this client has a model for a sum, on disk before `release` returns.

        Args:
            task: of the sum.
            sketch: of its model, None if an earlier entry has it or there are no elements to tell a distance by.
        """
        is_known = sketch is not None and self.models.book.knows(task.subject_model, sketch.seed)
        self._append(ModelEntry.of(task, None if is_known else sketch), sync=False)

    def unmask(self, run: str, exchange: int) -> None:
        """Note that the shares of an exchange are about to leave this machine, once and for all.

        Raises ProtocolViolation("second-unmask") if they left before.
        """
        if (run, exchange) in self._unmasked:
            raise ProtocolViolation("second-unmask", f"the shares of exchange {exchange} left this machine before")
        self._append(UnmaskEntry(run=run, exchange=exchange))

    def send(self, run: str, exchange: int, form: Literal["masked", "readable"], size: int) -> None:
        """Note that an update of `size` bytes is about to leave this machine."""
        self._append(UploadEntry(run=run, exchange=exchange, form=form, size=size))

    def drawn(self, run: str) -> GroupAssignmentRecord | None:
        """The last draw of a run that this client answered."""
        return self._drawn.get(run)

    def draws(self, purpose: str, model: str) -> int:
        """How many draws for one purpose and model this client answered."""
        return self._draws[purpose, model]

    def draw(self, drawn: GroupAssignmentRecord) -> None:
        """Note that an answer to a draw is about to leave this machine."""
        self._append(DrawEntry(run=drawn.run, exchange=drawn.exchange, drawn=drawn))

    def spend(self, attempt: NoisedSum) -> None:
        """Note that a noised update is about to leave this machine, whether or not its sum will ever be known."""
        self._append(SpentEntry(run=attempt.run, exchange=attempt.exchange, attempt=attempt))

    def refund(self, attempt: NoisedSum) -> None:
        """Note the proof that this sum was never unmasked, and never will be."""
        self._append(RefundEntry(run=attempt.run, exchange=attempt.exchange))

    def leave(self, run: str, exchange: int, *, up: int = 0, down: int = 0) -> None:
        """Note that an exchange is over for this client, however it ended.

        Args:
            run: the run.
            exchange: its number.
            up: bytes sent, as in `LeaveEntry`.
            down: bytes received.
        """
        self._append(LeaveEntry(run=run, exchange=exchange, up=up, down=down))

    def close(self) -> None:
        """Release the file and the folder."""
        self._file.close()
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _now(self) -> float:
        return round(self._wall(), 3)

    def _append(self, entry: Entry, *, sync: bool = True) -> None:
        self._file.append(entry.model_dump_json(exclude_none=True), sync=sync)
        self._apply(entry)

    def _apply(self, entry: Entry) -> None:
        exchange_id = (entry.run, entry.exchange)
        match entry:
            case EnteredEntry(at=at):
                self._highest[entry.run] = max(entry.exchange, self._highest.get(entry.run, 0))
                self._open = self._last = exchange_id
                self._entered[entry.run] += 1
                self._times.append(at)
            case AgreedSum():
                self._released.setdefault((entry.purpose, entry.model), []).append(entry)
            case ModelEntry():
                entry.apply(self.models)
            case ScalesEntry(layout=layout, scales=scales, falls=falls):
                memory = ScaleMemory(exchange=entry.exchange, scales=scales, falls=falls)
                self._scales[entry.run, layout] = memory
            case DrawEntry(drawn=drawn):
                self._drawn[entry.run] = drawn
                self._draws[drawn.purpose, drawn.model] += 1
            case UnmaskEntry():
                self._unmasked.add(exchange_id)
            case SpentEntry():
                self._attempts[exchange_id] = entry.attempt
            case RefundEntry():
                self._attempts.pop(exchange_id, None)
            case LeaveEntry() if self._open == exchange_id:
                self._open = None


def note_task(task: Task, agreed: AppAgreement, ledger: Ledger) -> None:
    """Note a task of the server, for the owner."""
    ledger.ask(
        task.run,
        task.exchange,
        attempt=task.attempt,
        message_type=task.message_type,
        aggregation=task.aggregation,
        app_sha256=task.app_sha256,
        model=task.model_sha256,
        cohort=len(task.cohort),
        changed=agreed.changed(task),
    )
