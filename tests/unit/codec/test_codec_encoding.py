"""The public parameters: limits, canonical form, JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from support.encodings import encoding_from_json, encoding_to_json
from support.raising import raises

from fedcore.codec import CodecSettings, Encoding, first_encoding, rotation_seed
from fedcore.codec.names import NAMES_BYTES
from fedcore.errors import EncodingError
from fedcore.state import Layout, TensorSpec

LAYOUT = Layout(
    specs=(
        TensorSpec(name="w", dtype="F32", shape=(50, 30)),
        TensorSpec(name="n", dtype="I64", shape=()),
        TensorSpec(name="b", dtype="BF16", shape=(4,)),
    )
)
ENCODING = Encoding(settings=CodecSettings(), layout=LAYOUT, n_max=100, field_bits=16, scales=(0.125, 3.0))


@pytest.mark.parametrize(
    ("bits", "n_max", "value_bits"),
    [
        (16, 8, 13),
        (16, 100, 9),
        (21, 8, 18),
        (21, 100, 14),
        (32, 8, 29),
        (32, 100, 25),
        (16, 1, 16),
        (16, 9, 12),
        (64, 8, 61),
        (64, 4096, 52),
    ],
)
def test_value_bits_are_those_of_the_protocols_table(bits: int, n_max: int, value_bits: int) -> None:
    encoding = Encoding(settings=CodecSettings(), layout=None, n_max=n_max, field_bits=bits, scales=())
    assert encoding.value_bits == value_bits
    assert n_max * 2 * encoding.levels < 1 << bits


@pytest.mark.parametrize(("bits", "packed"), [(16, 375), (21, 500), (32, 750), (64, 1500)])
def test_the_vector_is_as_long_as_its_parts(bits: int, packed: int) -> None:
    encoding = dataclasses.replace(ENCODING, field_bits=bits)
    sizes = {name: part.stop - part.start for name, part in encoding.sections.items()}
    assert sizes == {
        "packed": packed,
        "small": 6,
        "failed": 1,
        "large": 1,
        "peaks": 7 if bits >= 32 else 3,
        "clipped": 0,
        "examples": 1,
        "shrunk": 1,
        "lost": 0,
        "integers": 1,
        "metrics": 1024,
        "digits": 64,
        "names": NAMES_BYTES // 4,
        "keys": 0,
    }
    assert encoding.words == sum(sizes.values())
    named = dataclasses.replace(encoding, metrics=(("loss", None), ("pair", 2)))
    assert named.words == sum(sizes.values()) - NAMES_BYTES // 4 - (1024 - 3) - (64 - 3)
    warning = dataclasses.replace(encoding, settings=CodecSettings(clipping="warn"))
    assert warning.sections["lost"].stop - warning.sections["lost"].start == 1
    assert warning.words == encoding.words + 1 + len(encoding.scales)


SEED = rotation_seed("0" * 64)

CHANGES: list[dict[str, Any]] = [
    {},
    {"n_max": 101},
    {"field_bits": 21},
    {"failures": 3},
    {"scales": (0.125, 3.5)},
    {"metrics": ()},
    {"metrics": (("loss", None),)},
    {"metrics": (("loss", 1),)},
    {"scales": (3.0, 0.125)},
    {"layout": Layout(specs=LAYOUT.specs[::-1])},
    {"layout": None, "scales": ()},
    {"settings": CodecSettings(field_bits=21)},
    {"settings": CodecSettings(w_max=1 << 16)},
    {"settings": CodecSettings(metric_max=1000.0)},
    {"settings": CodecSettings(max_metrics=31)},
    {"settings": CodecSettings(clip_norm=1.0)},
    {"settings": CodecSettings(clipping="warn")},
    {"settings": CodecSettings(clipping="fail")},
    {"settings": CodecSettings(upload_fraction=0.5), "rotation": SEED},
    {"settings": CodecSettings(upload_fraction=0.25), "rotation": SEED},
    {"settings": CodecSettings(upload_fraction=0.25), "rotation": SEED[::-1]},
]


def test_canonical_changes_with_every_parameter() -> None:
    forms = {dataclasses.replace(ENCODING, **change).canonical() for change in CHANGES}
    assert len(forms) == len(CHANGES)
    covered = {key for change in CHANGES for key in change}
    assert covered == {field.name for field in dataclasses.fields(Encoding)}
    in_settings = {
        field.name
        for change in CHANGES
        if "settings" in change
        for field in dataclasses.fields(CodecSettings)
        if getattr(change["settings"], field.name) != field.default
    }
    assert in_settings == {field.name for field in dataclasses.fields(CodecSettings)}


@pytest.mark.parametrize("change", CHANGES)
def test_json_round_trip_keeps_every_bit(change: dict[str, Any]) -> None:
    encoding = dataclasses.replace(ENCODING, **change)
    back = encoding_from_json(json.loads(json.dumps(encoding_to_json(encoding))))
    assert back == encoding
    assert back.canonical() == encoding.canonical()


def test_json_scales_may_have_lost_their_point() -> None:
    data = encoding_to_json(ENCODING) | {"scales": [1, 3]}
    assert encoding_from_json(data).scales == (1.0, 3.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n_max": 0}, {"match": "n_max"}),
        ({"n_max": 100.0}, {"match": "n_max"}),
        ({"n_max": True}, {"match": "n_max"}),
        ({"field_bits": 8}, {"check": "fields-too-narrow"}),
        ({"field_bits": 9}, {"check": "field-width"}),
        ({"rotation": SEED}, {"check": "rotation-seed"}),
        ({"rotation": "00"}, {"check": "rotation-seed-form"}),
        ({"settings": {"field_bits": 8}}, {"check": "too-few-bits"}),
        ({"settings": {"field_bits": 8}, "n_max": 18}, {"check": "rotation-seed"}),
        ({"field_bits": "16"}, {"match": "field_bits"}),
        ({"scales": [1.0]}, {"check": "scale-count"}),
        ({"scales": [1.0, 0.0]}, {"check": "scale-range", "match": "small"}),
        ({"scales": [1.0, -1.0]}, {"check": "scale-range", "match": "small"}),
        ({"scales": [float("nan"), 1.0]}, {"check": "scale-range", "match": "'w'"}),
        ({"scales": [float("inf"), 1.0]}, {"check": "scale-range", "match": "'w'"}),
        ({"scales": [10**400, 1.0]}, {"match": r"'scales\.0'"}),
        ({"scales": ["1", 1.0]}, {"match": r"'scales\.0'"}),
        ({"scales": None}, {"match": "'scales'"}),
        ({"layout": {}}, {"match": "'layout'"}),
        ({"layout": [["w", "F32"]]}, {"match": r"'layout\.0\.2'"}),
        ({"layout": [["w", "F32", [-1]]]}, {"check": "tensor-shape"}),
        ({"layout": [["w", "F32", [1.5]]]}, {"match": r"'layout\.0\.2\.0'"}),
        ({"layout": [["w", "X9", [1]]]}, {"check": "tensor-dtype"}),
        ({"settings": []}, {"match": "settings"}),
        ({"settings": {"w_max": "many"}}, {"match": "w_max"}),
    ],
)
def test_bad_json_is_refused(change: dict[str, Any], reason: dict[str, str]) -> None:
    with raises(EncodingError, **reason):
        encoding_from_json(encoding_to_json(ENCODING) | change)


def test_unknown_and_missing_keys_are_named() -> None:
    with pytest.raises(EncodingError, match="'nmax'"):
        encoding_from_json(encoding_to_json(ENCODING) | {"nmax": 3})
    with pytest.raises(EncodingError, match=r"'settings\.clipnorm'"):
        encoding_from_json(encoding_to_json(ENCODING) | {"settings": {"clipnorm": 3}})
    data = encoding_to_json(ENCODING)
    del data["scales"]
    with pytest.raises(EncodingError, match="'scales'"):
        encoding_from_json(data)


@pytest.mark.parametrize(
    "settings",
    [
        {"field_bits": 20},
        {"field_bits": True},
        {"w_max": 0},
        {"w_max": 1.5},
        {"w_max": 1 << 41},
        {"max_metrics": -1},
        {"metric_max": 0.0},
        {"metric_max": float("nan")},
        {"metric_max": float("inf")},
        {"metric_max": "1"},
        {"clip_norm": 0.0},
        {"clip_norm": -1.0},
        {"clipping": "never"},
        {"clipping": None},
    ],
)
def test_bad_settings_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(EncodingError, match=next(iter(settings)).replace("_", "-")):
        CodecSettings(**settings)


def test_cohorts_that_leave_too_few_bits_are_refused_before_the_first_round() -> None:
    first_encoding(CodecSettings(field_bits=16), LAYOUT, 4096)
    with raises(EncodingError, check="too-few-bits"):
        first_encoding(CodecSettings(field_bits=16), LAYOUT, 4097)
    first_encoding(CodecSettings(field_bits=21), LAYOUT, 4097)


def test_metrics_that_could_wrap_are_refused() -> None:
    with raises(
        EncodingError,
        check="metric-overflow",
        match=r"100000.*1048576.*171798.*\b167\b",
    ):
        first_encoding(CodecSettings(field_bits=32, metric_max=2.0**30, w_max=1 << 20), None, 100_000)


@pytest.mark.parametrize("n_max", [1, 3, 100, 4096])
def test_the_worst_sum_of_metrics_fits_63_bits(n_max: int) -> None:
    codec = CodecSettings(w_max=12345, metric_max=999.5)
    encoding = first_encoding(codec, None, n_max)
    unit = 12345 << encoding.metric_fraction_bits
    worst = n_max * (999.5 * unit + 1)
    assert worst < 2**63
    assert worst > 2**58
