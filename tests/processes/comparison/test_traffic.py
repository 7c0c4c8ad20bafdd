"""Bytes on the wire: known ones over loopback, and those of a gloo group."""

from __future__ import annotations

import socket

import torch
import torch.distributed as dist

from fedcore.comparison.measure.traffic import TcpBytes
from tests.support.ranks import Ranks

MEGABYTE = 1_000_000


def test_bytes_over_loopback_are_counted_on_both_sides():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
        socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    ):
        before = TcpBytes.now()
        for _ in range(10):
            one.sendall(bytes(MEGABYTE // 10))
            left = MEGABYTE // 10
            while left:
                left -= len(other.recv(left))
        other.sendall(bytes(7))
        assert len(one.recv(7)) == 7
        # Two descriptors of one connection are one connection.
        with one.dup():
            used = TcpBytes.now() - before
    # Both ends are this process's own. On a busy machine TCP may send a segment again.
    assert used.received == MEGABYTE + 7
    assert MEGABYTE + 7 <= used.sent <= 2 * MEGABYTE


def reduced(elements: int) -> tuple[int, int]:
    """What one rank sent and received for one all-reduce of float32."""
    values = torch.ones(elements)
    dist.all_reduce(values)
    dist.barrier()
    before = TcpBytes.now()
    dist.all_reduce(values)
    dist.barrier()
    used = TcpBytes.now() - before
    return used.sent, used.received


def test_a_gloo_all_reduce_sends_what_a_ring_sends():
    elements = MEGABYTE
    with Ranks(2) as ranks:
        for sent, received in ranks.run(reduced, elements):
            # 2 (N - 1) / N of the vector, and a few headers; and what TCP sends again on a busy machine.
            assert 4 * elements <= sent <= 8 * elements
            assert 4 * elements <= received <= 4.04 * elements
