"""What a server remembers of the sums of one model in a run, and the encodings that follow from it by the rule."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from fedcore.codec.encoding import Encoding
from fedcore.codec.names import MetricName
from fedcore.codec.scaling.scales import (
    FREE_FALLS,
    POWER,
    ScaleInputs,
    first_encoding,
    headroom,
    is_first,
    next_encoding,
    wider,
)
from fedcore.codec.scaling.statistics import MagnitudeStatistics, power_of_two
from fedcore.codec.scaling.widths import FIRST_SCALE, WIDE_BITS, WIDEST_BITS
from fedcore.codec.settings import MAX_SCALE, CodecSettings
from fedcore.state import Layout

FADING = 2.0 ** (-1 / 8)
"""What is left of a peak after one exchange more."""

FAR = 2.0**5
"""A peak so many times as large as the last one fades by half: its scale costs wide fields."""

UNTOLD_RISE = 2.0**20
"""How much larger a scale becomes if a sum does not say by how much an update exceeds it: that of small tensors, and of
a first exchange beyond the highest rung. Steps of 64-bit fields are fine enough for that."""

_GROWTH = 2.0
"""How fast the usual peak grows in an exchange: slower than one outlier, and it shrinks at once."""


@dataclass(slots=True)
class ScaleTrack:
    """What a server keeps of one model's sums in a run, and the encodings that follow from it.

    The clients' rule holds between any two encodings, whether or not their sums opened. A scale that an overflow raised
    stays until a sum has opened. Fields that were too coarse are followed by wider ones.
    """

    _latest: MagnitudeStatistics | None = None
    _lasting: tuple[float, ...] = ()
    _usual: tuple[float, ...] = ()
    _previous: Encoding | None = None
    _raised: tuple[float, ...] = ()
    _falls: int = 0
    _coarse_bits: int = 0

    def encoding(
        self,
        settings: CodecSettings,
        layout: Layout,
        n_max: int,
        *,
        metrics: tuple[MetricName, ...] | None,
        failures: int,
        again: bool = False,
        rotation: str = "",
    ) -> Encoding:
        """The encoding of the next exchange of up to `n_max` clients.

        Args:
            again: no scale is below that of the last one.
        """
        first = first_encoding(settings, layout, n_max, metrics=metrics, failures=failures, rotation=rotation)
        last = self._previous.scales if self._previous else first.scales
        least = self._raised or (0.0,) * len(last)
        if again:
            least = tuple(map(max, least, last))
        if self._latest is None:
            bits = WIDEST_BITS if self._raised and first.scales else first.field_bits  # far from what is usual, maybe
            encoding = dataclasses.replace(first, field_bits=bits, scales=tuple(map(max, first.scales, least)))
        else:
            inputs = ScaleInputs(
                latest=self._latest,
                lasting=self._lasting,
                usual=self._usual,
                last=last,
                least=least,
                settled=self._falls >= FREE_FALLS,
            )
            encoding = next_encoding(
                settings, layout, n_max, inputs, metrics=metrics, failures=failures, rotation=rotation
            )
        if encoding.field_bits <= self._coarse_bits < WIDEST_BITS:
            encoding = wider(dataclasses.replace(encoding, field_bits=self._coarse_bits))
        self._previous = encoding
        self._falls += not is_first(encoding)
        return encoding

    def learn(self, statistics: MagnitudeStatistics) -> None:
        """Keep what a sum told that opened. One in which nothing changed tells nothing."""
        if not any(statistics.peaks):
            return
        self._remember(statistics, fades=True)
        peaks = list(statistics.peaks)
        if self._latest is None and self._raised:  # too large for a first exchange, so what is usual is yet to be seen
            peaks = [0.0 if peak > FIRST_SCALE else peak for peak in peaks]
        before = self._usual or (0.0,) * len(peaks)
        self._usual = tuple(
            min(peak, old * (_GROWTH if sure else 1.0)) if peak and old else peak or old
            for peak, old, sure in zip(peaks, before, statistics.measured, strict=True)
        )
        self._latest, self._raised, self._coarse_bits = statistics, (), 0

    def learn_coarse(self, encoding: Encoding, statistics: MagnitudeStatistics) -> None:
        """Make the next fields wider than those of `encoding`, in which too much of a sum was rounding."""
        self.learn(statistics)
        self._coarse_bits = encoding.field_bits

    def learn_overflow(self, encoding: Encoding, statistics: MagnitudeStatistics) -> None:
        """Make the next scales hold every update of a sum that `encoding` had too little room for."""
        self._remember(statistics, fades=False)
        absent = max((encoding.n_max / statistics.contributors) ** (1 / POWER), 1.0)
        raised = []
        for index, group in enumerate(encoding.groups):
            scale = statistics.scales[index]
            needed = statistics.peaks[index] * headroom(encoding.settings, group, encoding.n_max) * absent
            if statistics.saturated[index] and (group.small or encoding.field_bits >= WIDE_BITS):
                needed = max(needed, scale * UNTOLD_RISE)
            raised.append(min(max(power_of_two(needed), scale), MAX_SCALE))
        self._raised = tuple(map(max, raised, self._raised)) if self._raised else tuple(raised)

    def _remember(self, statistics: MagnitudeStatistics, *, fades: bool) -> None:
        """Peaks that are loose bounds are not kept: the next sum that opens knows a tight one."""
        before = self._lasting or (0.0,) * len(statistics.peaks)
        peaks = zip(before, statistics.peaks, statistics.measured, strict=True)
        self._lasting = tuple(
            max(old * _left_of(old, peak) if fades else old, peak if sure else 0.0) for old, peak, sure in peaks
        )


def _left_of(old: float, peak: float) -> float:
    """What part of a peak lasts after an exchange whose own peak was `peak`; 0 says nothing."""
    return 1.0 if not peak else FADING if old <= FAR * peak else 0.5
