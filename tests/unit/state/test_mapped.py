from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from fedcore.state import Layout, MemorySink, TensorSpec
from fedcore.state.mapped import LARGE_BYTES, give_back, mapped_zeros


def test_a_vector_is_in_a_file_and_takes_no_anonymous_memory() -> None:
    before = _anonymous()
    vector = mapped_zeros(1 << 21)
    vector += np.uint64(7)
    assert vector.sum() == 7 << 21
    assert _anonymous() - before < vector.nbytes // 4


def test_without_room_on_the_disk_it_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    vector = mapped_zeros(1000)
    vector += np.uint64(1)
    assert vector.sum() == 1000


def test_a_large_state_is_collected_outside_of_anonymous_memory() -> None:
    specs = (
        TensorSpec(name="odd", dtype="F32", shape=(3,)),
        TensorSpec(name="large", dtype="F32", shape=(LARGE_BYTES // 4,)),
        TensorSpec(name="flag", dtype="BOOL", shape=()),
    )
    before, sink = _anonymous(), MemorySink(Layout(specs=specs))
    values = np.arange(1 << 20, dtype=np.float32)
    sink.write(specs[0], 0, values[1:4])
    for start in range(0, specs[1].size, values.size):
        sink.write(specs[1], start, values)
    sink.write(specs[2], 0, np.array([True]))
    state = sink.state()
    assert _anonymous() - before < LARGE_BYTES // 4
    assert state["odd"].tolist() == [1.0, 2.0, 3.0]
    assert state["flag"].shape == ()
    assert state["flag"]
    assert np.array_equal(state["large"].reshape(-1, values.size)[-1], values)


def test_a_part_that_is_given_back_takes_no_memory_and_keeps_its_content() -> None:
    vector = mapped_zeros(1 << 21)
    before = _resident()
    vector += np.uint64(3)
    assert _resident() - before > vector.nbytes // 2
    for start in range(5, vector.size, (1 << 16) - 1):  # no page begins there
        part = vector[start:][: 1 << 16]
        give_back(part if start % 2 else part.data.cast("B"))
    assert _resident() - before < vector.nbytes // 4
    assert vector.sum() == 3 << 21


def test_plain_memory_is_left_alone() -> None:
    vector = np.ones(1 << 12, np.uint64)
    give_back(vector)
    give_back(vector[7:9])
    give_back(mapped_zeros(10)[3:3])
    give_back(memoryview(bytes(100)))
    assert vector.sum() == 1 << 12


def _resident() -> int:
    return _bytes_of("Rss:")


def _anonymous() -> int:
    return _bytes_of("Anonymous:")


def _bytes_of(name: str) -> int:
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) * 1024
