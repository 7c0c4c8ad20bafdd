"""The model that a client has: kept, named to the server, and the base of the next one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_app.exchange.models import Models
from fedcore.codec import CodecSettings, Encoding, decode, encode, write_change
from fedcore.errors import ProtocolViolation
from fedcore.state import ModelState, sha256_file, write_difference, write_exact_difference
from fedcore.wire.tasks import ModelRef


class Line:
    """Stands for the transport: a difference for whom it knows, else the whole. asked: the bases that were named."""

    def __init__(self, whole: Path, difference: Path | None = None, base: str = "") -> None:
        self.whole, self.difference, self.base = whole, difference, base
        self.asked: list[str] = []

    async def download(self, path: str, target: Path, *, size: int, sha256: str, base: str = "") -> bool:
        self.asked.append(base)
        if self.difference is not None and base == self.base:
            shutil.copyfile(self.difference, target)
            return True
        if sha256_file(self.whole) != sha256:
            raise ProtocolViolation("model-digest", "another model")
        shutil.copyfile(self.whole, target)
        return False


@pytest.fixture(params=["difference", "exact difference", "change"])
def made(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    old = np.abs(rng.standard_normal(60_000)).astype(np.float32) + np.float32(1)
    for name, array in {"old": old, "new": old + np.float32(0.001)}.items():
        ModelState.from_arrays({"w": array}).save(tmp_path / name)
    states = ModelState.open(tmp_path / "old"), ModelState.open(tmp_path / "new")
    if request.param == "difference":
        write_difference(*states, tmp_path / "difference", tmp_path / "sent")
    elif request.param == "exact difference":
        assert write_exact_difference(*states, tmp_path / "difference")
        shutil.copyfile(tmp_path / "new", tmp_path / "sent")
    else:
        write_sum(*states, tmp_path / "difference", tmp_path / "sent")
    (tmp_path / "models").mkdir()
    return {name: tmp_path / name for name in ("old", "sent", "difference")}


def write_sum(base: ModelState, local: ModelState, change: Path, sent: Path) -> None:
    """The mean of one client's update, and the change that it makes."""
    encoding = Encoding(
        settings=CodecSettings(w_max=1), layout=base.layout, n_max=1, field_bits=16, scales=(1.0,), metrics=()
    )
    words = encode(encoding, base=base, local=local, examples=1, metrics={}, randomness=os.urandom).words
    decoded = decode(encoding, words, survivors=1, base=base, out_path=sent)
    assert decoded.state is not None
    assert write_change(encoding, words, decoded.state, change, survivors=1, examples=1)


def reference(path: Path) -> ModelRef:
    return ModelRef(sha256=sha256_file(path), size=path.stat().st_size)


async def test_the_second_model_comes_as_a_difference(tmp_path: Path, made: dict[str, Path]) -> None:
    models, first = Models(tmp_path / "models"), reference(made["old"])
    assert await models.fetch(first, Line(made["old"]), "model") == first.size  # type: ignore[arg-type]
    line, wanted = Line(made["sent"], made["difference"], first.sha256), reference(made["sent"])
    came = await models.fetch(wanted, line, "model")  # type: ignore[arg-type]
    assert came == made["difference"].stat().st_size < wanted.size * 0.6
    assert line.asked == [first.sha256]
    assert models.has(wanted.sha256)
    assert [path.name for path in models.folder.iterdir()] == [f"{wanted.sha256}.safetensors"]


@pytest.mark.parametrize("damaged", ["base", "difference", "no file at all"])
async def test_where_the_sum_is_wrong_the_whole_model_is_fetched(
    tmp_path: Path, made: dict[str, Path], damaged: str
) -> None:
    models, first, wanted = Models(tmp_path / "models"), reference(made["old"]), reference(made["sent"])
    await models.fetch(first, Line(made["old"]), "model")  # type: ignore[arg-type]
    if damaged == "no file at all":
        made["difference"].write_bytes(b"no safetensors")
    else:
        path = models.path(first.sha256) if damaged == "base" else made["difference"]
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    line = Line(made["sent"], made["difference"], first.sha256)
    came = await models.fetch(wanted, line, "model")  # type: ignore[arg-type]
    assert came == made["difference"].stat().st_size + wanted.size
    assert line.asked == [first.sha256, ""]
    assert models.has(wanted.sha256)


async def test_another_model_than_the_announced_one_leaves_what_is_here(tmp_path: Path, made: dict[str, Path]) -> None:
    models, first = Models(tmp_path / "models"), reference(made["old"])
    await models.fetch(first, Line(made["old"]), "model")  # type: ignore[arg-type]
    with pytest.raises(ProtocolViolation):
        await models.fetch(reference(made["sent"]), Line(made["old"]), "model")  # type: ignore[arg-type]
    assert models.has(first.sha256)
