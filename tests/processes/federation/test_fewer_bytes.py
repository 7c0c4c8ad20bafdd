"""Real agents exchange fewer bytes: models as differences, updates rotated, in 8 bits, a part of the coordinates."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray
from scipy.linalg import hadamard
from support.deployment import Deployment, Ended

from client_app.records.transcript import TRANSCRIPT_FILE, read_entries
from fedcore.codec import Encoding, rotation_seed
from fedcore.codec.rotation import Unit
from fedcore.wire.tasks import Task

NOOP = Path(__file__).parents[3] / "benchmarks" / "apps" / "noop"
CLIENTS = 3
PARAMETERS = 20_000
ROUNDS = 3
FRACTION = 0.125
STEP = np.float32(0.002)
"""Each client adds its own constant in every round, 0.001, 0.002 and 0.003; this is the mean."""


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment.open(tmp_path_factory.mktemp("three"), clients=CLIENTS) as made:
        made.app = NOOP
        made.start()
        yield made


def run(three: Deployment, **settings: float) -> Ended:
    ended = three.submit(
        settings={"min-clients": CLIENTS, "download-bits": 16, **settings},
        num_server_rounds=ROUNDS,
        min_nodes=CLIENTS,
        parameters=PARAMETERS,
    ).finish()
    assert ended.status == 0, ended.stderr
    return ended


def test_each_model_after_the_first_comes_as_a_difference(three: Deployment) -> None:
    ended = run(three)
    down = [sum(one["bytes_down"].values()) / CLIENTS for one in ended.of("exchange-done")]
    assert len(down) == ROUNDS
    assert down[0] > 4 * PARAMETERS
    assert all(2 * PARAMETERS < size < 3 * PARAMETERS for size in down[1:]), down
    for name, values in ended.arrays().items():
        np.testing.assert_allclose(values, start()[name] + STEP * ROUNDS, atol=1e-4)


def test_a_compressed_run_ends_with_the_mean_of_what_its_clients_had(three: Deployment) -> None:
    """The mean square error of a tensor is that of rounding, and not more.

    Rounding to one of two neighbours has a variance of a quarter of the squared step at most, the mean over n clients
    an n-th of it, and a rotation keeps lengths. Over a thousand coordinates chance plays no part: a usual error is 0.8
    times that. What a subset of the coordinates makes of the mean is no error; it is computed here as docs/protocol.md
    has it.
    """
    ended = run(three, **{"field-bits": 8, "upload-fraction": FRACTION})
    done = ended.of("exchange-done")
    up = [sum(one["bytes_up"].values()) / CLIENTS for one in done]
    # Beside the update: ten requests with their signatures, and in the first sum the names of the metrics, 16 kB.
    assert all(0 < size - 4 * PARAMETERS * FRACTION < 40_000 for size in up), up
    tasks = trained(three, ended.summary["run"])
    encodings = [task.encoding for task in tasks]
    assert all(sum(one["bytes_down"].values()) < 3 * PARAMETERS * CLIENTS for one in done[1:])
    assert [encoding.field_bits for encoding in encodings] == [32, 8, 8]
    assert len({encoding.rotation for encoding in encodings}) == ROUNDS, "another model, another rotation"
    expected, bounds = start(), dict.fromkeys(start(), 0.0)
    for task, encoding in zip(tasks, encodings, strict=True):
        assert encoding.rotation == rotation_seed(task.model.sha256)
        for unit in encoding.field_sections[0].units():
            expected[unit.spec.name] += what_is_sent(unit, encoding, np.full(unit.size, STEP))
            bounds[unit.spec.name] += unit.rows / unit.sent_rows * encoding.step(unit.index) ** 2 / 4 / CLIENTS
    for name, values in ended.arrays().items():
        error = np.mean(np.square(values - expected[name]))
        assert error <= bounds[name], name
        assert bounds[name] < np.mean(np.square(expected[name] - start()[name])) / 16, "a bound that anything meets"


def start() -> dict[str, NDArray[np.float64]]:
    """The model that the app begins with."""
    parts = np.array_split(np.random.default_rng(0).standard_normal(PARAMETERS, dtype=np.float32), 10)
    return {f"block{number}": part.astype(np.float64) for number, part in enumerate(parts)}


def trained(three: Deployment, run: str) -> list[Task]:
    """The tasks of a run, as a client's own transcript has them."""
    path = three.kit("client-2") / "state" / TRANSCRIPT_FILE
    records = [entry.record for entry in read_entries(path, path.read_bytes()) if entry.event == "signed"]
    return [task for task in (record.announced() for record in records if record) if task.run == run]


def what_is_sent(unit: Unit, encoding: Encoding, mean: NDArray[np.float32]) -> NDArray[np.float64]:
    """A mean update ([size]) after rotation, choice of rows and the way back, in float64."""

    def stream(usage: bytes, count: int) -> bytes:
        key = hashlib.sha256(b"fedcore/codec/rotation/" + usage + b"/v1" + bytes.fromhex(encoding.rotation)).digest()
        nonce = bytes(4) + unit.number.to_bytes(12, "little")
        return Cipher(algorithms.ChaCha20(key, nonce), mode=None).encryptor().update(bytes(count))

    whole = np.zeros(unit.rows * unit.columns)
    whole[: unit.size] = mean
    bits = np.unpackbits(np.frombuffer(stream(b"signs", -(-whole.size // 8)), np.uint8), bitorder="little")
    signs = 1.0 - 2.0 * bits[: whole.size].reshape(unit.rows, unit.columns)
    transform = hadamard(unit.rows) / math.sqrt(unit.rows)
    rotated = transform @ (signs * whole.reshape(signs.shape))
    left_out = np.argsort(np.frombuffer(stream(b"subset", 8 * unit.rows), "<u8"), kind="stable")[unit.sent_rows :]
    rotated[left_out] = 0
    back: NDArray[np.float64] = signs * (transform @ rotated) * (unit.rows / unit.sent_rows)
    return back.reshape(-1)[: unit.size]
