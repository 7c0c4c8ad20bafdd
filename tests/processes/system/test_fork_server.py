"""The fork server that tests and the kill harness share: what one of them does to its own processes ends no other's."""

from __future__ import annotations

import socket
import time
from multiprocessing import forkserver

from tests.support.forking import CONTEXT


def test_who_is_killed_before_it_has_asked_for_a_process_ends_no_other() -> None:
    first = CONTEXT.Process(target=time.sleep, args=(600,))
    first.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(forkserver._forkserver._forkserver_address)  # noqa: SLF001 - as the library connects
    second = CONTEXT.Process(target=time.sleep, args=(0,))
    second.start()
    second.join()
    assert second.exitcode == 0
    assert first.is_alive()
    first.terminate()
    first.join()
