"""Which encoding each exchange of a run gets: from its settings, the cohort's size, and what the sums so far say."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from fedcore.codec import (
    AnyEncoding,
    CodecSettings,
    Encoding,
    MagnitudeStatistics,
    MetricName,
    ScaleTrack,
    auto_field_bits,
    bounded_encoding,
    first_encoding,
    private_encoding,
    rotation_seed,
)
from fedcore.codec.privacy import PrivacyPlan
from fedcore.errors import ConfigurationError
from fedcore.run.privacy_budget import privacy_plan
from fedcore.run.quorum import failures_for, noise_clients, protection_for, quorum_for
from fedcore.run.settings import JobSettings
from fedcore.state import Layout
from fedcore.wire.tasks import is_query, is_training

MOST_IN_SUM: Final = 1 << 53
"""What the sum of a query's numbers has to stay below: with 8 bits for fractions, and so that it is exact."""

QUERY_VALUES: Final = 4096
"""Most numbers in the reply to a query. Their names are not known before, so the vector has room for all of them."""


class EncodingFeedback(Protocol):
    """What of a sum the next encoding is made from, as in `fedcore.codec.Decoded`."""

    @property
    def names(self) -> tuple[MetricName, ...] | None:
        """The names of the metrics; None if they differ."""

    @property
    def statistics(self) -> MagnitudeStatistics:
        """About magnitudes."""


@dataclass(slots=True)
class EncodingPlan:
    """Chooses the encoding of each exchange of a run; remembers what the sums so far said.

    That is the names of the metrics by the kind of message, and the magnitudes of updates by the layout of the model.

    privacy
        What the run promises to each client; None if it is not differentially private.
    least_cohort
        Fewest clients that a secure sum may be made of, as their policies ask for.
    """

    settings: JobSettings
    least_cohort: int = 2
    privacy: PrivacyPlan | None = field(init=False)
    _tracks: dict[bytes, ScaleTrack] = field(default_factory=dict)
    _names: dict[str, tuple[MetricName, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.privacy = privacy_plan(self.settings)

    def encoding(
        self,
        message_type: str,
        layout: Layout | None,
        n: int,
        members: int | None = None,
        *,
        all_survive: bool = False,
        model: str = "",
    ) -> AnyEncoding:
        """The encoding for a cohort of `n` clients; without noise, the first one of a layout has wide fields.

        With `all_survive` the scales are those of the attempt before, whose sum stayed closed, or larger ones: clients
        answer for one model at rising scales only.

        members, all_survive
            As in `quorum_for`.
        model
            SHA-256, hex, of the model that is trained from, which decides how compressed updates are rotated.
        """
        codec = codec_settings(self.settings, message_type, n)
        sizes = n, self.least_cohort, members
        if is_query(message_type):
            self._check_query(codec, n)
            return first_encoding(codec, None, n, failures=failures_for(self.settings, *sizes, all_survive=all_survive))
        names = self._names.get(message_type, self.settings.metrics_of(is_training(message_type)))
        protection = protection_for(self.settings, *sizes, all_survive=all_survive) if self.privacy else None
        if self.privacy is not None and protection is not None:
            quorum = quorum_for(self.settings, *sizes, all_survive=all_survive)
            clients, metrics = noise_clients(n, quorum, protection), () if layout else names or ()
            return private_encoding(codec, layout, n, plan=self.privacy, noise_clients=clients, metrics=metrics)
        if self.settings.norm_proof and layout is not None:
            return bounded_encoding(codec, layout, n, clip=self.settings.clip_norm)
        failures = failures_for(self.settings, *sizes, all_survive=all_survive)
        if layout is None:
            return first_encoding(codec, layout, n, metrics=names, failures=failures)
        rotation = rotation_seed(model) if codec.compresses else ""
        return self._track(layout).encoding(
            codec, layout, n, metrics=names, failures=failures, again=all_survive, rotation=rotation
        )

    def update_bytes(self, message_type: str, layout: Layout, n: int, members: int, *, model: str) -> int:
        """Bytes of an update, if `encoding` were called like this next; it changes nothing."""
        plan = replace(self, _tracks={key: copy(track) for key, track in self._tracks.items()})
        return 8 * plan.encoding(message_type, layout, n, members, model=model).words

    def learn(self, message_type: str, encoding: AnyEncoding, result: EncodingFeedback) -> None:
        """Keep what the sum of an exchange says of the names of metrics, and about magnitudes."""
        if result.names is not None and not is_query(message_type):  # another query holds other numbers
            self._names[message_type] = result.names
        if isinstance(encoding, Encoding) and encoding.layout is not None:
            self._track(encoding.layout).learn(result.statistics)

    def learn_overflow(self, message_type: str, encoding: AnyEncoding, statistics: MagnitudeStatistics) -> None:
        """Make the next encoding of the model hold the updates that this one had too little room for."""
        if isinstance(encoding, Encoding) and encoding.layout is not None:
            self._track(encoding.layout).learn_overflow(encoding, statistics)

    def learn_coarse(self, message_type: str, encoding: AnyEncoding, statistics: MagnitudeStatistics) -> None:
        """Make the next encoding of the model finer than this one, of whose sum too much was rounding."""
        if isinstance(encoding, Encoding) and encoding.layout is not None:
            self._track(encoding.layout).learn_coarse(encoding, statistics)

    def _track(self, layout: Layout) -> ScaleTrack:
        return self._tracks.setdefault(layout.digest(), ScaleTrack())

    def _check_query(self, codec: CodecSettings, n: int) -> None:
        if self.privacy is not None:
            raise ConfigurationError(
                "a run with differential privacy of each client (dp-epsilon, dp-noise-multiplier) cannot answer a "
                "query, whose sum would have no noise; ask in a run of its own, without these settings",
                check="query-without-noise",
            )
        if n * math.ceil(codec.metric_max) >= MOST_IN_SUM:
            raise ConfigurationError(
                f"the sum of {n} clients' numbers of up to query-max = {codec.metric_max:g} each could overflow; set "
                f"query-max to at most {MOST_IN_SUM // n - 1}"
            )


def codec_settings(settings: JobSettings, message_type: str, n: int) -> CodecSettings:
    """The part of a job's settings that the codec needs for one kind of message, for a cohort of `n` clients.

    In a query every client weighs 1, so that the numbers of their replies add up. Raises EncodingError if no width
    of fields has room for so many.
    """
    exact = _codec_settings(settings, n)
    if not is_query(message_type):
        return exact
    return replace(exact, w_max=1, metric_max=settings.query_max, max_metrics=QUERY_VALUES)


def _codec_settings(settings: JobSettings, n: int) -> CodecSettings:
    bits = settings.field_bits
    return CodecSettings(
        field_bits=auto_field_bits(n, settings.upload_fraction) if bits == "auto" else bits,
        w_max=settings.w_max,
        metric_max=settings.metric_max,
        max_metrics=settings.max_metrics,
        clip_norm=settings.clip_norm or None,
        clipping=settings.clipping,
        upload_fraction=settings.upload_fraction,
    )
