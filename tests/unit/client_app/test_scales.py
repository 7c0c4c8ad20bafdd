"""The rule of scales, as a client keeps it over exchanges and restarts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.encodings import encoding_to_json

from client_app.records.ledger import Ledger
from fedcore.codec import CodecSettings, Encoding, first_encoding
from fedcore.errors import ProtocolViolation
from fedcore.federation.admission.encodings import check_encoding, follow_scales
from fedcore.state import ModelState
from fedcore.wire.tasks import Task
from tests.support.raising import raises

MODEL = ModelState.from_arrays({"weight": np.zeros(2000, np.float32), "bias": np.zeros(10, np.float32)})
FIRST = first_encoding(CodecSettings(w_max=100), MODEL.layout, 4)


def at(*scales: float) -> Encoding:
    return dataclasses.replace(FIRST, scales=scales, field_bits=16)


def ask(ledger: Ledger, make_task: Callable[..., Task], encoding: Encoding, **changes: Any) -> None:
    task = make_task(encoding=encoding_to_json(encoding), **changes)
    assert task.encoding == encoding
    follow_scales(task, encoding, ledger)


def test_scales_are_remembered_over_a_restart(tmp_path: Path, make_task: Callable[..., Task]) -> None:
    with Ledger(tmp_path) as ledger:
        ask(ledger, make_task, FIRST)
        for exchange, scale in ((2, 2.0**-3), (3, 2.0**-6), (4, 2.0**-7)):
            ask(ledger, make_task, at(scale, 1.0), exchange=exchange)
    with Ledger(tmp_path) as ledger:
        with raises(ProtocolViolation, check="scales-off-rule", match=r"'weight'.* 0\.0019"):
            ask(ledger, make_task, at(2.0**-9, 1.0), exchange=5)
        with raises(ProtocolViolation, check="scales-off-rule", match=r"\b0\.25\b"):
            ask(ledger, make_task, at(1.0, 0.25), exchange=5)
        ask(ledger, make_task, at(2.0**-8, 0.5), exchange=5)
        # Another run begins anew.
        with raises(ProtocolViolation, check="scales-off-rule", match=r"\b32\b"):
            ask(ledger, make_task, at(2.0**-8, 0.5), run="other")
        ask(ledger, make_task, FIRST, run="other")


def test_scales_that_are_no_powers_of_two(tmp_path: Path, make_task: Callable[..., Task]) -> None:
    with Ledger(tmp_path) as ledger, raises(ProtocolViolation, check="scales-off-rule", match=r"'weight'.* 0\.3\b"):
        ask(ledger, make_task, at(0.3, 1.0), exchange=9)


def test_a_cohort_that_is_said_to_be_larger(make_task: Callable[..., Task]) -> None:
    """Fields have room for the cohort, so the encoding is for it and no other."""
    for n_max in (3, 8):
        task = make_task(encoding=encoding_to_json(dataclasses.replace(FIRST, n_max=n_max)))
        with raises(ProtocolViolation, check="encoding-refused", match=rf"\b{n_max}\b"):
            check_encoding(task)
