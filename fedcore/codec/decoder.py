"""The sum of a cohort's words to the weighted mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcore.codec.blocks import BLOCK_FIELDS, FieldBlock, Span, blocks, for_each
from fedcore.codec.encoding import Encoding
from fedcore.codec.fields import padding, unpack
from fedcore.codec.integers import decode_integers
from fedcore.codec.metrics import MetricName, check_names, decode_metrics, names_tag
from fedcore.codec.private import AnyEncoding
from fedcore.codec.statistics import Statistics, read_statistics
from fedcore.errors import PeerError, RoundFailed, UsageError
from fedcore.state import FileSink, Layout, MemorySink, ModelState, StateSink, TensorSpec, from_float

_WORD = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The weighted mean of one exchange.

    examples
        Sum over the survivors.
    metrics
        Means weighted by examples, by name; lists where the clients reported lists.
    statistics
        What the next encoding follows from.
    state
        base + mean in the layout's dtypes; None for an encoding without a layout.
    """

    examples: int
    metrics: dict[str, float | list[float]]
    statistics: Statistics
    state: ModelState | None


def decode(
    encoding: Encoding,
    words: NDArray[np.uint64],
    *,
    survivors: int,
    base: ModelState | None,
    metric_names: Sequence[MetricName],
    out_path: Path | None = None,
    threads: int = 1,
) -> Decoded:
    """Decode the unmasked sum `words` ([encoding.words], uint64) of `survivors` updates.

    The new state is written to `out_path` (safetensors, atomic) and mapped, or kept in memory where
    that is None; the sum and the base are read block by block and not changed. The result does not
    depend on `threads`.

    Raises PeerError when honest clients cannot have made the sum, which also catches a mask
    that was not removed; RoundFailed when the survivors have no examples; EncodingError when the
    mean does not fit a tensor's dtype; UsageError for arguments that do not belong together.
    """
    check_sum(encoding, words, survivors=survivors, base=base, metric_names=metric_names)
    small = {name: words[section].tolist() for name, section in encoding.sections.items() if name not in _VECTORS}
    if small["tag"][0] != survivors * names_tag(metric_names) % _WORD:
        raise PeerError("the survivors do not all report the same metrics, or a mask is left in the sum")
    examples = small["examples"][0]
    if examples > survivors * encoding.settings.w_max:
        raise PeerError("the sum of examples is out of range: a client sent a malformed update")
    if examples == 0:
        raise RoundFailed("the clients that are left have no examples; there is nothing to average")
    metrics = decode_metrics(encoding, metric_names, small["metrics"], survivors=survivors, examples=examples)
    statistics = read_statistics(
        encoding,
        survivors=survivors,
        examples=examples,
        sizes=small["sizes"],
        powers=small["powers"],
        clipped=small["clipped"],
        shrunk=small["shrunk"][0],
    )
    state = None
    if base is not None:

        def fill(sink: StateSink) -> None:
            _decode_floats(encoding, words[encoding.sections["packed"]], survivors, examples, base, sink, threads)
            integers = words[encoding.sections["integers"]]
            decode_integers(encoding, integers, base=base, examples=examples, sink=sink)

        state = filled(base.layout, fill, out_path)
    return Decoded(examples=examples, metrics=metrics, statistics=statistics, state=state)


_VECTORS = frozenset({"packed", "integers"})


def check_sum(
    encoding: AnyEncoding,
    words: NDArray[np.uint64],
    *,
    survivors: int,
    base: ModelState | None,
    metric_names: Sequence[MetricName],
) -> None:
    """Raise UsageError for arguments of `decode` that do not belong together, PeerError for names that cannot be."""
    if words.dtype != np.uint64 or words.shape != (encoding.words,) or not words.flags.c_contiguous:
        raise UsageError(f"the sum must be a contiguous uint64 array of {encoding.words} words")
    if not 1 <= survivors <= encoding.n_max:
        raise UsageError(f"{survivors} survivors of at most {encoding.n_max} clients")
    if (base is None) != (encoding.layout is None):
        raise UsageError("pass the global model where the encoding has a layout, and only there")
    if base is not None and encoding.layout is not None:
        encoding.layout.check_same(base.layout, what="the global model")
    check_names(encoding.settings, metric_names)


def filled(layout: Layout, fill: Callable[[StateSink], None], out_path: Path | None) -> ModelState:
    """The state that `fill` writes, in memory, or as a file at `out_path` that is mapped."""
    if out_path is None:
        memory = MemorySink(layout)
        fill(memory)
        return memory.state()
    with FileSink(out_path, layout) as file:
        fill(file)
    return ModelState.open(out_path)


def _decode_floats(
    encoding: Encoding,
    packed: NDArray[np.uint64],
    survivors: int,
    examples: int,
    base: ModelState,
    sink: StateSink,
    threads: int,
) -> None:
    if padding(packed, encoding.field_bits, encoding.fields):
        raise PeerError("the padding of the sum is not zero: a client sent a malformed update")
    offset = survivors * encoding.levels
    units = [encoding.step(index) * encoding.settings.w_max / examples for index in range(len(encoding.floats))]

    def prepare() -> Callable[[FieldBlock], None]:
        mean, old = np.empty(BLOCK_FIELDS, np.float64), np.empty(BLOCK_FIELDS, np.float64)

        def decode_span(span: Span) -> None:
            fields = unpack(packed, encoding.field_bits, span.place, span.size)
            if fields.max() > 2 * offset:
                name = span.spec.name
                raise PeerError(f"the sum of tensor {name!r} is out of range: a client sent a malformed update")
            new, before = mean[: span.size], old[: span.size]
            np.copyto(new, fields)
            new -= offset
            new *= units[span.index]
            # A copy and an addition within one dtype take half the time of an addition of two dtypes.
            np.copyto(before, _values(base, span.spec, span.start, span.stop))
            new += before
            sink.write(span.spec, span.start, from_float(span.spec, new))

        def decode_block(block: FieldBlock) -> None:
            for span in block.spans:
                decode_span(span)
            block.release(base)

        return decode_block

    for_each(blocks(encoding), prepare, threads=threads)


def _values(state: ModelState, spec: TensorSpec, start: int, stop: int) -> NDArray[np.floating]:
    """Elements [start, stop) in a dtype that NumPy can add."""
    if spec.dtype == "BF16":
        return state.float32(spec.name, start, stop)
    return state[spec.name].reshape(-1)[start:stop]
