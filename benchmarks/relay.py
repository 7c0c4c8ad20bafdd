"""A network of nodes on one machine with a bandwidth and a latency of its own: namespaces and a relay of packets.

Every node is a network namespace with a TUN device, and so has TCP of the kernel as it is. A process reads the
packets, holds each as long as the links on its way would have, and hands it on. Nothing is lost and queues have no end,
unless the caller says otherwise or cuts nodes off from each other (`Cuts`). Linux, as root. Where the kernel has
`sch_netem`, `tc` can do the same between veth devices.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import math
import multiprocessing
import os
import random
import select
import signal
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path

DEVICE = "fedcore0"
MTU = 1500
_NAMESPACES = Path("/var/run/netns")
_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_START_SECONDS = 20.0
_RELAY_NICENESS = -10
"""The relay stands for lines, which are no slower while the processor has other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A namespace and its address."""

    number: int
    prefix: str

    @property
    def namespace(self) -> str:
        return f"{self.prefix}-{self.number}"

    @property
    def address(self) -> str:
        return f"10.77.0.{self.number + 1}"

    def command(self) -> tuple[str, ...]:
        """What a command begins with that is to run here."""
        return ("ip", "netns", "exec", self.namespace)

    def wire_bytes(self) -> int:
        """Bytes of IP packets that the node has sent and received."""
        told = subprocess.run(
            ["ip", "-n", self.namespace, "-s", "-j", "link", "show", DEVICE], check=True, capture_output=True
        )
        counted = json.loads(told.stdout)[0]["stats64"]
        return int(counted["rx"]["bytes"]) + int(counted["tx"]["bytes"])

    def enter(self) -> None:
        """Move the calling thread, and those that it starts from now on, into the namespace."""
        handle = os.open(_NAMESPACES / self.namespace, os.O_RDONLY)
        try:
            _setns(handle)
        finally:
            os.close(handle)


class Cuts:
    """Which of `count` nodes are cut off from which: packets between them are lost, and nobody hears of it."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._lost = multiprocessing.RawArray("B", count * count)  # the relay reads it while the caller writes

    def set(self, node: Node, others: Iterable[Node], *, cut: bool) -> None:
        """Cut a node off from others, or let packets through again."""
        for other in others:
            for one, two in ((node.number, other.number), (other.number, node.number)):
                self._lost[one * self._count + two] = cut

    def between(self, source: int, target: int) -> bool:
        """Whether a packet on this way is lost."""
        return bool(self._lost[source * self._count + target])


def is_possible() -> bool:
    """Whether this process may make namespaces and TUN devices here."""
    return (
        os.geteuid() == 0
        and Path("/dev/net/tun").exists()
        and not subprocess.run(["ip", "-V"], capture_output=True, check=False).returncode
    )


@contextmanager
def nodes(
    count: int,
    *,
    bandwidth: float,
    latency: float,
    cuts: Cuts | None = None,
    first: float | None = None,
    queue: float = math.inf,
    loss: float = 0.0,
) -> Iterator[list[Node]]:
    """`count` nodes, each on a link of `bandwidth` bits a second each way; to any other it takes `latency` seconds.

    Leaving takes everything away again.

    cuts: which of them the caller cuts off from which, while the context lasts. first: bits a second of the first
    node's link, if it has another one. queue: seconds that a packet waits for a link at most; else it is lost. loss:
    the chance that a link loses a packet.
    """
    links = [
        [
            Link(first or bandwidth if not node else bandwidth, queue=queue, loss=loss, seed=2 * node + way)
            for node in range(count)
        ]
        for way in range(2)
    ]
    switch = Switch(latency=latency, up=links[0], down=links[1], cuts=cuts or Cuts(count))
    made = [Node(number=number, prefix=f"fedcore-{os.getpid()}") for number in range(count)]
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    relay = context.Process(target=_relay, args=(made, switch, ready), daemon=True)
    try:
        for node in made:
            _ip("netns", "add", node.namespace)
        relay.start()
        if not ready.wait(_START_SECONDS):
            raise TimeoutError("the relay of packets did not start")
        yield made
    finally:
        if relay.pid is not None:
            relay.kill()
            relay.join()
        for node in made:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", node.namespace)


@dataclass(slots=True)
class Link:
    """One direction of a link: packets leave it one after another.

    queue, loss: as in `nodes`. seed: of what is lost by chance.
    """

    bandwidth: float
    queue: float = math.inf
    loss: float = 0.0
    seed: int = 0
    _free_at: float = 0.0
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def through(self, at: float, size: int) -> float | None:
        """When a packet of `size` bytes that comes at `at` has left; None if it is lost."""
        if self._free_at - at > self.queue or (self.loss and self._chance.random() < self.loss):
            return None
        self._free_at = max(at, self._free_at) + size * 8 / self.bandwidth
        return self._free_at


@dataclass(slots=True)
class Switch:
    """When each packet is due, and where. up, down: links by node."""

    latency: float
    up: list[Link]
    down: list[Link]
    cuts: Cuts
    _waiting: list[tuple[float, int, int, bytes]] = field(default_factory=list)
    _count: int = 0

    def take(self, source: int, packet: bytes, now: float) -> None:
        """A packet of IPv4 from one node; what is for none of the others, or cut off, is dropped."""
        target = packet[19] - 1
        if packet[0] >> 4 != 4 or packet[16:19] != b"\x0a\x4d\x00" or not 0 <= target < len(self.down):
            return
        if self.cuts.between(source, target):
            return
        left = self.up[source].through(now, len(packet))
        if left is None:
            return
        # The head of a packet goes on before its tail has come: two links in a row take as long as the slower one.
        head = left - len(packet) * 8 / self.up[source].bandwidth
        arrival = self.down[target].through(head, len(packet))
        if arrival is None:
            return
        self._count += 1
        heapq.heappush(self._waiting, (arrival + self.latency, self._count, target, packet))

    def due(self, now: float) -> Iterator[tuple[int, bytes]]:
        """What has to arrive by now, in order."""
        while self._waiting and self._waiting[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._waiting)
            yield target, packet

    def idle_seconds(self, now: float) -> float | None:
        """Until the next packet is due; None without one."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None


def _relay(made: list[Node], switch: Switch, ready: Event) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(_RELAY_NICENESS)
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    handles = []
    for node in made:
        node.enter()
        handles.append(_open_tun())
        _setns(home)
        _ip("-n", node.namespace, "link", "set", "lo", "up")
        _ip("-n", node.namespace, "addr", "add", f"{node.address}/24", "dev", DEVICE)
        _ip("-n", node.namespace, "link", "set", DEVICE, "mtu", str(MTU), "up")
    ready.set()
    _forward(handles, switch)


def _forward(handles: list[int], switch: Switch) -> None:
    """For ever: read what nodes send, write what is due."""
    number = {handle: node for node, handle in enumerate(handles)}
    while True:
        readable, _, _ = select.select(handles, [], [], switch.idle_seconds(time.monotonic()))
        for handle in readable:
            with suppress(BlockingIOError):
                while True:
                    switch.take(number[handle], os.read(handle, MTU + 64), time.monotonic())
        for target, packet in switch.due(time.monotonic()):
            with suppress(OSError):  # a node that has just gone
                os.write(handles[target], packet)


def _open_tun() -> int:
    handle = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(handle, _TUNSETIFF, struct.pack("16sH", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
    return handle


def _setns(handle: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
