"""One way in for both kinds of exchange: with differential privacy, and without."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedcore.codec import decoder, encoder
from fedcore.codec.decoder import Decoded
from fedcore.codec.encoder import Encoded
from fedcore.codec.gpu.device import DeviceVector
from fedcore.codec.metrics import MetricValue
from fedcore.codec.privacy import noised
from fedcore.codec.privacy.parameters import AnyEncoding, PrivateEncoding
from fedcore.errors import UsageError
from fedcore.state import ModelState


def encode(
    encoding: AnyEncoding,
    *,
    base: ModelState | None,
    local: ModelState | None,
    examples: int,
    metrics: Mapping[str, MetricValue],
    randomness: Callable[[int], bytes],
    out: NDArray[np.uint64] | None = None,
    threads: int = 1,
    factor: float = 1.0,
    device: DeviceVector | None = None,
) -> Encoded:
    """One client's words: `encoder.encode`, or `noised.encode_noised`, in which every client weighs the same.

    `threads` and `device` do the work of the former; the words do not depend on them. Noise is added by the processor,
    to words that go to the device afterwards. `factor` as there; noised updates have none.
    """
    if isinstance(encoding, PrivateEncoding):
        if factor != 1:
            raise UsageError("an update with noise is not scaled")
        return _on(
            device,
            noised.encode_noised(encoding, base=base, local=local, metrics=metrics, randomness=randomness, out=out),
        )
    return encoder.encode(
        encoding,
        base=base,
        local=local,
        examples=examples,
        metrics=metrics,
        randomness=randomness,
        out=out,
        threads=threads,
        factor=factor,
        device=device,
    )


def encode_nothing(
    encoding: AnyEncoding,
    *,
    randomness: Callable[[int], bytes],
    out: NDArray[np.uint64] | None = None,
    device: DeviceVector | None = None,
) -> Encoded:
    """The words of a client that contributes nothing and says in the sum that it is one; shapes are those of `encode`.

    With differential privacy they hold its share of the noise like any other. With `device` they are masked there too,
    in the time that others take.
    """
    if isinstance(encoding, PrivateEncoding):
        return _on(device, noised.encode_nothing_noised(encoding, randomness=randomness, out=out))
    return _on(device, encoder.encode_nothing(encoding, randomness=randomness, out=out))


def _on(device: DeviceVector | None, encoded: Encoded) -> Encoded:
    """The same, on the device as well."""
    if device:
        device.load(encoded.words, 0, encoded.words.size)
    return encoded


def decode(
    encoding: AnyEncoding,
    words: NDArray[np.uint64],
    *,
    survivors: int,
    base: ModelState | None,
    out_path: Path | None = None,
    threads: int = 1,
    sums: bool = False,
    release: Callable[[], None] = lambda: None,
) -> Decoded:
    """The mean of a cohort: `decoder.decode`, whose work `threads` share, or `noised.decode_noised`."""
    if isinstance(encoding, PrivateEncoding):
        return noised.decode_noised(encoding, words, survivors=survivors, base=base, out_path=out_path, release=release)
    return decoder.decode(
        encoding,
        words,
        survivors=survivors,
        base=base,
        out_path=out_path,
        threads=threads,
        sums=sums,
        release=release,
    )
