"""The task: what all clients of a cohort are told alike, and bind into the protocol."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.encodings import encoding_to_json

from fedcore.codec import AnyEncoding, CodecSettings, first_encoding, private_encoding
from fedcore.errors import EncodingError
from fedcore.run.exchange import encoding_of
from fedcore.run.privacy_budget import privacy_plan
from fedcore.run.settings import JobSettings
from fedcore.state import Layout, TensorSpec
from fedcore.wire.tasks import Task

LAYOUT = Layout(
    specs=(TensorSpec(name="weight", dtype="F32", shape=(3, 4)), TensorSpec(name="scale", dtype="BF16", shape=()))
)
EXACT = replace(first_encoding(CodecSettings(w_max=100, clip_norm=3.0), LAYOUT, 4), field_bits=64)
PLAN = privacy_plan(JobSettings(dp_noise_multiplier=1.0, clip_norm=1.0))
assert PLAN is not None
NOISED = private_encoding(CodecSettings(), LAYOUT, 4, plan=PLAN, noise_clients=3)


def task(encoding: object) -> Task:
    return Task(
        run="run",
        exchange=1,
        attempt=1,
        server_round=0,
        message_type="train",
        aggregation="secure",
        app_sha256="a" * 64,
        run_config={"x": 1.0},
        settings={"w-max": 100},
        arrays_key="arrays",
        configs={},
        weight_key="num-examples",
        model=None,
        cohort=[1, 2, 3, 4],
        quorum=3,
        protection=None,
        encoding=encoding,  # type: ignore[arg-type]
        roster=1,
        seconds=3,
    )


@pytest.mark.parametrize(
    ("encoding", "digest"),
    [
        (EXACT, "6a454e6ba0bbbc630843b760cc69f931b02121ef9d5efae490eb058ebe220d83"),
        (NOISED, "214bde23e26cee3031a897d6879e97c8d680e259776dc86d0200f0d130373e76"),
        (None, "c2aa493613f8eaf946c738816fed8b106402b2d032a03e4e76b1b05598ac3522"),
    ],
)
def test_a_task_survives_its_json_and_its_digest_is_one_that_stays(encoding: AnyEncoding | None, digest: str) -> None:
    sent = task(encoding)
    received = Task.model_validate_json(sent.model_dump_json())
    assert received == sent
    assert received.encoding == encoding
    assert sent.digest().hex() == received.digest().hex() == digest


@pytest.mark.parametrize(
    "changes",
    [{"n_max": "x"}, {"n_max": 1 << 40}, {"scales": [1e400]}, {"scales": "x"}, {"layout": [["w"]]}, {"more": 1}],
)
def test_what_is_no_encoding_is_none_that_a_secure_exchange_can_use(changes: dict[str, object]) -> None:
    sent = task({**encoding_to_json(EXACT), **changes})
    assert sent.encoding is None
    with pytest.raises(EncodingError):
        encoding_of(sent)
