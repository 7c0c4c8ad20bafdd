"""The sum of a cohort's words to the weighted mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.encoding import Encoding
from fedcore.codec.encodings import AnyEncoding
from fedcore.codec.locks import apply_lock, find_keys, mask_of
from fedcore.codec.means.mean import WeightedMean
from fedcore.codec.metrics import decode_metrics, join_metrics, lost_share
from fedcore.codec.names import MetricName, names_from_sum
from fedcore.codec.scaling.statistics import MagnitudeStatistics, read_statistics
from fedcore.errors import (
    NothingContributed,
    PeerError,
    RepliesDiffer,
    RoundFailed,
    TooFewContributed,
    UpdateTooLarge,
    UsageError,
)
from fedcore.state import FileSink, Layout, MemorySink, ModelState, StateSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The weighted mean of one exchange.

    examples
        Sum over the survivors.
    failures
        How many of the survivors contributed nothing; an estimate under differential privacy.
    lost_norm
        How much of the norm of their updates was cut off: the mean over the clients, weighted by examples, of the norm
        that an update lost over its norm, from 0 to 1. Not 0 with the setting clipping = "warn" alone.
    metrics
        Means weighted by examples, by name; lists if the clients reported lists. Empty if the clients' names
        differ.
    names
        The names of the metrics, which the next exchange of the kind can be encoded with; None if they differ.
    statistics
        What the next encoding follows from.
    state
        base + mean in the layout's dtypes; None for an encoding without a layout.
    rounded
        The names of the integer and bool tensors whose mean is no whole number: the state has the nearest one.
    """

    examples: int
    failures: int
    lost_norm: float
    metrics: dict[str, float | list[float]]
    names: tuple[MetricName, ...] | None
    statistics: MagnitudeStatistics
    state: ModelState | None
    rounded: tuple[str, ...] = ()


def decode(
    encoding: Encoding,
    words: NDArray[np.uint64],
    *,
    survivors: int,
    base: ModelState | None,
    out_path: Path | None = None,
    threads: int = 1,
    sums: bool = False,
    release: Callable[[], None] = lambda: None,
) -> Decoded:
    """Decode the unmasked sum `words` ([encoding.words], uint64) of `survivors` updates.

    The new state is written to `out_path` (safetensors, atomic) and mapped, or kept in memory if that is None; the
    sum and the base are read block by block. Neither changes, but that the masks of clients that failed come off the
    sum, in place, or off a copy if the sum cannot be written to. The result does not depend on `threads`. With
    `sums` the metrics are no means but sums (of a query, in which each client is one example).

    Raises PeerError when honest clients cannot have made the sum, which also catches a mask that was not removed;
    NothingContributed when all survivors failed, TooFewContributed when more did than `encoding.failures`,
    UpdateTooLarge if clients locked it; RoundingTooCoarse if too much of a tensor's update is rounding;
    RoundFailed when they have no examples; RepliesDiffer when their numbers cannot be added up; EncodingError when the
    mean does not fit a tensor's dtype; UsageError for arguments that do not belong together.

    Args:
        release: called now and then, where `words` is a map of a file, to give back the memory of what was read of it.
    """
    check_sum(encoding, words, survivors=survivors, base=base)
    failures, words = unlock(encoding, words, survivors, threads)
    small = {name: words[section].tolist() for name, section in encoding.sections.items() if name not in _VECTORS}
    contributors = survivors - failures
    large = small["large"][0]
    statistics = read_statistics(
        encoding,
        contributors=contributors,
        failures=failures,
        large=large,
        peaks=small["peaks"],
        clipped=small["clipped"],
        shrunk=0 if large else small["shrunk"][0],
    )
    if large:
        raise UpdateTooLarge(large, survivors, statistics)
    examples = small["examples"][0]
    if examples > contributors * encoding.settings.w_max:
        raise PeerError(
            "the sum of examples is out of range: a client sent a malformed update", check="malformed-update"
        )
    if examples == 0:
        raise RoundFailed(
            "the clients that are left have no examples; there is nothing to average", check="no-examples"
        )
    names, metrics = _metrics(encoding, words, contributors, examples, sums=sums)
    state = None
    rounded: tuple[str, ...] = ()
    if base is not None:
        mean = WeightedMean(
            encoding=encoding,
            words=words,
            survivors=survivors,
            contributors=contributors,
            examples=examples,
            base=base,
            statistics=statistics,
            threads=threads,
            releases=(base.release, release),
        )
        state = filled(base.layout, mean.write, out_path)
        statistics, rounded = mean.statistics, mean.rounded
    return Decoded(
        examples=examples,
        failures=failures,
        lost_norm=lost_share(encoding, small["lost"], contributors=contributors, examples=examples),
        metrics=metrics,
        names=names,
        statistics=statistics,
        state=state,
        rounded=rounded,
    )


_VECTORS = frozenset({"packed", "small", "integers", "names", "keys"})


def unlock(
    encoding: Encoding, words: NDArray[np.uint64], survivors: int, threads: int
) -> tuple[int, NDArray[np.uint64]]:
    """Take off the masks of the clients that failed, if they are few enough: their number, and the words."""
    sections = encoding.sections
    failures, keys = int(words[sections["failed"]][0]), sections["keys"]
    if failures > survivors:
        raise PeerError(
            "more clients than survived report a failure: a client sent a malformed update", check="malformed-update"
        )
    if failures == survivors:
        raise NothingContributed(failures, survivors)
    if failures > encoding.failures:
        raise TooFewContributed(failures, survivors, tolerated=encoding.failures)
    masks = [mask_of(key).inverse() for key in find_keys(words[keys], failures)]
    if masks and not words.flags.writeable:
        words = words.copy()
    apply_lock(words[: keys.start], sections["failed"], masks, threads=threads)
    return failures, words


def _metrics(
    encoding: Encoding,
    words: NDArray[np.uint64],
    contributors: int,
    examples: int,
    *,
    sums: bool,
) -> tuple[tuple[MetricName, ...] | None, dict[str, float | list[float]]]:
    """The names, None if they differ, and what they name."""
    sections = encoding.sections
    names = encoding.metrics
    if names is None:
        names = names_from_sum(words[sections["names"]], contributors, encoding.n_max, encoding.settings.max_metrics)
    if names is not None:
        totals = join_metrics(encoding, words[sections["metrics"]].tolist(), words[sections["digits"]].tolist())
        return names, decode_metrics(encoding, names, totals, survivors=contributors, examples=examples, sums=sums)
    if sums:
        raise RepliesDiffer
    return None, {}


def check_sum(
    encoding: AnyEncoding,
    words: NDArray[np.uint64],
    *,
    survivors: int,
    base: ModelState | None,
) -> None:
    """Raise UsageError for arguments of `decode` that do not belong together."""
    if words.dtype != np.uint64 or words.shape != (encoding.words,) or not words.flags.c_contiguous:
        raise UsageError(f"the sum must be a contiguous uint64 array of {encoding.words} words", check="vector-form")
    if not 1 <= survivors <= encoding.n_max:
        raise UsageError(f"{survivors} survivors of at most {encoding.n_max} clients")
    if (base is None) != (encoding.layout is None):
        raise UsageError("pass the global model if the encoding has a layout, and only then", check="global-model")
    if base is not None and encoding.layout is not None:
        encoding.layout.check_same(base.layout, what="the global model")


def filled(layout: Layout, fill: Callable[[StateSink], None], out_path: Path | None) -> ModelState:
    """The state that `fill` writes, in memory, or as a file at `out_path` that is mapped."""
    if out_path is None:
        memory = MemorySink(layout)
        fill(memory)
        return memory.state()
    with FileSink(out_path, layout) as file:
        fill(file)
    return ModelState.open(out_path)
