"""How many neighbours a client needs, and how many shares: the arithmetic behind the graph of large cohorts.

Everybody's clients are placed on a ring in an order that nobody controls alone; a client's neighbours are the k / 2
before and the k / 2 after it (a Harary graph). What can go wrong is a hypergeometric tail: too many corrupt clients
near one place, or too few survivors. `graph_size` finds the least k whose tails are small enough.

Three adversaries. The first two are those of Bell et al. 2020 (SecAgg+) as google-parfait/federated-compute computes
them (fcp/secagg/server/graph_parameter_finder.cc); the dropouts are taken to be independent of the order there.
ADAPTIVE is what rounds here are sized for: the server sees the order before it names who dropped out, and names
whomever it likes. A group of survivors that it splits off has two ends, and before each of them half a window with no
honest survivor, in which corrupt clients must make up for the holders that are lost: so h + c + 2 shares are enough if
no two separate half windows hold more than c corrupt clients each. And any two sets of t holders of one secret must
have an honest one in common. docs/protocol.md, "The graph", has the argument.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from fedcore.errors import ConfigurationError

FULL_GRAPH_BELOW = 65
"""Cohorts smaller than this are fully connected: a sparse graph would save next to nothing."""
SECURITY_BITS = 128
"""A failure has probability 2^-128. A statistical 2^-40 is not enough: the order is a hash of the advertised keys, so
a client that sends the last key, or a server that chooses whom to list, can try orders as fast as it can hash."""
PUBLISHED_SECURITY_BITS = 40
CORRECTNESS_BITS = 20
"""An honest round with no more than the expected dropouts fails with probability 2^-20."""
_ROUNDING = 1e-14


class Adversary(StrEnum):
    """What the server does: follows the protocol, lies about keys and survivors, or also aims its dropouts."""

    SEMI_HONEST = "semi-honest"
    MALICIOUS = "malicious"
    ADAPTIVE = "adaptive"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSize:
    """`degree` is k, the neighbours of a client; `threshold` is t, the shares that rebuild one of its secrets."""

    degree: int
    threshold: int


def default_quorum(n: int) -> int:
    """floor(2n / 3) + 1: the fewest survivors of a cohort of `n`. On the full graph it is the threshold too, and

    2t > n + corrupt holds for fewer than a third of n colluding (Bonawitz et al. 2017, malicious setting).
    """
    return 2 * n // 3 + 1


def corrupt_clients(n: int, fraction: float) -> int:
    """The number of clients that may collude with the server: `fraction` of `n`, rounded down."""
    return math.floor((fraction + _ROUNDING) * n)


def cohort_graph(n: int, *, quorum: int, corrupt: int, dropout: float) -> GraphSize:
    """The graph of a round: full for small cohorts, else sized for a server that aims its dropouts.

    The tails are taken over `quorum` clients, the fewest that may advertise, among whom all `corrupt` may be.
    """
    full = GraphSize(degree=n - 1, threshold=quorum)
    if n < FULL_GRAPH_BELOW:
        return full
    return _adaptive(n, quorum, corrupt, dropout, SECURITY_BITS, CORRECTNESS_BITS) or full


def withstands(*, population: int, corrupt: int, degree: int, threshold: int) -> bool:
    """Whether no aimed dropouts split the honest survivors, except with probability 2^-SECURITY_BITS.

    `population` are the clients on the ring, `corrupt` how many of them may collude.
    """
    return threshold >= _least_threshold(population, corrupt, degree, SECURITY_BITS)


def graph_size(
    n: int,
    *,
    corrupt: float,
    dropout: float,
    adversary: Adversary,
    security_bits: int = PUBLISHED_SECURITY_BITS,
    correctness_bits: int = CORRECTNESS_BITS,
) -> GraphSize:
    """The least degree, and a threshold, for `n` clients; `corrupt` and `dropout` are fractions of them.

    With PUBLISHED_SECURITY_BITS the first two adversaries give the figures of docs/protocol.md. Raises
    ConfigurationError if no degree below n - 1 will do.
    """
    if n < 3 or not 0 <= corrupt < 1 or not 0 <= dropout < 1:
        raise ConfigurationError(
            "a graph needs 3 clients or more, and fractions of at least 0 and below 1", check="graph-size"
        )
    colluding = corrupt_clients(n, corrupt)
    if adversary is Adversary.ADAPTIVE:
        sized = _adaptive(n, n, colluding, dropout, security_bits, correctness_bits)
    else:
        sized = _published(n, colluding, dropout, adversary, security_bits, correctness_bits)
    if sized is None:
        raise ConfigurationError(
            f"{n} clients of which {colluding} collude and {dropout:.0%} drop out need a full graph, if any will do",
            check="full-graph",
        )
    return sized


@lru_cache(maxsize=64)
def _adaptive(
    n: int, population: int, corrupt: int, dropout: float, security_bits: int, correctness_bits: int
) -> GraphSize | None:
    for degree in range(2, population - 1, 2):
        threshold = _least_threshold(population, corrupt, degree, security_bits)
        if threshold <= _least_survivors(n, dropout, degree, correctness_bits):
            return GraphSize(degree=degree, threshold=threshold)
    return None


def _published(
    n: int, corrupt: int, dropout: float, adversary: Adversary, security_bits: int, correctness_bits: int
) -> GraphSize | None:
    """Half of the failure probability for a graph that falls apart, half for a client with too many corrupt peers."""
    event = 2.0 ** -(security_bits + 1)
    for degree in range(2, n - 1, 2):
        if _splits(n, corrupt + corrupt_clients(n, dropout), degree) >= event:
            continue
        bound = _upper_quantile(n, corrupt, degree, event / n)
        if adversary is Adversary.MALICIOUS:
            # 2t > k + corrupt neighbours: two sets of t holders have an honest one in common.
            bound = math.ceil((bound + degree - 1.25) / 2)
        if bound < _least_survivors(n, dropout, degree, correctness_bits):
            return GraphSize(degree=degree, threshold=max(bound + 1, 2))
    return None


def _splits(n: int, removed: int, degree: int) -> float:
    """A union bound on two gaps of k / 2 each, made of `removed` clients at random places of the ring."""
    if degree > removed:
        return 0.0
    pairs = math.log(n) + math.log(n - degree - 1) - math.log(2)
    all_removed = math.lgamma(removed + 1) - math.lgamma(removed - degree + 1)
    return math.exp(pairs + all_removed + math.lgamma(n - degree + 1) - math.lgamma(n + 1))


@lru_cache(maxsize=4096)
def _least_threshold(population: int, corrupt: int, degree: int, security_bits: int) -> int:
    """The least t of which both hold: no group is split off, and any two sets of t holders share an honest one.

    t > k / 2 + 1 + c, and 2t > k + 1 + the most corrupt clients among anybody's neighbours. No parameters are known for
    which the second asks for more than the first; it stands here because the argument needs it.
    """
    half = degree // 2
    bound = 2.0**-security_bits / population
    around = _upper_quantile(population, corrupt, degree, bound)
    return max(half + 2 + _most_in_both(population, corrupt, half, security_bits), (degree + 1 + around) // 2 + 1)


@lru_cache(maxsize=4096)
def _most_in_both(population: int, corrupt: int, window: int, security_bits: int) -> int:
    """The most corrupt clients in each of any two windows that share no place, except with 2^-security_bits.

    The most in the one with fewer, that is; so never more than half of all. A union bound over all pairs of windows.
    """
    bound = 2.0 ** (1 - security_bits) / population**2
    total = 0.0
    for fewer in range(window, 0, -1):
        total += _mass_of_both(population, corrupt, window, fewer)
        if total > bound:
            return fewer
    return 0


def _mass_of_both(population: int, corrupt: int, window: int, fewer: int) -> float:
    """P[of two given windows one holds `fewer` corrupt clients and the other as many or more]."""
    rest = population - 2 * window
    log_all = _log_choose(population, corrupt)
    total = 0.0
    for more in range(fewer, window + 1):
        ways = _log_choose(window, fewer) + _log_choose(window, more) + _log_choose(rest, corrupt - fewer - more)
        total += (1 if more == fewer else 2) * math.exp(ways - log_all)
    return total


def _least_survivors(n: int, dropout: float, degree: int, correctness_bits: int) -> int:
    """The least x with P[survivors among the neighbours <= x] >= 2^-correctness_bits / n."""
    survivors = math.ceil((1 - dropout - _ROUNDING) * n)
    bound = 2.0**-correctness_bits / n
    total = 0.0
    for x, mass in enumerate(_masses(n, survivors, degree)):
        total += mass
        if total >= bound:
            return x
    return degree


def _upper_quantile(n: int, marked: int, drawn: int, bound: float) -> int:
    """The least x with P[marked among the drawn > x] <= bound; -1 if even x = -1 will do."""
    total = 0.0
    for x, mass in reversed(list(enumerate(_masses(n, marked, drawn)))):
        total += mass
        if total > bound:
            return x
    return -1


def _masses(n: int, marked: int, drawn: int) -> list[float]:
    """Hypergeometric probabilities of 0 .. drawn marked ones among `drawn` out of `n`, as floats."""
    log_all = _log_choose(n, drawn)
    return [math.exp(_log_choose(marked, x) + _log_choose(n - marked, drawn - x) - log_all) for x in range(drawn + 1)]


def _log_choose(n: int, k: int) -> float:
    if not 0 <= k <= n:
        return -math.inf
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
