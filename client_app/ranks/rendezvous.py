"""Where the ranks of several machines meet: torch's TCPStore. Waiting there costs no core, and needs no collective.

| key              | set by            | holds                                              |
| ---------------- | ----------------- | -------------------------------------------------- |
| node/R/claimed   | rank 0 of machine | how many machines say that they are R              |
| node/R/ranks     | rank 0 of machine | how many ranks it has                              |
| greeting         | rank 0            | the agent's first line                             |
| ready/K          | rank K            | that it has loaded the app                         |
| task/N           | rank 0            | the N-th task                                      |
| model/N/R        | rank 0 of machine | that the model of task N lies there                |
| done/N/K         | rank K            | that it has done its part                          |
| host             | one rank          | its number: the store is in its process            |
| failure          | any rank, once    | the first failure, after which all ranks end       |
| here/K           | rank K            | that it knows of the failure, and so is not lost   |
| heard            | rank 0            | that the agent knows of it                         |

The store lives as long as one start of the ranks; torchrun makes a new one for the next.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # type: ignore[attr-defined]

from client_app.ranks.failures import PEER_LOST, RANK_KILLED, describe
from client_app.ranks.group import START_SECONDS
from client_app.ranks.messages import Failure
from fedcore.errors import ConfigurationError
from fedcore.wire.base import Message

Kind = TypeVar("Kind", bound=Message)
_FAILURE: Final = "failure"
_ACKNOWLEDGED: Final = "heard"
_ACKNOWLEDGEMENT_WAIT: Final = timedelta(seconds=20)
"""How long a rank stays for a slow rank 0 to tell the agent; torchrun ends it earlier where rank 0 is gone."""
_ROLL_CALL: Final = timedelta(seconds=0.1)
"""Shorter than torchrun takes to notice a rank's end, since it then ends the others of that machine."""
_PATIENCE: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a rank stands.

    node: its machine.
    local_rank: its number on that machine.
    nodes: how many ranks each machine has, machine 0 first.
    """

    node: int
    local_rank: int
    nodes: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Rank over all machines; 0 is on machine 0, where the agent is, which torchrun does not promise."""
        return self.heads[self.node] + self.local_rank

    @property
    def world_size(self) -> int:
        """Ranks on all machines."""
        return sum(self.nodes)

    @property
    def heads(self) -> tuple[int, ...]:
        """The first rank of each machine."""
        return tuple(sum(self.nodes[:node]) for node in range(len(self.nodes)))

    def to_environment(self) -> None:
        """Tell the app, under torchrun's names."""
        os.environ.update(RANK=str(self.rank), GROUP_RANK=str(self.node), ROLE_RANK=str(self.rank))


class Rendezvous:
    """One rank's connection to the store; every thread needs its own, since a wait holds it."""

    def __init__(self, store: TCPStore, *, is_host: bool = False) -> None:
        self.store = store
        self.is_host = is_host

    @classmethod
    def join(cls) -> Rendezvous:
        """Connect as torchrun's environment says; its rank 0, wherever that is, holds the store."""
        is_host = os.environ["RANK"] == "0"
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            int(os.environ["WORLD_SIZE"]),
            is_master=is_host,
            timeout=timedelta(seconds=START_SECONDS),
            wait_for_workers=False,
        )
        return cls(store, is_host=is_host)

    def clone(self) -> Rendezvous:
        """Another connection to the same store."""
        return Rendezvous(self.store.clone())  # type: ignore[attr-defined]

    def find_position(self, node: int) -> Position:
        """Number the ranks in the order of the machines' `--node-rank`; raises ConfigurationError."""
        local_rank, nodes = int(os.environ["LOCAL_RANK"]), int(os.environ["GROUP_WORLD_SIZE"])
        if local_rank == 0:
            if self.store.add(f"node/{node}/claimed", 1) > 1:
                raise ConfigurationError(f"two machines were started with --node-rank {node}")
            self.store.set(f"node/{node}/ranks", os.environ["LOCAL_WORLD_SIZE"])
        sizes = tuple(int(self.store.get(f"node/{number}/ranks")) for number in range(nodes))
        return Position(node=node, local_rank=local_rank, nodes=sizes)

    def post(self, key: str, message: Message) -> None:
        """Put a message up for the others."""
        self.store.set(key, message.model_dump_json())

    def read(self, key: str, kind: type[Kind]) -> Kind:
        """Wait for a message, however long."""
        self.wait_for(key)
        return kind.model_validate_json(self.store.get(key))

    def mark(self, key: str) -> None:
        """Set a key whose presence says it all."""
        self.store.set(key, "1")

    def wait_for(self, *keys: str) -> None:
        """Wait until all keys are there, however long; raises DistNetworkError when the store is gone."""
        while True:
            with contextlib.suppress(DistStoreError):  # nothing new for so long
                self.store.wait(list(keys), _PATIENCE)
                return

    def forget(self, keys: Iterable[str]) -> None:
        """Take messages down that everybody has read."""
        for key in keys:
            self.store.delete_key(key)

    def report(self, error: BaseException, rank: int) -> None:
        """Tell all ranks, and through rank 0 the agent, of a failure; the first one counts."""
        with contextlib.suppress(DistNetworkError):  # then all ranks know that something is wrong
            self.store.compare_set(_FAILURE, "", describe(error, rank).model_dump_json())

    def when_failed(self, position: Position, tell: Callable[[Failure], None] | None, end: Callable[[], None]) -> None:
        """In a thread: at the first failure of any rank `tell` the agent, on rank 0, and `end` this process."""
        if self.is_host:
            self.store.set("host", str(position.rank))
        own = self.clone()
        watch = partial(own.watch, position.rank) if tell is None else partial(own.watch_and_tell, position, tell)

        def run() -> None:
            try:
                watch()
            finally:
                end()

        threading.Thread(target=run, name="failures", daemon=True).start()

    def watch(self, rank: int) -> None:
        """Wait for the first failure, and until rank 0 knows that this rank has seen it."""
        with contextlib.suppress(DistNetworkError, DistStoreError):  # rank 0 is gone, or the store
            self.wait_for(_FAILURE)
            self.mark(f"here/{rank}")
            self.store.wait([_ACKNOWLEDGED], _ACKNOWLEDGEMENT_WAIT)  # the store may be in this very process

    def watch_and_tell(self, position: Position, tell: Callable[[Failure], None]) -> None:
        """On rank 0: wait for the first failure, tell the agent what it was, and let the others end."""
        self.wait_for("host")
        host = int(self.store.get("host"))
        try:
            failure = self.read(_FAILURE, Failure)
            if failure.kind == PEER_LOST and (absent := self._absent(range(1, position.world_size))):
                failure = _lost(absent)
        except DistNetworkError:
            failure = _lost([host])
        tell(failure)
        with contextlib.suppress(DistNetworkError):
            self.mark(_ACKNOWLEDGED)

    def _absent(self, ranks: Iterable[int]) -> list[int]:
        """The ranks that do not answer although all know of a failure by now."""
        keys = {rank: f"here/{rank}" for rank in ranks}
        with contextlib.suppress(DistStoreError):
            self.store.wait(list(keys.values()), _ROLL_CALL)
        return [rank for rank, key in keys.items() if not self.store.check([key])]


def _lost(ranks: list[int]) -> Failure:
    names = ", ".join(map(str, ranks))
    text = f"rank{'s' if len(ranks) > 1 else ''} {names} ended, killed or with the machine"
    return Failure(kind=RANK_KILLED, text=text, rank=ranks[0])
