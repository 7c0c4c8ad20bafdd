from __future__ import annotations

import errno
import os

import numpy as np
import pytest

from fedcore.simulation.sessions.mapped import mapped_zeros


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


def _anonymous() -> int:
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Anonymous:")) * 1024
