"""Devices from a trace: a CSV file with a heading.

| column | meaning | where it is left out or empty |
| --- | --- | --- |
| `client` | its number or name (`7`, `client-7`), or `any`: for those without a row of their own | needed |
| `time` | by which factor its work takes longer than on the reference device | 1 |
| `up`, `down` | rates of its link, as in `20Mbit` | those of the network |
| `from`, `to` | when it is there, seconds of the virtual clock; several rows give several intervals | always |
| `repeat` | after how many seconds its intervals begin again, such as 86400 | never |

`any-1`, `any-2` and so on are several kinds of device: each client without a row of its own gets one of them, by the
seed. So a trace of some hundred phones serves any number of clients.
"""

from __future__ import annotations

import csv
import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from fedcore.errors import ConfigurationError, UnknownKey
from fedcore.simulation.devices.availability import Always, Intervals
from fedcore.simulation.devices.devices import Device
from fedcore.simulation.devices.network import Network, bits_a_second

COLUMNS: Final = ("client", "time", "up", "down", "from", "to", "repeat")


@dataclass(slots=True)
class _DeviceTrace:
    """What the rows of one client say: where, the values that are the same in all, and its intervals."""

    line: int
    fixed: dict[str, float]
    spans: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedDevices:
    """`Profiles` of a trace. own: of clients that have rows. kinds: of the others. A rate of 0 is the network's."""

    file: Path
    own: Mapping[int, Device]
    kinds: tuple[Device, ...]

    @classmethod
    def read(cls, file: Path) -> TracedDevices:
        """Read a trace; raises ConfigurationError that names the line."""
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"--devices: cannot read {file}: {error}") from None
        rows = csv.DictReader(text.splitlines(), skipinitialspace=True)
        for name in rows.fieldnames or ():
            if name not in COLUMNS:
                raise UnknownKey(name, COLUMNS, f"the columns of {file}")
        if "client" not in (rows.fieldnames or ()):
            raise ConfigurationError(
                f"{file}: the first line has to name the columns, {', '.join(COLUMNS)}", check="columns"
            )
        traces: dict[str, _DeviceTrace] = {}
        for row in rows:
            _take(traces, file, rows.line_num, row)
        devices = {name: _device(file, one) for name, one in traces.items()}
        return cls(
            file=file,
            own={int(name): device for name, device in devices.items() if name.isdigit()},
            kinds=tuple(device for name, device in devices.items() if not name.isdigit()),
        )

    def check(self, clients: int) -> None:
        """Every client has a device; raises ConfigurationError."""
        missing = [client for client in range(1, clients + 1) if client not in self.own]
        if missing and not self.kinds:
            raise ConfigurationError(
                f"{self.file} has no row for client {missing[0]}, and none for any", check="no-row"
            )

    def device(self, client: int, network: Network, seed: int) -> Device:
        trace = self.own.get(client)
        if trace is None:
            trace = random.Random(f"{seed}/{client}/kind").choice(self.kinds)  # noqa: S311 - no secret
        rate = network.bandwidth
        return Device(time=trace.time, up=trace.up or rate, down=trace.down or rate, there=trace.there)

    def factor(self, client: int, number: int, seed: int) -> float:
        return 1.0


def _take(traces: dict[str, _DeviceTrace], file: Path, line: int, row: Mapping[str | None, str | None]) -> None:
    if None in row or None in row.values():
        _wrong(file, line, "it does not have as many values as the first line has columns", check="value-count")
    values = {str(key): (value or "").strip() for key, value in row.items()}
    name = re.sub(r"^client-(?=[0-9])", "", values.pop("client"))
    if not re.fullmatch(r"0*[1-9][0-9]*|any(-[\w.-]+)?", name):
        _wrong(file, line, f"{name!r} is no client: 7, client-7, any or any-NAME")
    name = str(int(name)) if name.isdigit() else name
    span = values.pop("from", ""), values.pop("to", "")
    fixed = {
        "time": _positive(file, line, "time", values.get("time") or "1"),
        "up": _rate(file, line, "up", values.get("up", "")),
        "down": _rate(file, line, "down", values.get("down", "")),
        "repeat": _positive(file, line, "repeat", values.get("repeat") or "0", zero=True),
    }
    one = traces.setdefault(name, _DeviceTrace(line, fixed))
    if one.fixed != fixed:
        differs = ", ".join(key for key in fixed if fixed[key] != one.fixed[key])
        _wrong(file, line, f"{differs} differ from line {one.line}, of the same client")
    if one.line != line and not (any(span) and one.spans):
        _wrong(file, line, f"line {one.line} is of the same client; several rows need from and to, each")
    if any(span):
        one.spans.append(_span(file, line, span, one))


def _span(file: Path, line: int, span: tuple[str, str], one: _DeviceTrace) -> tuple[float, float]:
    start = _positive(file, line, "from", span[0] or "0", zero=True)
    end = _positive(file, line, "to", span[1]) if span[1] else math.inf
    if end <= start:
        _wrong(file, line, f"to = {end:g} is not after from = {start:g}")
    if one.spans and start < one.spans[-1][1]:
        _wrong(file, line, "its interval begins before the one of the row above it ends", check="intervals-overlap")
    if one.fixed["repeat"] and end > one.fixed["repeat"]:
        _wrong(file, line, f"its interval ends after the {one.fixed['repeat']:g} s after which all repeats")
    return start, end


def _device(file: Path, one: _DeviceTrace) -> Device:
    repeat = one.fixed["repeat"]
    if repeat and not one.spans:
        _wrong(file, one.line, "repeat needs from and to")
    there = Intervals(tuple(one.spans), repeat) if one.spans else Always()
    return Device(time=one.fixed["time"], up=one.fixed["up"], down=one.fixed["down"], there=there)


def _rate(file: Path, line: int, key: str, text: str) -> float:
    if not text:
        return 0.0
    rate = bits_a_second(text)
    return rate if rate is not None else _wrong(file, line, f"{key} = {text!r} is no rate such as 20Mbit")


def _positive(file: Path, line: int, key: str, text: str, *, zero: bool = False) -> float:
    try:
        value = float(text)
    except ValueError:
        return _wrong(file, line, f"{key} = {text!r} is no number")
    if math.isfinite(value) and (value > 0 or (zero and value == 0)):
        return value
    return _wrong(file, line, f"{key} = {text} has to be greater than 0")


def _wrong(file: Path, line: int, why: str, *, check: str = "") -> NoReturn:
    raise ConfigurationError(f"{file}, line {line}: {why}", check=check)
