"""The ledger: an exchange that an agent entered is not entered again after a restart."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from client_app.ledger import LEDGER_FILE, Ledger, lock_folder
from fedcore.errors import ConfigurationError, ProtocolViolation, StorageFull
from fedcore.privacy import Accountant, Release


def test_an_exchange_is_entered_once(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.enter("run", 3)
        with pytest.raises(ProtocolViolation, match="exchange-reused"):
            ledger.enter("run", 3)
        ledger.enter("run", 4)
        ledger.enter("other", 3)


def test_an_exchange_stays_entered_after_a_restart(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.enter("run", 3)
    with Ledger(tmp_path) as ledger:
        assert ledger.open_exchange == ("run", 3)
        with pytest.raises(ProtocolViolation, match="exchange-reused"):
            ledger.enter("run", 3)
        with pytest.raises(ProtocolViolation, match="exchange-reused"):
            ledger.enter("run", 2)


def test_shares_leave_once_whatever_happens(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.enter("run", 1)
        ledger.unmask("run", 1)
        with pytest.raises(ProtocolViolation, match="second-unmask"):
            ledger.unmask("run", 1)
    with Ledger(tmp_path) as ledger, pytest.raises(ProtocolViolation, match="second-unmask"):
        ledger.unmask("run", 1)


def test_leaving_closes_the_exchange_and_keeps_its_number(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.enter("run", 1)
        ledger.leave("run", 1)
        assert ledger.open_exchange is None
    with Ledger(tmp_path) as ledger:
        assert ledger.open_exchange is None
        assert ledger.last == ("run", 1)


RELEASE = Release(mechanism="skellam", variance=1e6, shares=3, scale=1024, dimension=100)


def test_what_sums_reveal_adds_up_over_restarts_and_runs(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        assert ledger.spent.epsilon(1e-5) == 0
        ledger.enter("run", 1)
        ledger.spend("run", 1, RELEASE)
        ledger.leave("run", 1)
    with Ledger(tmp_path) as ledger:
        assert ledger.spent.epsilon(1e-5) == Accountant((RELEASE,)).epsilon(1e-5)
        ledger.spend("another run", 1, RELEASE)
        assert ledger.open_exchange is None
        assert ledger.last == ("run", 1)
    with Ledger(tmp_path) as ledger:
        assert ledger.spent.epsilon(1e-5) == Accountant((RELEASE, RELEASE)).epsilon(1e-5)


@pytest.mark.parametrize("release", [b"", b', "release": {}', b', "release": {"variance": 0}', b', "release": null'])
def test_a_sum_that_cannot_be_read_is_no_sum_that_cost_nothing(tmp_path: Path, release: bytes) -> None:
    line = b'{"event": "spent", "run": "run", "exchange": 1' + release + b"}"
    (tmp_path / LEDGER_FILE).write_bytes(line + b"\n")
    with pytest.raises(ConfigurationError, match=r"line 1 of .* is damaged"):
        Ledger(tmp_path)


def test_a_line_that_a_crash_cut_off_is_forgotten(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.enter("run", 1)
    with (tmp_path / LEDGER_FILE).open("ab") as file:
        file.write(b'{"event": "entered", "run": "run", "exch')
    with Ledger(tmp_path) as ledger:
        ledger.enter("run", 2)
    with Ledger(tmp_path) as ledger:
        assert ledger.last == ("run", 2)


@pytest.mark.parametrize(
    "line",
    [
        b"rubbish\n",
        b'{"event": "entered"}\n',
        b'{"event": "dreamt", "run": "r", "exchange": 1}\n',
        b'{"event": "entered", "run": "r", "exchange": "1"}\n',
    ],
)
def test_a_damaged_ledger_stops_the_agent(tmp_path: Path, line: bytes) -> None:
    (tmp_path / LEDGER_FILE).write_bytes(line)
    with pytest.raises(ConfigurationError, match=r"line 1 .* is damaged"):
        Ledger(tmp_path)
    lock_folder(tmp_path).close()  # the failed start holds no lock


def test_a_full_disk_is_named_and_nothing_counts_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(tmp_path) as ledger:
        write = os.write

        def half(descriptor: int, data: bytes) -> int:
            write(descriptor, data[:10])
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(StorageFull, match="ledger is full"):
            ledger.enter("run", 1)
        monkeypatch.undo()
        assert ledger.last is None
        ledger.enter("run", 1)
    with Ledger(tmp_path) as ledger:
        assert ledger.last == ("run", 1)


def test_the_file_is_private(tmp_path: Path) -> None:
    with Ledger(tmp_path):
        assert (tmp_path / LEDGER_FILE).stat().st_mode & 0o077 == 0
