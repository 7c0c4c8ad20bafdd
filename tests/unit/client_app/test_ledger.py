"""The ledger: an exchange that an agent entered is not entered again after a restart."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from client_app.records.journal import whole_lines
from client_app.records.ledger import Ledger, lock_folder
from client_app.records.ledger_entries import LEDGER_FILE, read_entries
from fedcore.codec.privacy import Accountant, Release
from fedcore.errors import ConfigurationError, ProtocolViolation, StorageFull
from fedcore.federation.admission.owner import AgreedSum, ids_from_text, ids_to_text
from fedcore.federation.transcript import NoisedSum
from tests.support.raising import raises


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


def attempt(run: str, exchange: int) -> NoisedSum:
    return NoisedSum(
        run=run,
        exchange=exchange,
        release=RELEASE,
        previous="",
        cohort=[1, 2, 3, 4],
        quorum=3,
        corrupt=0,
        threshold=3,
        full_graph=True,
    )


def test_what_sums_reveal_adds_up_over_restarts_and_runs(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        assert ledger.spent().epsilon(1e-5) == 0
        ledger.enter("run", 1)
        ledger.spend(attempt("run", 1))
        ledger.leave("run", 1)
    with Ledger(tmp_path) as ledger:
        assert ledger.spent().epsilon(1e-5) == Accountant((RELEASE,)).epsilon(1e-5)
        ledger.spend(attempt("another run", 1))
        assert ledger.open_exchange is None
        assert ledger.last == ("run", 1)
    with Ledger(tmp_path) as ledger:
        assert ledger.spent().epsilon(1e-5) == Accountant((RELEASE, RELEASE)).epsilon(1e-5)


def test_what_is_proven_to_have_stayed_masked_is_returned_for_good(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.spend(attempt("run", 1))
        ledger.spend(attempt("run", 2))
        assert ledger.spent(without=[attempt("run", 1)]).epsilon(1e-5) == Accountant((RELEASE,)).epsilon(1e-5)
        ledger.refund(attempt("run", 1))
        assert ledger.attempts == (attempt("run", 2),)
    with Ledger(tmp_path) as ledger:
        assert ledger.attempts == (attempt("run", 2),)
        assert ledger.spent().epsilon(1e-5) == Accountant((RELEASE,)).epsilon(1e-5)


@pytest.mark.parametrize("noted", [b"", b', "attempt": {}', b', "attempt": {"release": 0}', b', "attempt": null'])
def test_a_sum_that_cannot_be_read_is_no_sum_that_cost_nothing(tmp_path: Path, noted: bytes) -> None:
    line = b'{"event": "spent", "run": "run", "exchange": 1' + noted + b"}"
    (tmp_path / LEDGER_FILE).write_bytes(line + b"\n")
    with raises(ConfigurationError, check="damaged", match=r"\b1\b.*ledger\.jsonl"):
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
    with raises(ConfigurationError, check="damaged", match=r"\b1\b.*ledger\.jsonl"):
        Ledger(tmp_path)
    lock_folder(tmp_path).close()  # the failed start holds no lock


def test_a_bit_that_the_disk_changes_anywhere_stops_the_agent(tmp_path: Path) -> None:
    """Many a changed digit leaves a line that reads well."""
    with Ledger(tmp_path) as ledger:
        ledger.enter("run", 12)
        ledger.unmask("run", 12)
    path = tmp_path / LEDGER_FILE
    content = path.read_bytes()
    before = list(read_entries(path, content))
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        with raises(ConfigurationError, check="damaged"):
            list(read_entries(path, bytes(changed)[: whole_lines(bytes(changed))]))
    assert len(before) == 2


def test_a_ledger_of_before_has_no_checksums(tmp_path: Path) -> None:
    with Ledger(tmp_path) as ledger:
        ledger.enter("run", 1)
    path = tmp_path / LEDGER_FILE
    path.write_bytes(re.sub(rb',"sum":"[0-9a-f]{8}"', b"", path.read_bytes()))
    with Ledger(tmp_path) as ledger:
        assert ledger.last == ("run", 1)
        ledger.enter("run", 2)
    with Ledger(tmp_path) as ledger:
        assert ledger.last == ("run", 2)


def test_a_full_disk_is_named_and_nothing_counts_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger(tmp_path) as ledger:
        write = os.write

        def half(descriptor: int, data: bytes) -> int:
            write(descriptor, data[:10])
            raise OSError(errno.ENOSPC, "no space")

        monkeypatch.setattr(os, "write", half)
        with pytest.raises(StorageFull, match="ledger"):
            ledger.enter("run", 1)
        monkeypatch.undo()
        assert ledger.last is None
        ledger.enter("run", 1)
    with Ledger(tmp_path) as ledger:
        assert ledger.last == ("run", 1)


def test_the_file_is_private(tmp_path: Path) -> None:
    with Ledger(tmp_path):
        assert (tmp_path / LEDGER_FILE).stat().st_mode & 0o077 == 0


def test_exchanges_are_counted_by_run_and_by_day(tmp_path: Path) -> None:
    now = [1e9]
    with Ledger(tmp_path, wall=lambda: now[0]) as ledger:
        ledger.enter("one", 1)
        now[0] += 80_000
        ledger.enter("one", 2)
        ledger.enter("two", 1)
        ledger.refuse("two", 2, "too-long")
        assert (ledger.entered_in("one"), ledger.entered_in("two"), ledger.entered_in_a_day()) == (2, 1, 3)
    now[0] += 6_401
    with Ledger(tmp_path, wall=lambda: now[0]) as ledger:
        assert (ledger.entered_in("one"), ledger.entered_in("two"), ledger.entered_in_a_day()) == (2, 1, 2)


def test_what_was_released_is_known_after_a_restart(tmp_path: Path) -> None:
    sum_of = {"purpose": "train", "model": "aa", "survivors": "1-3,5"}
    released = AgreedSum(run="r", exchange=1, scales=(0.5, 2.0**-9), bounds="bb", **sum_of)
    with Ledger(tmp_path) as ledger:
        ledger.release(released)
    with Ledger(tmp_path) as ledger:
        assert ledger.released("train", "aa") == (released,)
        assert ledger.released("evaluate", "aa") == ()


@pytest.mark.parametrize(
    ("ids", "text"), [([], ""), ([7], "7"), ([3, 1, 2], "1-3"), ([1, 2, 5, 7, 8, 9], "1-2,5,7-9"), ([2, 4], "2,4")]
)
def test_ids_are_written_as_ranges(ids: list[int], text: str) -> None:
    assert ids_to_text(ids) == text
    assert ids_from_text(text) == frozenset(ids)
