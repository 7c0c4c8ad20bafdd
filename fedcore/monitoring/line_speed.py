"""Lines of clients: how fast one is, and how long the transfers of a round over it take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

from fedcore.errors import ConfigurationError
from fedcore.monitoring import formatting as units

GRANT: Final = 2.0
"""A transfer may take so many times as long as its bytes at the speed of the line: speeds of lines vary."""
LESS_OR_LONGER: Final = (
    "a larger transfer-seconds gives it more time; field-bits and upload-fraction make uploads smaller, "
    "download-bits = 16 downloads, and adapters (LoRA) both"
)
"""What helps if a transfer does not fit into its time."""
PAYLOAD: Final = 0.94
"""What models and updates get of a line's speed: headers of TCP, IP and TLS take 3.7 %, pauses and repeats the rest."""
TRANSFER_TRIPS: Final = 4
"""Round trips that a transfer takes in addition to its bytes: TCP's beginning, and requests that wait behind them.
Both as `benchmarks/results/wan.md` has it."""
CHANGES_BELOW: Final = 25e6
"""Bytes a second at which a model and an exact difference of three quarters of its bytes
(`fedcore.state.exact_difference`) take about as long, since the server has to make it first. A change of half of them
(`fedcore.codec.means.change`) would save some time on lines up to ten times as fast."""
_LEAST_SECONDS: Final = 1.0
_LEAST_BYTES: Final = 1 << 20
_FIRST_WINDOW: Final = 14_600
"""Bytes that TCP sends before the first answer (RFC 6928); with each further round trip it sends twice as many."""
_OF_BEGINNING: Final = 2.0
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)([kmg]?)bit", re.IGNORECASE)
_PER_SECOND: Final = re.compile(r"bit/s|bps", re.IGNORECASE)
_SECONDS: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s)", re.IGNORECASE)
_FACTORS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_FASTEST: Final = 1e13
_LONGEST_TRIP: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSpeed:
    """How fast a client's line is.

    down, up: bytes a second to the client and from it; None before a transfer that shows it.
    round_trip: seconds from a request to its answer, None before one that shows it.
    """

    down: float | None = None
    up: float | None = None
    round_trip: float | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what a person writes: "2mbit,300ms", or "50mbit/10mbit,30ms" for down and up.

        The time is that of a round trip, as ping shows it. Raises ConfigurationError.
        """
        rates, _, trip = _PER_SECOND.sub("bit", text.replace(" ", "")).partition(",")
        down, slash, up = rates.partition("/")
        numbers = [_bytes_a_second(down), _bytes_a_second(up) if slash else _bytes_a_second(down)]
        seconds = _SECONDS.fullmatch(trip) if trip else None
        if None in numbers or (trip and seconds is None):
            raise ConfigurationError(
                f"--line cannot read {text!r}; write its speed and the time of a round trip, as in 2mbit,300ms, or "
                "50mbit/10mbit,30ms for a line that is faster down than up"
            )
        trip_seconds = float(seconds[1]) * (1e-3 if seconds[2].lower() == "ms" else 1.0) if seconds else None
        return cls(down=numbers[0], up=numbers[1], round_trip=trip_seconds)

    def to_query(self) -> str:
        """Three numbers of two digits, for the query of a request: "250000,250000,0.31"; "" if nothing is known."""
        values = (self.down, self.up, self.round_trip)
        if not any(values):
            return ""
        rounded = [None if value is None else float(f"{value:.1e}") for value in values]
        # No exponent: the plus sign of one means a space in a query.
        return ",".join("" if value is None else f"{value:.0f}" if value >= 10 else f"{value:.6f}" for value in rounded)

    @classmethod
    def from_query(cls, text: str) -> Self:
        """The inverse; what a peer writes otherwise counts as not known."""
        values: list[float | None] = []
        for word, most in zip(text.split(","), (_FASTEST, _FASTEST, _LONGEST_TRIP), strict=False):
            try:
                value = float(word)
            except ValueError:
                value = math.nan
            values.append(value if 0 < value <= most else None)
        return cls(**dict(zip(("down", "up", "round_trip"), values, strict=False)))

    def or_else(self, other: LineSpeed) -> LineSpeed:
        """What is known of this line, and from another source what is not."""
        return LineSpeed(
            down=self.down or other.down,
            up=self.up or other.up,
            round_trip=self.round_trip or other.round_trip,
        )

    @property
    def is_slow(self) -> bool:
        """Whether a change to a model is there sooner than the model."""
        return any(speed is not None and speed < CHANGES_BELOW for speed in (self.down, self.up))

    def __str__(self) -> str:
        named = ((self.down, "down"), (self.up, "up"))
        words = [f"{_bits(speed)} {way}" for speed, way in named if speed is not None]
        words += [f"{self.round_trip * 1e3:.0f} ms"] if self.round_trip is not None else []
        return ", ".join(words)


def tells_speed(size: int, seconds: float, round_trip: float | None) -> bool:
    """Whether a transfer shows how fast a line is, rather than how TCP begins.

    One that is both short and small does not, nor one of which the round trips of that beginning may be over half.

    Args:
        size: its bytes.
        seconds: how long it took.
        round_trip: of the line, in seconds; None if it is not known.
    """
    if seconds <= 0 or (seconds < _LEAST_SECONDS and size < _LEAST_BYTES):
        return False
    trips = 1 + math.ceil(math.log2(1 + size / _FIRST_WINDOW))  # one for the answer
    return seconds >= _OF_BEGINNING * trips * (round_trip or 0.0)


def granted_seconds(size: float, speeds: Iterable[float | None], most: float) -> float:
    """How long a transfer may take, by the slowest of the speeds that are known; 0 if none is.

    Args:
        size: its bytes.
        speeds: bytes a second.
        most: seconds, the longest that any transfer may take.
    """
    slowest = min((speed for speed in speeds if speed), default=None)
    return min(most, GRANT * size / slowest) if slowest is not None else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTime:
    """What a line adds to the training time of one client's round.

    down, up: bytes of the model and of the update.
    trips: round trips, of requests that wait for one another and of transfers that begin.
    download, upload, messages: seconds.
    """

    down: int
    up: int
    trips: int
    download: float
    upload: float
    messages: float

    @classmethod
    def of(cls, line: LineSpeed, *, down: int, up: int, trips: int) -> Self:
        """The seconds of a round on a line; what is not known of it takes none."""
        return cls(
            down=down,
            up=up,
            trips=trips,
            download=down / line.down if line.down else 0.0,
            upload=up / line.up if line.up else 0.0,
            messages=trips * (line.round_trip or 0.0),
        )

    @classmethod
    def expected(cls, line: LineSpeed, *, down: int, up: int, trips: int) -> Self:
        """The same for a line as it is sold, which carries less than its speed.

        Args:
            trips: requests that wait for one another.
        """
        carried = LineSpeed(
            down=PAYLOAD * line.down if line.down else None,
            up=PAYLOAD * line.up if line.up else None,
            round_trip=line.round_trip,
        )
        transfers = sum(size > 0 for size in (down, up))
        return cls.of(carried, down=down, up=up, trips=trips + TRANSFER_TRIPS * transfers)

    @property
    def seconds(self) -> float:
        """All together."""
        return self.download + self.upload + self.messages

    def to_plain(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "down_bytes": self.down,
            "up_bytes": self.up,
            "trips": self.trips,
            "down_seconds": round(self.download, 3),
            "up_seconds": round(self.upload, 3),
            "message_seconds": round(self.messages, 3),
            "seconds": round(self.seconds, 3),
        }

    def __str__(self) -> str:
        return (
            f"{self.seconds:.1f} s: {units.size(self.down)} down in {self.download:.1f} s, {units.size(self.up)} up in "
            f"{self.upload:.1f} s, {self.trips} round trips in {self.messages:.1f} s"
        )


def _bytes_a_second(text: str) -> float | None:
    match = _RATE.fullmatch(text)
    speed = float(match[1]) * _FACTORS[match[2].lower()] / 8 if match else 0.0
    return speed if 0 < speed <= _FASTEST else None


def _bits(speed: float) -> str:
    """Bytes a second in the unit in which lines are sold."""
    bits = speed * 8
    for unit, factor in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if bits >= factor:
            return f"{bits / factor:.3g} {unit}"
    return f"{bits:.0f} bit/s"
