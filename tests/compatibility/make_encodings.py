"""Prints what the codec of a commit made of some encodings, as JSON: PYTHONPATH=COMMIT python make_encodings.py."""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from typing import Any

from pydantic import TypeAdapter

from fedcore.codec import AnyEncoding, CodecSettings, Encoding, PrivateEncoding
from fedcore.codec.encoding import scale_groups
from fedcore.codec.privacy import Release
from fedcore.state import Layout, TensorSpec

LAYOUT = Layout(
    specs=(
        TensorSpec(name="weight", dtype="F32", shape=(70, 33)),
        TensorSpec(name="bias", dtype="BF16", shape=(33,)),
        TensorSpec(name="seen", dtype="I64", shape=()),
        TensorSpec(name="head", dtype="F64", shape=(5000,)),
    )
)
METRICS = (("accuracy", None), ("per_class", 7))


def encodings() -> list[Any]:
    compresses = "rotation" in {one.name for one in fields(Encoding)}
    found = [
        exact(CodecSettings(), LAYOUT, n_max=4),
        exact(CodecSettings(field_bits=32, clipping="warn", clip_norm=2.5), LAYOUT, n_max=20, metrics=METRICS),
        exact(CodecSettings(field_bits=21), LAYOUT, n_max=8, failures=3, field_bits=64),
        exact(CodecSettings(max_metrics=9), None, n_max=3),
        noised(),
    ]
    compressed = (CodecSettings(upload_fraction=0.25), CodecSettings(field_bits=12)) if compresses else ()
    found += [exact(settings, LAYOUT, n_max=4, rotation="ab" * 32) for settings in compressed]
    return found


def noised() -> PrivateEncoding:
    layout = Layout(specs=LAYOUT.specs[:2])
    size = sum(spec.size for spec in layout.specs) + 1
    release = Release(mechanism="skellam", variance=144.0, shares=5, scale=1000, dimension=size)
    return PrivateEncoding(
        settings=CodecSettings(), layout=layout, n_max=10, field_bits=32, metrics=(), clip=1.5, release=release
    )


def exact(settings: CodecSettings, layout: Layout | None, **values: Any) -> Encoding:
    scales = tuple(0.5 + number for number, _ in enumerate(scale_groups(layout)))
    return Encoding(settings=settings, layout=layout, scales=scales, **{"field_bits": settings.field_bits, **values})


def main() -> None:
    form: TypeAdapter[Any] = TypeAdapter(AnyEncoding)
    told = [
        {"encoding": form.dump_python(one, mode="json"), "words": one.words, "canonical": one.canonical().hex()}
        for one in encodings()
    ]
    json.dump(told, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
