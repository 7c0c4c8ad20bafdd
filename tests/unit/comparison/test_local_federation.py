"""A port for a server that starts later."""

import random
import socket
from pathlib import Path

from fedcore.comparison.local_federation import PORTS, free_port


def test_a_port_is_none_that_the_kernel_hands_out(tmp_path: Path) -> None:
    ranges = tmp_path / "range"
    ranges.write_text("20000\t60999\n")
    assert 20000 - PORTS <= free_port(reserved=ranges) < 20000


def test_a_port_in_use_is_not_taken(tmp_path: Path) -> None:
    ranges = tmp_path / "range"
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        ranges.write_text(f"{taken + 1}\t60999\n")
        assert free_port(reserved=ranges, count=1) != taken
    ranges.unlink()
    assert free_port(reserved=ranges, count=1) > 0, "the kernel does not tell its range"


def test_programs_with_one_seed_get_other_ports() -> None:
    def port() -> int:
        random.seed(1)
        return free_port()

    assert len({port() for _ in range(5)}) > 1
