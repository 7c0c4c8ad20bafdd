"""The durable record of what this client took part in, so that no crash makes it take part twice.

A client that restarts in the middle of a round is a dropout of that round (docs/protocol.md), and shares for the
unmasking leave it exactly once. Both must outlive the process, so each is written and synced before the first byte of
it leaves the machine. So is what each noised sum may reveal about this client, which its policy may bound for all runs
together. The file has one JSON object a line and only ever grows.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, model_validator

from fedcore.errors import ConfigurationError, EnvironmentFailure, ProtocolViolation, StorageFull
from fedcore.privacy import Accountant, Release
from fedcore.system.files import Lock, full_disk_named, sync_folder

LEDGER_FILE: Final = "ledger.jsonl"

ExchangeId: TypeAlias = tuple[str, int]
"""A run and the number of an exchange in it."""


def lock_folder(folder: Path) -> Lock:
    """Hold a kit or a state folder for one agent alone; raises ConfigurationError when another one holds it."""
    taken = f"another agent uses {folder} already; stop it first, two agents must not share one identity"
    return Lock(folder, taken=taken)


class _Entry(BaseModel):
    """A line of the file. release: of a noised sum, with `spent`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    event: Literal["entered", "unmasked", "left", "spent"]
    run: str
    exchange: int
    release: Release | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.event == "spent") != (self.release is not None):
            raise ValueError("a release belongs to a sum whose noise was spent, and to nothing else")
        return self


class Ledger:
    """The record of one client; `Ledger(folder)` reads what earlier starts wrote and locks the folder.

    Raises ConfigurationError when the folder is in use or the file is damaged, StorageFull when it cannot grow.
    """

    def __init__(self, folder: Path) -> None:
        self._lock = lock_folder(folder)
        self._highest: dict[str, int] = {}
        self._unmasked: set[ExchangeId] = set()
        self._spent = Accountant()
        self._open: ExchangeId | None = None
        self._last: ExchangeId | None = None
        try:
            self._descriptor = _open_file(folder / LEDGER_FILE)
            self._read(folder / LEDGER_FILE)
        except BaseException:
            self._lock.close()
            raise

    @property
    def open_exchange(self) -> ExchangeId | None:
        """The exchange that was entered and not left: after a crash, the one to withdraw from."""
        return self._open

    @property
    def last(self) -> ExchangeId | None:
        """The exchange that was entered last."""
        return self._last

    @property
    def spent(self) -> Accountant:
        """What all noised sums that this client took part in may reveal about it."""
        return self._spent

    def enter(self, run: str, exchange: int) -> None:
        """Use up an exchange's number, before anything is said in it.

        Raises ProtocolViolation("exchange-reused") when the run offered this number, or a higher one, before.
        """
        if exchange <= self._highest.get(run, 0):
            raise ProtocolViolation("exchange-reused", f"exchange {exchange} of this run was entered before")
        self._append(_Entry(event="entered", run=run, exchange=exchange))

    def unmask(self, run: str, exchange: int) -> None:
        """Note that the shares of an exchange are about to leave this machine, once and for all.

        Raises ProtocolViolation("second-unmask") when they left before.
        """
        if (run, exchange) in self._unmasked:
            raise ProtocolViolation("second-unmask", f"the shares of exchange {exchange} left this machine before")
        self._append(_Entry(event="unmasked", run=run, exchange=exchange))

    def spend(self, run: str, exchange: int, release: Release) -> None:
        """Note that a noised update is about to leave this machine, whether or not its sum will ever be known."""
        self._append(_Entry(event="spent", run=run, exchange=exchange, release=release))

    def leave(self, run: str, exchange: int) -> None:
        """Note that an exchange is over for this client, whatever its end was."""
        self._append(_Entry(event="left", run=run, exchange=exchange))

    def close(self) -> None:
        """Release the file and the folder."""
        os.close(self._descriptor)
        self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, entry: _Entry) -> None:
        line = entry.model_dump_json(exclude_none=True).encode() + b"\n"
        end = os.fstat(self._descriptor).st_size
        try:
            with full_disk_named("the disk that holds the agent's ledger is full; free some space"):
                if os.write(self._descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(self._descriptor)
        except (OSError, StorageFull) as error:
            os.ftruncate(self._descriptor, end)
            if isinstance(error, StorageFull):
                raise
            raise EnvironmentFailure(f"the agent's ledger cannot be written: {error.strerror}") from error
        self._apply(entry)

    def _apply(self, entry: _Entry) -> None:
        exchange_id = (entry.run, entry.exchange)
        match entry.event:
            case "entered":
                self._highest[entry.run] = max(entry.exchange, self._highest.get(entry.run, 0))
                self._open = self._last = exchange_id
            case "unmasked":
                self._unmasked.add(exchange_id)
            case "spent" if entry.release is not None:
                self._spent.add(entry.release)
            case "left" if self._open == exchange_id:
                self._open = None

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        # A crash in the middle of a write leaves a last line without its end. That write was never synced, so
        # nothing that depends on it has left the machine.
        os.ftruncate(self._descriptor, whole)
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                entry = _Entry.model_validate_json(line)
            except (ValueError, ConfigurationError):
                raise ConfigurationError(
                    f"line {number} of {path} is damaged, so it is not known in which exchanges this client took "
                    "part; restore the file, or move the folder away and ask for a new identity"
                ) from None
            self._apply(entry)


def _open_file(path: Path) -> int:
    """Open for appending; a new file's name is durable before it is used."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EnvironmentFailure(f"{path} cannot be opened: {error.strerror}") from error
    sync_folder(path.parent)
    return descriptor
