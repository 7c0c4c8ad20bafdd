"""An encoding as a peer sees it inside a task, in plain JSON, and what it is taken for."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from fedcore.codec import AnyEncoding, CodecSettings, Encoding, MagnitudeStatistics, PrivateEncoding
from fedcore.codec.scaling.scales import ScaleInputs, next_encoding
from fedcore.state import Layout
from fedcore.system.plain_json import from_plain, to_plain

_EXACT, _NOISED = TypeAdapter(Encoding), TypeAdapter(PrivateEncoding)


def encoding_to_json(encoding: AnyEncoding) -> dict[str, Any]:
    """The parameters as an object for `json.dumps`."""
    if isinstance(encoding, PrivateEncoding):
        return to_plain(_NOISED, encoding)
    return to_plain(_EXACT, encoding)


def encoding_from_json(data: dict[str, Any]) -> AnyEncoding:
    """The inverse; raises EncodingError."""
    if "release" in data:
        return from_plain(_NOISED, data, what="the encoding")
    return from_plain(_EXACT, data, what="the encoding")


def following(
    settings: CodecSettings, layout: Layout, n_max: int, statistics: MagnitudeStatistics, *, settled: bool = False
) -> Encoding:
    """What follows from the statistics of one exchange alone; early in a run scales may still fall freely."""
    nothing = (0.0,) * len(statistics.scales)
    known = ScaleInputs(
        latest=statistics,
        lasting=nothing,
        usual=statistics.peaks,
        last=statistics.scales,
        least=nothing,
        settled=settled,
    )
    return next_encoding(settings, layout, n_max, known)
