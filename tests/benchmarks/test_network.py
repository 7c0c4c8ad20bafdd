"""What the relay of packets does with them; how the benchmark reads a record."""

import pytest
from support.events import event

from benchmarks.network import round_seconds
from benchmarks.relay import Cuts, Link, Node, Switch
from fedcore.monitoring.run_record import RunRecord


def packet(target: int, size: int) -> bytes:
    """IPv4 to 10.77.0.(target + 1)."""
    head = bytearray(20)
    head[0] = 0x45
    head[16:20] = bytes([10, 77, 0, target + 1])
    return bytes(head) + bytes(size - 20)


def switch(latency: float = 1.0) -> Switch:
    """Three nodes on links of a hundred bytes a second."""
    up, down = ([Link(800.0) for _ in range(3)] for _ in range(2))
    return Switch(latency=latency, up=up, down=down, cuts=Cuts(3))


def test_a_packet_takes_its_bytes_and_the_latency() -> None:
    made = switch()
    made.take(0, packet(1, 50), now=10.0)
    assert made.idle_seconds(10.0) == pytest.approx(1.5)
    assert list(made.due(11.4)) == []
    assert [(target, len(content)) for target, content in made.due(11.51)] == [(1, 50)]
    assert made.idle_seconds(12.0) is None


def test_packets_leave_one_after_another() -> None:
    made = switch(latency=0.0)
    for _ in range(3):
        made.take(0, packet(1, 100), now=0.0)
    assert [len(list(made.due(at))) for at in (1.01, 2.01, 3.01)] == [1, 1, 1]


def test_two_senders_share_the_receivers_link() -> None:
    made = switch(latency=0.0)
    made.take(0, packet(2, 100), now=0.0)
    made.take(1, packet(2, 100), now=0.0)
    assert [len(list(made.due(at))) for at in (1.01, 2.01)] == [1, 1]
    made.take(0, packet(1, 100), now=10.0)
    made.take(1, packet(0, 100), now=10.0)
    assert len(list(made.due(11.01))) == 2, "the two directions of a link do not hinder each other"


def test_what_is_for_nobody_is_dropped() -> None:
    made = switch()
    made.take(0, packet(7, 40), now=0.0)
    made.take(0, b"\x60" + bytes(60), now=0.0)  # IPv6
    assert made.idle_seconds(0.0) is None


def test_packets_between_nodes_that_are_cut_off_are_lost_either_way() -> None:
    made = switch(latency=0.0)
    first, second, third = (Node(number=number, prefix="test") for number in range(3))
    for cut, arriving in ((True, 2), (False, 4)):
        made.cuts.set(first, [second], cut=cut)
        for source, target in ((0, 1), (1, 0), (0, 2), (2, 1)):
            made.take(source, packet(target, 40), now=0.0)
        assert len(list(made.due(100.0))) == arriving
    assert not made.cuts.between(third.number, first.number)


def test_a_round_lasts_from_one_evaluation_to_the_next() -> None:
    record = RunRecord()
    for at, kind in ((1.0, "train"), (2.0, "evaluate"), (4.0, "train"), (7.0, "evaluate")):
        record.add(event("exchange-done", message_type=kind), at)
    assert round_seconds(record) == [5.0]
