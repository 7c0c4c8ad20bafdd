"""Rate limit for strangers, by address: connections, open requests, and requests with a wrong signature.

Requests over the limit wait; none is refused. A member shares its address with others behind the same NAT or proxy; an
authenticated request does not wait, and its connection is not counted.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

LONGEST_WAIT: Final = 5.0
"""Seconds; who waits holds one of the few connections that an address may have."""
MOST_ADDRESSES: Final = 4096
"""Addresses that are remembered; those who may go on at once are forgotten first."""


@dataclass(slots=True, kw_only=True)
class TokenBucket:
    """Lets each address have `rate` requests a second in the long run, and `burst` at once (GCRA, ATM Forum TM 4.0).

    rate
        Requests a second.
    burst
        Requests.
    clock
        Monotonic seconds.
    """

    rate: float
    burst: float
    clock: Callable[[], float]
    _paid: dict[str, float] = field(default_factory=dict)
    """By address: until when its requests have used up its rate."""

    @property
    def addresses(self) -> int:
        """How many are remembered."""
        return len(self._paid)

    def wait(self, address: str) -> float:
        """Count one more request; how many seconds its answer has to wait."""
        now, slack = self.clock(), self.burst / self.rate
        paid = max(self._paid.pop(address, now), now) + 1.0 / self.rate
        if len(self._paid) >= MOST_ADDRESSES:
            self._forget(now)
        self._paid[address] = paid = min(paid, now + slack + LONGEST_WAIT)
        return max(paid - now - slack, 0.0)

    def forgive(self, address: str) -> None:
        """Take one back: it was no stranger's."""
        if address in self._paid:
            self._paid[address] -= 1.0 / self.rate

    def _forget(self, now: float) -> None:
        self._paid = {address: paid for address, paid in self._paid.items() if paid > now}
        while len(self._paid) >= MOST_ADDRESSES:
            del self._paid[next(iter(self._paid))]


def parsed_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Without a zone; of IPv4 if a socket for both kinds writes it as `::ffff:10.0.0.1`. Raises ValueError."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    return getattr(parsed, "ipv4_mapped", None) or parsed


def network_of(address: str) -> str:
    """What one peer can have many addresses of counts as one: 64 bits of an IPv6 address."""
    try:
        parsed = parsed_address(address)
    except ValueError:
        return address
    return str(parsed) if parsed.version == 4 else str(ipaddress.ip_network((parsed, 64), strict=False))


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Addresses or networks, as settings name them; ValueError for what is none."""
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def is_within(address: str, nets: Sequence[Network]) -> bool:
    """Whether an address belongs to one of them."""
    try:
        parsed = parsed_address(address)
    except ValueError:
        return False
    return any(parsed in net for net in nets)
