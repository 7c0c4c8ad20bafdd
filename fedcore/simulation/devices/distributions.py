"""Devices drawn from distributions, by words on the command line: `time=lognormal:0.5,slower=0.3:10,there=0.8:3600`.

| word | meaning |
| --- | --- |
| `time=DISTRIBUTION` | by which factor a device's work takes longer, always |
| `vary=DISTRIBUTION` | the same, drawn again for each piece of work |
| `slower=SHARE:FACTOR` | this share of the devices takes so many times longer |
| `link=DISTRIBUTION` | by which factor a device's link is slower than the network's |
| `there=SHARE:SECONDS` | this share of the time a device is there, in stretches of so many seconds on average |

A distribution is `lognormal:SIGMA` (the median is 1), `halfnormal:SIGMA` (1 and the absolute value of a normal one) or
`uniform:LOW:HIGH`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.simulation.devices.availability import Always, Availability, ComesAndGoes
from fedcore.simulation.devices.devices import Device
from fedcore.simulation.devices.network import Network

WORDS: Final = ("time", "vary", "slower", "link", "there")
EXAMPLE: Final = "time=lognormal:0.5,slower=0.3:10,there=0.8:3600"


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of a factor. kind: a name of `DISTRIBUTIONS`; numbers: its parameters."""

    kind: str
    numbers: tuple[float, ...]

    def draw(self, chance: random.Random) -> float:
        """One factor, greater than 0."""
        return _DISTRIBUTIONS[self.kind][1](chance, self.numbers)


def _uniform(chance: random.Random, numbers: tuple[float, ...]) -> float:
    return chance.uniform(*numbers)


_DISTRIBUTIONS: Final[Mapping[str, tuple[int, Callable[[random.Random, tuple[float, ...]], float]]]] = {
    "lognormal": (1, lambda chance, numbers: chance.lognormvariate(0.0, numbers[0])),
    "halfnormal": (1, lambda chance, numbers: 1 + numbers[0] * abs(chance.gauss(0.0, 1.0))),
    "uniform": (2, _uniform),
}
_AS_IS: Final = Distribution("uniform", (1.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnDevices:
    """`Profiles` that are drawn; see above. slower: (share, factor). there: (share, seconds), or None: always."""

    time: Distribution = _AS_IS
    vary: Distribution | None = None
    slower: tuple[float, float] = (0.0, 1.0)
    link: Distribution = _AS_IS
    there: tuple[float, float] | None = None

    @classmethod
    def parse(cls, text: str) -> DrawnDevices:
        """Read words that are joined by commas; raises ConfigurationError and UnknownKey."""
        options: dict[str, object] = {}
        for word in text.split(","):
            key, equals, value = word.strip().partition("=")
            if key not in WORDS:
                raise UnknownKey(key, WORDS, "--devices")
            if not equals or key in options:
                _wrong(word, "it is there twice" if key in options else f"it needs a value, {key}=...")
            options[key] = _pair(word, key, value) if key in ("slower", "there") else _distribution(word, value)
        return cls(**options)  # type: ignore[arg-type]

    def check(self, clients: int) -> None:
        """Every client has a device."""

    def device(self, client: int, network: Network, seed: int) -> Device:
        share, factor = self.slower
        time = self.time.draw(_chance(seed, client, "time"))
        time *= factor if _chance(seed, client, "slower").random() < share else 1.0
        rate = network.bandwidth / self.link.draw(_chance(seed, client, "link"))
        there: Availability = Always()
        if self.there is not None and self.there[0] < 1:
            there = ComesAndGoes(*self.there, f"{seed}/{client}/there")
        return Device(time=time, up=rate, down=rate, there=there)

    def factor(self, client: int, number: int, seed: int) -> float:
        return 1.0 if self.vary is None else self.vary.draw(_chance(seed, client, f"vary/{number}"))


def _chance(seed: int, client: int, what: str) -> random.Random:
    return random.Random(f"{seed}/{client}/{what}")  # noqa: S311 - how fast a simulated device is is no secret


def _distribution(word: str, value: str) -> Distribution:
    kind, *rest = value.split(":")
    if kind not in _DISTRIBUTIONS:
        _wrong(word, f"a distribution is one of {', '.join(_DISTRIBUTIONS)}")
    count = _DISTRIBUTIONS[kind][0]
    if len(rest) != count:
        _wrong(word, f"{kind} has {count} {'number' if count == 1 else 'numbers'}")
    numbers = tuple(_number(word, one) for one in rest)
    if kind == "uniform" and not 0 < numbers[0] <= numbers[1]:
        _wrong(word, "the lower factor comes first and is greater than 0")
    return Distribution(kind, numbers)


def _pair(word: str, key: str, value: str) -> tuple[float, float]:
    share, colon, other = value.partition(":")
    if not colon:
        _wrong(word, f"{key} has two numbers, a share and a {'factor' if key == 'slower' else 'time in seconds'}")
    pair = (_number(word, share), _number(word, other))
    if pair[0] > 1 or pair[1] == 0 or (key == "there" and pair[0] == 0):
        _wrong(word, "the share is at most 1, and what follows is greater than 0")
    return pair


def _number(word: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return _wrong(word, f"{text!r} is no number")
    return number if math.isfinite(number) and number >= 0 else _wrong(word, f"{text} is negative, or no number")


def _wrong(word: str, why: str) -> NoReturn:
    raise ConfigurationError(f"--devices cannot read {word!r}: {why}; an example: {EXAMPLE}")
