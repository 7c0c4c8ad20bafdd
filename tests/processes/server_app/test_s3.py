"""Objects in a bucket, over moto's server: it answers as S3 does, but keeps all in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from support.object_cases import *  # noqa: F403
from support.object_cases import new_file

from fedcore.errors import StorageUnavailable
from server_app.storage import open_objects, s3_objects
from server_app.storage.objects import Objects


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def account(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "open-sesame",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    bucket = boto3.resource("s3", endpoint_url=endpoint, region_name="us-east-1").Bucket("models")
    bucket.create()
    yield
    bucket.objects.delete()
    bucket.delete()


@pytest.fixture
async def objects(account: None, tmp_path: Path) -> Objects:
    return await open_objects("s3://models/federation", tmp_path / "a")


async def test_what_one_server_replaces_another_fetches_anew(objects: Objects, tmp_path: Path) -> None:
    other = await open_objects("s3://models/federation", tmp_path / "b")
    for content in (b"first", b"second"):
        await objects.put(new_file(tmp_path, content), "runs/r/checkpoint")
        copy = await other.fetch("runs/r/checkpoint")
        assert copy.read_bytes() == content
        assert await other.fetch("runs/r/checkpoint") == copy
        assert copy.is_relative_to(tmp_path / "b")


async def test_a_large_object_goes_in_parts_and_comes_back_whole(objects: Objects, tmp_path: Path) -> None:
    content = os.urandom(1 << 20) * 17
    await objects.put(new_file(tmp_path, content), "runs/r/model")
    other = await open_objects("s3://models/federation", tmp_path / "b")
    assert (await other.fetch("runs/r/model")).read_bytes() == content


async def test_a_bucket_that_is_not_there_is_refused_by_name(account: None, tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match=r"s3://absent/x.*404") as refused:
        await open_objects("s3://absent/x", tmp_path)
    assert "open-sesame" not in str(refused.value)


async def test_a_store_that_went_away_may_be_asked_again(
    account: None, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_objects, "RETRY", {"max_retries": 0})
    relay = ThreadedMotoServer(ip_address="127.0.0.1", port=0)  # the same memory as the other one
    relay.start()
    host, port = relay.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    objects = await open_objects("s3://models/federation", tmp_path / "c")
    await objects.put(new_file(tmp_path, b"x"), "runs/r/model")
    relay.stop()
    path = new_file(tmp_path, b"y")
    for asked in (objects.put(path, "runs/r/model"), objects.fetch("runs/r/model"), objects.remove("runs/r")):
        with pytest.raises(StorageUnavailable):
            await asked
    assert path.read_bytes() == b"y", "nothing was taken over"
    with pytest.raises(StorageUnavailable, match="s3://models/federation"):
        await open_objects("s3://models/federation", tmp_path / "d")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    again = await open_objects("s3://models/federation", tmp_path / "d")
    assert (await again.fetch("runs/r/model")).read_bytes() == b"x"
