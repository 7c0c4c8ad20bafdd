"""The canonical encodings of earlier versions, whose records do not hold them.

Today's records hold the words and the canonical bytes as they were signed. Those of fedcore 0.1.0, and of versions in
between, hold the task alone, and the codec has changed since: this is its arithmetic of that time, which never changes.

    encoding/v4     dbcbb8e: no `upload_fraction` in the settings, no `rotation`
    encoding/v5     compressed uploads; small tensors in fields of 32 bits, or as wide as the others
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fedcore.codec.rotation import tensor_fields

_SMALL: Final = 1024
_LEAST_SMALL_BITS: Final = 32
_POWERS_FROM: Final = 8
_NAMES_WORDS: Final = 1000
_LIMBS: Final = 16
_LANES: Final = 2
_OVER_FLOAT32: Final = 2
_SETTINGS: Final = {"field_bits", "w_max", "metric_max", "max_metrics", "clip_norm", "clipping", "upload_fraction"}
_EXACT: Final = {"settings", "layout", "n_max", "field_bits", "scales", "metrics", "failures", "rotation"}
_NOISED: Final = {"settings", "layout", "n_max", "field_bits", "metrics", "clip", "release"}


def signed_parts(encoding: Mapping[str, Any]) -> tuple[int, bytes]:
    """The words of a vector and the canonical encoding, of an encoding as a record's task has it.

    Raises KeyError, TypeError, ValueError or struct.error for a malformed one.
    """
    if "release" in encoding:
        return -(-int(encoding["release"]["dimension"]) // _LANES), _canonical_noised(encoding)
    return _words(encoding), _canonical(encoding)


def legacy_canonical(encoding: Mapping[str, Any]) -> list[bytes]:
    """The canonical forms that earlier versions gave today's encoding, in JSON; none if they could not express it."""
    noised = "release" in encoding
    known = _NOISED if noised else _EXACT
    if encoding.keys() != known or encoding["settings"].keys() != _SETTINGS:
        return []
    of_kind = _canonical_noised if noised else _canonical
    forms = [of_kind(encoding)]
    if not encoding["settings"]["upload_fraction"] and not encoding.get("rotation"):
        settings = {key: value for key, value in encoding["settings"].items() if key != "upload_fraction"}
        forms.append(of_kind({**encoding, "settings": settings}))
    return forms


def _canonical(encoding: Mapping[str, Any]) -> bytes:
    settings, scales = encoding["settings"], encoding["scales"]
    parts = [
        _canonical_settings(settings),
        struct.pack(">III", encoding["n_max"], encoding["field_bits"], encoding["failures"]),
        _layout_digest(encoding["layout"]),
        struct.pack(f">{len(scales)}d", *scales),
        b"" if encoding["metrics"] is None else _names(encoding["metrics"]),
    ]
    if "upload_fraction" not in settings:
        return _hash(b"fedcore/codec/encoding/v4", parts)
    return _hash(b"fedcore/codec/encoding/v5", [*parts, bytes.fromhex(encoding["rotation"])])


def _canonical_noised(encoding: Mapping[str, Any]) -> bytes:
    release = encoding["release"]
    numbers = (encoding["clip"], release["variance"], release["shares"], release["scale"], release["dimension"])
    parts = [
        _canonical_settings(encoding["settings"]),
        struct.pack(">I", encoding["n_max"]),
        _layout_digest(encoding["layout"]),
        _names(encoding["metrics"]),
        release["mechanism"].encode(),
        struct.pack(">ddQQQ", *numbers),
    ]
    return _hash(b"fedcore/codec/private-encoding/v3", parts)


def _canonical_settings(settings: Mapping[str, Any]) -> bytes:
    counts = struct.pack(">IQI", settings["field_bits"], settings["w_max"], settings["max_metrics"])
    reals = [settings["metric_max"], settings["clip_norm"] or -1.0]
    reals += [settings["upload_fraction"]] if "upload_fraction" in settings else []
    clipping: str = settings["clipping"]
    return counts + struct.pack(f">{len(reals)}d", *reals) + clipping.encode()


def _layout_digest(layout: Sequence[Sequence[Any]] | None) -> bytes:
    if layout is None:
        return b""
    hasher = hashlib.sha256(b"fedcore/layout/v1" + struct.pack("<Q", len(layout)))
    for name, dtype, shape in layout:
        for text in (name.encode(), dtype.encode()):
            hasher.update(struct.pack("<Q", len(text)) + text)
        hasher.update(struct.pack(f"<{1 + len(shape)}Q", len(shape), *shape))
    return hasher.digest()


def _names(metrics: Sequence[Sequence[Any]]) -> bytes:
    return json.dumps([list(name) for name in metrics], separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _hash(domain: bytes, parts: Sequence[bytes]) -> bytes:
    hasher = hashlib.sha256(domain)
    for part in parts:
        hasher.update(struct.pack(">Q", len(part)) + part)
    return hasher.digest()


def _words(encoding: Mapping[str, Any]) -> int:
    settings, scales = encoding["settings"], len(encoding["scales"])
    sizes = _float_sizes(encoding["layout"] or ())
    bits = encoding["field_bits"]
    metrics = encoding["metrics"]
    lengths = [1 if length is None else length for _, length in metrics or ()]
    return sum(
        (
            _packed(sizes[False], bits, settings, is_rotated=bool(encoding.get("rotation"))),
            _fields_words(sum(sizes[True]), max(_LEAST_SMALL_BITS, bits)),
            4 + scales * (3 if encoding["n_max"] >= _POWERS_FROM else 2),
            1 if scales and settings["clipping"] == "warn" else 0,
            sum(math.prod(shape) for _, dtype, shape in encoding["layout"] or () if not _is_float(dtype)),
            settings["max_metrics"] + _NAMES_WORDS if metrics is None else sum(lengths),
            encoding["failures"] * _LIMBS,
        )
    )


def _packed(sizes: Sequence[int], bits: int, settings: Mapping[str, Any], *, is_rotated: bool) -> int:
    if not is_rotated:
        return _fields_words(sum(sizes), bits)
    per_word = 64 // bits
    budget = settings["upload_fraction"] or _OVER_FLOAT32 / (64 // settings["field_bits"])
    share = min(1.0, budget / (_OVER_FLOAT32 / per_word))
    return _fields_words(sum(tensor_fields(size, share, per_word) for size in sizes), bits)


def _fields_words(fields: int, bits: int) -> int:
    return -(-fields // (64 // bits))


def _float_sizes(layout: Sequence[Sequence[Any]]) -> dict[bool, list[int]]:
    """Elements of the floating point tensors, of small ones and of others."""
    sizes: dict[bool, list[int]] = {True: [], False: []}
    for _, dtype, shape in layout:
        if _is_float(dtype):
            sizes[math.prod(shape) < _SMALL].append(math.prod(shape))
    return sizes


def _is_float(dtype: str) -> bool:
    return dtype.upper().startswith(("F", "BF"))
