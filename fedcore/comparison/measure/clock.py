"""The simulated clock: the time that a mode would have taken on the machines and links of a `Network`.

The bytes are those that real processes exchanged; the seconds follow from them by these rules.

- A step on n examples computes for `Cost.seconds(n)`, times `Network.slowdown` of its site at that step. A site's
  steps are numbered through the whole run. Centralized training has a machine of its own, which is never slow.
- A message arrives after the latency and its bytes over the slowest link on its way. Computing and sending do not
  overlap, and nothing is lost or sent twice. TCP is taken to be at full speed at once.
- All-reduce and averaging wait for the slowest site, then go round a ring (Patarasuk and Yuan 2009, "Bandwidth optimal
  all-reduce algorithms for clusters of workstations"): 2 (N - 1) messages one after another on links of the sites'
  own. Gloo sends a message once its receiver has said that it waits for it, so that each costs two latencies; that is
  what benchmarks/network.py finds.
- A federated exchange ends when its slowest client has fetched the model, trained and sent its update; all clients
  share the server's link. On top come the requests of the protocol that wait for one another, each a round trip. The
  key exchange of secure aggregation runs during the training: it costs what it takes longer.
- A buffered exchange ends when the last of its updates is there. Its clients began each from a model of its own.
- Masking, encryption, the server's sum, the start of processes, evaluation, and attempts that failed cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, cycle, islice

from fedcore.comparison.workers.schedule import Schedule
from fedcore.simulation.devices.network import Cost, Network, client_seconds, round_trip_seconds

RING_LATENCIES = 2
"""Of each message of a ring: the receiver's word that it is ready, and the message itself."""

Pace = Callable[[int, int], float]
"""(site, number of the step in the run) -> by which factor the step takes longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedExchange:
    """What one training exchange moved.

    up, down: bytes by site (from 0 on) of the clients that took part.
    staleness: of a buffered one, how many models came between each site's start and its sum.
    """

    server_round: int
    up: Mapping[int, float]
    down: Mapping[int, float]
    staleness: Mapping[int, int] = field(default_factory=dict)


def centralized_seconds(schedule: Schedule, size: int, rounds: int, cost: Cost, *, ranks: int = 1) -> list[float]:
    """All data in one place.

    Returns, as all of these functions do, the seconds from the start to the end of each round.

    Args:
        size: examples of a step, 0 for all.
        ranks: that divide each step, at no cost.
    """
    _, steps = schedule.global_steps(size)
    one = steps * cost.step + schedule.global_samples(size) / ranks * cost.example
    return [one * (server_round + 1) for server_round in range(rounds)]


def allreduce_seconds(
    schedule: Schedule, size: int, rounds: int, cost: Cost, network: Network, *, bytes_per_step: float
) -> list[float]:
    """Every step waits for the slowest share.

    Args:
        bytes_per_step: what one worker sent for one step.
    """
    shares = global_shares(schedule, size)
    ring = ring_seconds(len(schedule.counts), bytes_per_step, network)
    steps = (
        [
            max(network.slowdown(site, number) * cost.seconds(n) for site, n in enumerate(share)) + ring
            for number, share in enumerate(shares, start=server_round * len(shares))
        ]
        for server_round in range(rounds)
    )
    return list(accumulate(map(sum, steps)))


def averaging_seconds(
    schedule: Schedule, size: int, rounds: int, cost: Cost, network: Network, *, h: int, bytes_per_average: float
) -> list[float]:
    """Workers meet after every h steps of a round and at its end.

    Args:
        bytes_per_average: what one worker sent for each.
    """
    shares = global_shares(schedule, size)
    ring = ring_seconds(len(schedule.counts), bytes_per_average, network)
    ends, now = [], 0.0
    for server_round in range(rounds):
        for first in range(0, len(shares), h):
            steps = range(first, min(first + h, len(shares)))
            start = server_round * len(shares)
            now += ring + max(
                sum(network.slowdown(site, start + k) * cost.seconds(shares[k][site]) for k in steps)
                for site in range(len(schedule.counts))
            )
        ends.append(now)
    return ends


def local_seconds(schedule: Schedule, rounds: int, cost: Cost, network: Network) -> list[float]:
    """Each site alone: a round ends when the slowest site has come to its end; nobody waits for it."""
    sites = [
        list(accumulate(_own_seconds(schedule, site, number, cost, network.slowdown) for number in range(rounds)))
        for site in range(len(schedule.counts))
    ]
    return [max(ends) for ends in zip(*sites, strict=True)]


def federated_seconds(
    schedule: Schedule, exchanges: Sequence[TimedExchange], cost: Cost, network: Network, *, secure: bool
) -> list[float]:
    """Training exchanges, one after another."""
    message_seconds, after = round_trip_seconds(network, secure=secure)

    def seconds(exchange: TimedExchange) -> float:
        rate = min(network.bandwidth, network.server / len(exchange.up))
        return after + max(
            client_seconds(
                max(_own_seconds(schedule, site, exchange.server_round - 1, cost, network.slowdown), message_seconds),
                down=exchange.down[site],
                up=exchange.up[site],
                down_rate=rate,
                up_rate=rate,
            )
            for site in exchange.up
        )

    return list(accumulate(map(seconds, exchanges)))


def buffered_seconds(
    schedule: Schedule, exchanges: Sequence[TimedExchange], cost: Cost, network: Network
) -> list[float]:
    """Buffered exchanges: a site begins from a model as soon as that is there and its last update is in a sum.

    Whose updates are in which sum, and what they began from, is what really happened.
    """
    _, after = round_trip_seconds(network, secure=True)
    times, free = [0.0], dict[int, float]()
    for number, exchange in enumerate(exchanges):
        rate = min(network.bandwidth, network.server / len(exchange.up))
        ends = []
        for site in exchange.up:
            began = number - exchange.staleness.get(site, 0)
            work = _own_seconds(schedule, site, began, cost, network.slowdown)
            took = client_seconds(work, down=exchange.down[site], up=exchange.up[site], down_rate=rate, up_rate=rate)
            ends.append(max(times[began], free.get(site, 0.0)) + took)
        times.append(max(*ends, times[-1]) + after)
        free.update(dict.fromkeys(exchange.up, times[-1]))
    return times[1:]


def paces(schedule: Schedule, rounds: int, cost: Cost, network: Network, *, quickest: float) -> list[list[float]]:
    """Seconds of each site's training in each round, in proportion to what it computes; the quickest of all as said."""
    seconds = [
        [_own_seconds(schedule, site, number, cost, network.slowdown) for number in range(rounds)]
        for site in range(len(schedule.counts))
    ]
    least = min(map(min, seconds))
    return [[quickest * one / least if least else quickest for one in own] for own in seconds]


def ring_seconds(workers: int, sent: float, network: Network) -> float:
    """One all-reduce in which each of the workers sends `sent` bytes, in 2 (workers - 1) messages."""
    if workers == 1:
        return 0.0
    return 2 * (workers - 1) * RING_LATENCIES * network.latency + sent * 8 / network.bandwidth


def global_shares(schedule: Schedule, size: int) -> list[tuple[int, ...]]:
    """How many examples each site has in each step of one round; the same in every round."""
    sites = range(len(schedule.counts))
    shares = (schedule.share(site, size, seed=0) for site in sites)
    return [tuple(0 if part.empty else len(part.rows) for part in parts) for parts in zip(*shares, strict=True)]


def _own_seconds(schedule: Schedule, site: int, server_round: int, cost: Cost, pace: Pace) -> float:
    """Computation of one site in one round, from 0 on, at its own pace."""
    sizes = _own_sizes(schedule, site)
    start = server_round * schedule.own_steps(site)[1]
    return sum(pace(site, number) * cost.seconds(size) for number, size in enumerate(sizes, start=start))


def _own_sizes(schedule: Schedule, site: int) -> Iterator[int]:
    """Examples of each step of a worker on its own; the last batch of a pass has what is left."""
    count = schedule.counts[site]
    size, steps = schedule.own_steps(site)
    one_pass = [min(size, count - first) for first in range(0, count, size)]
    return islice(cycle(one_pass), steps)
