"""Who shares secrets and masks with whom: the one place that knows the graph.

The members of U1 stand on a ring; each is joined to the `degree // 2` before it and as many after it. That is the
Harary graph of SecAgg+ (Bell et al. 2020), and with a degree of all others the full graph of Bonawitz et al. 2017.
The order on the ring comes from a seed that is a hash of every advertised key: nobody chooses a place on it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from fedcore.errors import UsageError

_NONCE = bytes(16)


@lru_cache(maxsize=4)
def graph_over(members: tuple[int, ...], *, degree: int, seed: bytes) -> Graph:
    """`Graph(...)`, remembered: thousands of clients in one process would each hold the same ring."""
    return Graph(members, degree=degree, seed=seed)


class Graph:
    """The graph over `members` (ascending ids, U1), with `degree` neighbours each if there are as many; immutable.

    Raises UsageError for an odd degree on a graph that is not full.

    seed: 32 bytes from which the order follows.
    """

    def __init__(self, members: tuple[int, ...], *, degree: int, seed: bytes) -> None:
        self.full = degree >= len(members) - 1
        if not self.full and (degree < 2 or degree % 2):
            raise UsageError("the degree of a graph that is not full is even")
        self._ring = _order(members, seed)
        self._index = {member: index for index, member in enumerate(self._ring)}
        self._half = degree // 2

    @property
    def holders(self) -> int:
        """How many clients hold shares of one client's secrets, itself included."""
        return len(self._ring) if self.full else 2 * self._half + 1

    def neighbours(self, member: int) -> tuple[int, ...]:
        """The clients with whom `member` exchanges shares and pairwise masks, in ascending order."""
        return tuple(sorted(other for other in self._window(member) if other != member))

    def point(self, owner: int, holder: int) -> int:
        """Where on `owner`'s polynomial the share of `holder` lies: 1 to `holders`, one for each of them."""
        if self.full:
            return self._index[holder] + 1
        return (self._index[holder] - self._index[owner] + self._half) % len(self._ring) + 1

    def chooses(self, member: int, peer: int) -> bool:
        """Whether `member` chooses the secret that it shares with `peer`: exactly one of any two neighbours does.

        It is the one from which the way to the other, forward on the ring, is the shorter; so everybody chooses for
        half of its neighbours.
        """
        forward = (self._index[peer] - self._index[member]) % len(self._ring)
        back = len(self._ring) - forward
        return forward < back or (forward == back and member < peer)

    def _window(self, member: int) -> tuple[int, ...]:
        if self.full:
            return self._ring
        index, size = self._index[member], len(self._ring)
        return tuple(self._ring[(index + step) % size] for step in range(-self._half, self._half + 1))


def _order(members: tuple[int, ...], seed: bytes) -> tuple[int, ...]:
    """Sort by 64 pseudo-random bits for each member, drawn in ascending order of the ids."""
    cipher = Cipher(algorithms.ChaCha20(seed, _NONCE), mode=None).encryptor()
    keys = np.frombuffer(cipher.update(bytes(8 * len(members))), dtype="<u8")
    return tuple(members[i] for i in np.argsort(keys, kind="stable"))
