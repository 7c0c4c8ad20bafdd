"""What a model of gigabytes takes, and what is refused for lack of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedcore.errors import OutOfMemory, StorageFull
from fedcore.run.room import SEGMENT_BYTES, RoomNeeds, check_disk, check_memory, room_line
from fedcore.run.settings import JobSettings

GIGABYTE = 10**9


def test_what_a_model_of_five_gigabytes_takes() -> None:
    needs = RoomNeeds(model=5 * GIGABYTE, update=3 * GIGABYTE, clients=2)
    assert needs.is_large
    assert needs.client_disk == 13.75 * GIGABYTE
    assert needs.client_memory == 15 * GIGABYTE
    assert needs.server_disk == 16 * GIGABYTE
    assert needs.server_disk_a_round == 5 * GIGABYTE


def test_all_clients_may_send_at_the_same_time() -> None:
    few, many = (RoomNeeds(model=GIGABYTE, update=GIGABYTE, clients=count) for count in (4, 400))
    assert (few.server_disk, many.server_disk) == (5 * GIGABYTE + SEGMENT_BYTES, 401 * GIGABYTE + SEGMENT_BYTES)


def test_settings_of_a_run_that_take_more_of_the_server() -> None:
    def disk(**settings: Any) -> float:
        needs = RoomNeeds.of(JobSettings(**settings), model=GIGABYTE, update=GIGABYTE // 2, clients=6)
        return needs.server_disk / GIGABYTE

    segment = SEGMENT_BYTES / GIGABYTE
    assert disk() == 4 + segment
    assert disk(download_bits=16) == 5.5 + segment
    assert disk(best_model="accuracy:max") == 5 + segment
    assert disk(groups=3) == 7
    assert RoomNeeds.of(JobSettings(groups=3), model=7, update=7, clients=6).server_disk_a_round == 21


def test_plain_replies_stay_one_by_one() -> None:
    needs = RoomNeeds(model=GIGABYTE, update=GIGABYTE, clients=10, plain=True)
    assert needs.server_disk == 12 * GIGABYTE
    assert needs.client_disk == 2 * GIGABYTE


def test_a_small_model_is_not_worth_a_word() -> None:
    assert not RoomNeeds(model=1 << 20, update=1 << 20, clients=2).is_large


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    check_disk(tmp_path, 1, "no {needed} in {free}")
    with pytest.raises(StorageFull) as caught:
        check_disk(tmp_path, 10**18, "{needed} needed, {free} free")
    assert str(caught.value).startswith("1000000000.0 GB needed")


def test_memory_without_room_is_named() -> None:
    check_memory(2 * GIGABYTE, 2 * GIGABYTE, "no {needed} in {free}")
    check_memory(None, 2 * GIGABYTE, "nobody knows")
    with pytest.raises(OutOfMemory) as caught:
        check_memory(GIGABYTE, 2 * GIGABYTE, "{needed} needed, {free} free")
    assert str(caught.value) == "2.0 GB needed, 1.0 GB free"
    with pytest.raises(OutOfMemory) as caught:
        check_memory(10**6, 10**8, "{needed} needed, {free} free")
    assert str(caught.value) == "100 MB needed, 1 MB free"


def test_people_read_the_needs_of_a_large_model_only() -> None:
    needs = RoomNeeds(model=5 * GIGABYTE, update=3 * GIGABYTE, clients=2)
    assert "16.0 GB" in room_line(needs.facts)
    assert not room_line({"parameters": 10})
