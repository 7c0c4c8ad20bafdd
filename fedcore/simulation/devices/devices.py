"""The simulated devices: how fast each computes and sends, and when it is there. All times are virtual seconds.

A device is a `Device`: by which factor its local work takes longer than on the reference device, the rates of its link,
and its `Availability`. It comes from a trace (`device_file`) or is drawn from distributions (`device_words`), in both
cases from the seed, so that a run repeats. How long the reference device computes, and what latency and link the server
has, says the same `Network` as in a comparison (`fedcore.simulation.devices.network`).

    devices = Devices(profiles, network=Network.parse("wan,example=1ms"), seed=1)
    work = Work(steps=20, samples=200, down=4e6, up=2e6)
    devices.is_there(7, at=0.0)                   # whether client 7 may be asked now
    devices.finish_time(7, work, at=0.0)          # when its update is there; infinity where it leaves before that
    devices.next_there(7, at=0.0)                 # when it can be asked again

What is done with these times is up to the caller: a synchronous exchange waits for the slowest (`waiting`), a buffered
one puts them into an `EventQueue` (`clock`) and takes updates as they come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from fedcore.simulation.devices.availability import NEVER, Always, Availability
from fedcore.simulation.devices.network import Cost, Network, client_seconds

NO_NETWORK: Final = Network(name="none", bandwidth=math.inf, latency=0.0, server=math.inf)
"""Nothing costs any time on the way."""
DEFAULT_EXAMPLE: Final = 1e-3
"""Seconds of computation for one example on the reference device, where nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device. time: by which factor its work takes longer than on the reference device. up, down: bits a second."""

    time: float = 1.0
    up: float = math.inf
    down: float = math.inf
    there: Availability = field(default_factory=Always)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a client does for one update.

    steps, samples
        Of the local training; samples counts an example as often as it is used.
    down, up
        Bytes of the model and of the update.
    sharing
        How many clients share the server's link.
    message_seconds
        Seconds of messages that wait for one another while it trains.
    """

    steps: int = 1
    samples: int = 0
    down: float = 0.0
    up: float = 0.0
    sharing: int = 1
    message_seconds: float = 0.0


class Profiles(Protocol):
    """Where devices come from."""

    def check(self, clients: int) -> None:
        """Raises ConfigurationError if not all of the clients have a device."""
        ...

    def device(self, client: int, network: Network, seed: int) -> Device:
        """The one of a client, from 1 on; the same whenever it is asked for."""
        ...

    def factor(self, client: int, number: int, seed: int) -> float:
        """By which factor its `number`-th piece of work takes longer than its others do."""
        ...


@dataclass(slots=True)
class Devices:
    """The devices of all clients, which are numbered from 1 on. cost: of the reference device."""

    profiles: Profiles
    network: Network = NO_NETWORK
    seed: int = 0
    cost: Cost = field(init=False)
    _devices: dict[int, Device] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        example = DEFAULT_EXAMPLE if self.network.example is None else self.network.example
        self.cost = Cost(step=self.network.step or 0.0, example=example)

    def device(self, client: int) -> Device:
        """The device of a client."""
        if client not in self._devices:
            self._devices[client] = self.profiles.device(client, self.network, self.seed)
        return self._devices[client]

    def is_there(self, client: int, at: float) -> bool:
        """Whether a client may be asked."""
        return self.until(client, at) is not None

    def until(self, client: int, at: float) -> float | None:
        """To when a client stays that is there; None if it is away."""
        return self.device(client).there.until(at)

    def next_there(self, client: int, at: float) -> float:
        """When a client is there, from `at` on; infinity for never."""
        return self.device(client).there.next_there(at)

    def work_seconds(self, client: int, work: Work, number: int = 0) -> float:
        """Computation alone. number: of the exchange, or whatever tells one piece of a client's work from another."""
        factor = self.device(client).time * self.profiles.factor(client, number, self.seed)
        factor *= self.network.slowdown(client - 1, number)
        return factor * (work.steps * self.cost.step + work.samples * self.cost.example)

    def seconds(self, client: int, work: Work, number: int = 0) -> float:
        """From the task to the last byte of the update, as a comparison's clock has it."""
        device, share = self.device(client), self.network.server / work.sharing
        computing = max(self.work_seconds(client, work, number), work.message_seconds)
        down, up = min(device.down, share), min(device.up, share)
        return client_seconds(computing, down=work.down, up=work.up, down_rate=down, up_rate=up)

    def finish_time(self, client: int, work: Work, at: float, number: int = 0) -> float:
        """When the update of a client is there that is asked at `at`; infinity where it is away or leaves before."""
        until, finish = self.until(client, at), at + self.seconds(client, work, number)
        return finish if until is not None and finish <= until else NEVER


def wait_until_present(devices: Devices, clients: Sequence[int], at: float, *, least: int) -> tuple[float, list[int]]:
    """Who is there at the first time from `at` on at which at least `least` of the clients are, and that time.

    The time is infinity, and the list empty, where that does not come about. `least` may be 0.
    """
    while True:
        present = [client for client in clients if devices.is_there(client, at)]
        if len(present) >= least:
            return at, present
        others = (client for client in clients if not devices.is_there(client, at))
        at = min((devices.next_there(client, at) for client in others), default=NEVER)
        if at == NEVER:
            return NEVER, []


def work_of(run_config: Mapping[str, object], examples: int) -> tuple[int, int]:
    """Steps and samples of a client's training on its `examples`, by the keys that a `supervised_app` reads.

    They are `batch-size`, `local-epochs` and `local-steps` of the run config; an app without them is taken to go over
    its examples once (or `local-epochs` times) in one step.
    """
    epochs, steps, size = (_integer(run_config.get(key)) for key in ("local-epochs", "local-steps", "batch-size"))
    if examples <= 0:
        return 0, 0
    size = min(size or examples, examples)
    if steps and not epochs:
        return steps, steps * size
    return (epochs or 1) * math.ceil(examples / size), (epochs or 1) * examples


def _integer(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
