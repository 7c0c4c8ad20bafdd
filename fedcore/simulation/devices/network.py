"""The network and the machines for which times are estimated: bandwidth, latency, stragglers.

Real processes exchange real bytes over the loopback; this model says how long the same would have taken elsewhere.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from fedcore.errors import ConfigurationError, UnknownKey

_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
PRESETS = {
    "lan": "bandwidth=1Gbit,latency=0.1ms",
    "wan": "bandwidth=100Mbit,latency=50ms",
}
PLAIN_TRIPS = 4
"""Requests of a plain exchange that wait for one another: task, model, the update's parts, its manifest."""

SECURE_TRIPS = PLAIN_TRIPS + 2
"""The same of a secure one: the answer to the manifest names the survivors; the signatures and the shares follow."""

KEY_TRIPS = 2
"""Requests of a secure exchange during the training: advertisement and sealed shares."""

KEYS = ("bandwidth", "latency", "server", "step", "example", "slow", "transient", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One link for each site, in both directions at once, and one for the server.

    bandwidth: bits a second of a site's link, each way. latency: seconds that a message travels, one way. server: bits
    a second of the server's link, each way, which all sites share. step, example: seconds of computation for each step
    and for each example of it; None to measure them. slow: site -> factor by which all its steps are slower.
    transient: chance that a step of any site is slower, and by which factor. seed: of these chances.
    """

    name: str
    bandwidth: float
    latency: float
    server: float
    step: float | None = None
    example: float | None = None
    slow: Mapping[int, float] = field(default_factory=dict)
    transient: tuple[float, float] = (0.0, 1.0)
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Network | None:
        """Read "lan", "wan", "none", or key=value words joined by commas, which may follow a preset's name.

        `bandwidth=100Mbit,latency=50ms,server=1Gbit,step=2ms,example=10us,slow=2:4,transient=0.05:10,seed=1`
        """
        name, _, rest = text.partition(",")
        if text == "none":
            return None
        words = [PRESETS[name], rest] if name in PRESETS else [text]
        values: dict[str, Any] = {}
        for word in ",".join(words).split(","):
            if word:
                _take(values, word)
        for key in ("bandwidth", "latency"):
            if key not in values:
                raise ConfigurationError(f"--network needs {key}, or one of {', '.join(PRESETS)} or none: {text!r}")
        return cls(name=text, **{"server": values["bandwidth"], **values})

    def slowdown(self, site: int, step: int) -> float:
        """By which factor a site's step takes longer; the same whenever it is asked."""
        factor = self.slow.get(site, 1.0)
        chance, slower = self.transient
        if chance:
            digest = hashlib.sha256(f"{self.seed}/{site}/{step}".encode()).digest()
            if int.from_bytes(digest[:8], "big") < chance * 2**64:
                factor *= slower
        return factor


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of computation: a step on n examples takes `step + n * example` on a site that is not slowed down."""

    step: float
    example: float

    def seconds(self, examples: int) -> float:
        """Of one step."""
        return self.step + examples * self.example


def client_seconds(computing: float, *, down: float, up: float, down_rate: float, up_rate: float) -> float:
    """From a task to the last byte of the update; down, up: bytes. Rates are bits a second. Nothing overlaps."""
    return computing + down * 8 / down_rate + up * 8 / up_rate


def round_trip_seconds(network: Network, *, secure: bool) -> tuple[float, float]:
    """Of the requests of an exchange that wait for one another: during the training, and before and after it."""
    message_seconds = KEY_TRIPS * 2 * network.latency if secure else 0.0
    return message_seconds, (SECURE_TRIPS if secure else PLAIN_TRIPS) * 2 * network.latency


def _take(values: dict[str, Any], word: str) -> None:
    key, _, raw = word.partition("=")
    match key:
        case "bandwidth" | "server":
            values[key] = _rate(raw)
        case "latency" | "step" | "example":
            values[key] = _seconds(raw)
        case "slow":
            site, factor = _pair(key, raw)
            # As in reports: client-1 is the first site.
            values["slow"] = {**values.get("slow", {}), int(site) - 1: factor}
        case "transient":
            values[key] = _pair(key, raw)
        case "seed":
            values[key] = int(raw) if raw.isdigit() else _wrong(word)
        case _:
            raise UnknownKey(key, KEYS, "--network")


def bits_a_second(text: str) -> float | None:
    """A rate such as 20Mbit; None for what is none."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)([kMG]?)bit", text)
    rate = float(match[1]) * _UNITS[match[2]] if match else 0.0
    return rate if 0 < rate < float("inf") else None


def _rate(text: str) -> float:
    return bits_a_second(text) or _wrong(text)


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([0-9.e+-]+?)(s|ms|us)", text)
    return _positive(match[1], zero=True) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[match[2]] if match else _wrong(text)


def _pair(key: str, text: str) -> tuple[float, float]:
    first, colon, second = text.partition(":")
    return (_positive(first, zero=True), _positive(second)) if colon else _wrong(f"{key}={text}")


def _positive(text: str, *, zero: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        return _wrong(text)
    if 0 < value < float("inf") or (zero and value == 0):
        return value
    return _wrong(text)


def _wrong(text: str) -> NoReturn:
    raise ConfigurationError(
        f"--network cannot read {text!r}; an example: bandwidth=100Mbit,latency=50ms,slow=2:4,transient=0.05:10"
    )
