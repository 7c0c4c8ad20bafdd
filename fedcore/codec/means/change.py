"""A model as the change that a cohort's sum makes to the one before it, exact and in fewer bytes.

Where a strategy takes the mean of a round as it is, the next model is a function of the last one and of the fields of
the sum, which have half the bits of float32 or fewer. A change has those of all large tensors, as they are in the sum,
and all other tensors whole. Its receiver decodes it by the operations of the server, each of which IEEE 754 determines
to the last bit, so the SHA-256 of what it makes is the one that was announced; another one shows a damaged base.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pydantic import StrictInt, TypeAdapter
from pydantic.dataclasses import dataclass

from fedcore.codec.encoding import Encoding
from fedcore.codec.means.mean import FieldSums
from fedcore.errors import EncodingError, PeerError
from fedcore.state import MOST_OF_MODEL, FileSink, Layout, ModelState, TensorSpec
from fedcore.system.plain_json import NO_OTHER_KEYS, from_plain, to_plain

_TERMS: Final = "fedcore/terms"
_FIELDS: Final = "fedcore/fields"
_PACKED: Final = "packed"


@dataclass(frozen=True, slots=True, kw_only=True, config=NO_OTHER_KEYS)
class _Terms:
    """What the fields mean: the encoding of the exchange, and how many clients and examples are in the sum."""

    encoding: Encoding
    survivors: StrictInt
    examples: StrictInt

    def __post_init__(self) -> None:
        if self.examples < 1 or not 1 <= self.survivors <= self.encoding.n_max:
            raise EncodingError("the sum of a change is none that a cohort can have", check="change-terms")


_FORM: Final = TypeAdapter(_Terms)


def write_change(
    encoding: Encoding, words: NDArray[np.uint64], mean: ModelState, path: Path, *, survivors: int, examples: int
) -> bool:
    """Write the change that a sum makes, not durable; nothing, and False, unless it is clearly smaller than the model.

    Raises StorageFull.

    Args:
        encoding: of the exchange.
        words: `[encoding.words]`, the sum, of clients none of which failed.
        mean: what it was decoded to.
        path: of the file.
        survivors: how many clients are in the sum.
        examples: how many examples these have.
    """
    head = _head(_Terms(encoding=encoding, survivors=survivors, examples=examples))
    layout = _change_layout(encoding, head.size)
    if layout is None or not _saves(layout, encoding):
        return False
    fields, packed = words[encoding.sections[_PACKED]], _packed_names(encoding)
    with FileSink(path, layout, durable=False) as sink:
        by_name = {spec.name: spec for spec in layout.specs}
        sink.write(by_name[_TERMS], 0, head)
        sink.write(by_name[_FIELDS], 0, fields)
        for spec in mean.layout.specs:
            if spec.name not in packed:
                sink.write(spec, 0, mean[spec.name].reshape(-1))
    return True


def change_bytes(encoding: Encoding) -> int | None:
    """Bytes of the values in a change; None if a sum of this encoding makes none."""
    layout = _change_layout(encoding, _head(_Terms(encoding=encoding, survivors=1, examples=1)).size)
    return layout.nbytes if layout is not None and _saves(layout, encoding) else None


def is_change(state: ModelState) -> bool:
    """Whether a file that a server sent in place of a model is a change."""
    return _TERMS in state


def apply_change(base: ModelState, change: ModelState, path: Path) -> None:
    """Write the model that a change makes of `base` to `path`, not durable.

    Raises PeerError or EncodingError if it is no change to `base`; StorageFull.
    """
    terms = _terms_of(change)
    encoding, layout = terms.encoding, base.layout
    if encoding.layout != layout or change.layout != _change_layout(encoding, change[_TERMS].size):
        raise PeerError("the change is none to a model of this layout")
    packed, part = _packed_names(encoding), next(one for one in encoding.field_sections if one.name == _PACKED)
    sums = FieldSums.of(encoding, part, change[_FIELDS], terms.survivors, terms.examples)
    with FileSink(path, layout, durable=False) as sink:
        sums.write_tensors(base, sink, threads=1, releases=(base.release, change.release))
        for spec in layout.specs:
            if spec.name not in packed:
                sink.write(spec, 0, change[spec.name].reshape(-1))


def _terms_of(change: ModelState) -> _Terms:
    try:
        plain = json.loads(change[_TERMS].tobytes())
    except (KeyError, ValueError):
        raise PeerError("the change does not say what it means") from None
    return from_plain(_FORM, plain, what="the change")


def _head(terms: _Terms) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(to_plain(_FORM, terms)).encode(), np.uint8)


def _saves(layout: Layout, encoding: Encoding) -> bool:
    return encoding.layout is not None and layout.nbytes <= MOST_OF_MODEL * encoding.layout.nbytes


def _packed_names(encoding: Encoding) -> frozenset[str]:
    """Of the tensors of which a change has fields."""
    return frozenset(spec.name for group in encoding.groups if not group.small for spec in group.specs)


def _change_layout(encoding: Encoding, head: int) -> Layout | None:
    """The tensors of a change; None if there can be none, since no tensor has fields.

    Args:
        head: bytes of its terms.
    """
    packed, layout = _packed_names(encoding), encoding.layout
    if layout is None or not packed or {_TERMS, _FIELDS} & {spec.name for spec in layout.specs}:
        return None
    section = encoding.sections[_PACKED]
    own = (
        TensorSpec(name=_TERMS, dtype="U8", shape=(head,)),
        TensorSpec(name=_FIELDS, dtype="U64", shape=(section.stop - section.start,)),
    )
    return Layout(specs=(*own, *(spec for spec in layout.specs if spec.name not in packed)))
