"""Updates in parts: what is taken, what is refused, and that a refusal leaves nothing behind."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.members import Failure, Local, Member, digest_of, parts_of
from support.messages import model_in
from support.serverside import Site

from fedcore.errors import ConflictingMessage, StorageFull
from fedcore.state import ModelState
from fedcore.system.concurrency import end
from fedcore.wire.chunks import PART_BYTES
from fedcore.wire.uploads import ManifestIn, PartsOut
from server_app.exchanges.transfers import UpdateLimits, Uploads
from server_app.rejection import Rejection
from server_app.runs.app.messages import PlainReplies, Replies
from server_app.storage import objects
from server_app.storage.blobs import Body, Spool
from server_app.storage.objects import DirectoryObjects
from tests.support.raising import raises

THREE = os.urandom(2 * PART_BYTES + 8000)
"""An update of three parts, the last one short."""


async def in_chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 300_000):
        yield data[start : start + 300_000]


def body(data: bytes, **changes: Any) -> Body:
    described = {"chunks": in_chunks(data), "size": len(data), "sha256": hashlib.sha256(data).digest(), **changes}
    return Body(**described)


def manifest(data: bytes, **changes: Any) -> ManifestIn:
    return ManifestIn(**{"digest": digest_of(data), "size": len(data), **changes})


class Desk:
    """Where client 1 hands in an update of a fixed length."""

    def __init__(self, folder: Path, *, longest: int, exact: bool = True, reserve_bytes: int = 0) -> None:
        self.spool = Spool(folder=folder / "spool", reserve_bytes=reserve_bytes)
        self.spool.clear()
        self.objects = DirectoryObjects(folder)
        self.uploads = Uploads(self.spool, self.objects, "updates", UpdateLimits(longest=longest, exact=exact))
        self.progress = 0
        self.closed: Exception | None = None

    async def take(self, index: int, what: Body) -> None:
        def admit() -> None:
            if self.closed is not None:
                raise self.closed

        def progress() -> None:
            self.progress += 1

        await self.uploads.take(1, index, what, admit=admit, progress=progress)

    async def take_all(self, data: bytes) -> None:
        for index, part in enumerate(parts_of(data)):
            await self.take(index, body(part))

    async def publish(self, size: int) -> Path:
        """Where the object of the whole update lies."""
        await self.uploads.publish(1, size)
        return await self.objects.fetch("updates/1")

    def left(self) -> list[str]:
        """What lies in the spool."""
        return [path.name for path in self.spool.folder.iterdir()]

    async def refused(self, kind: str, work: Any) -> None:
        with pytest.raises(Rejection) as caught:
            await work
        assert caught.value.kind == kind

    def not_whole(self, kind: str, announced: ManifestIn, *numbers: int) -> None:
        with raises(Rejection, kind=kind, numbers=numbers):
            self.uploads.check_whole(1, announced)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, longest=len(THREE))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
async def test_an_update_arrives_whole_in_any_order(desk: Desk, order: tuple[int, ...]) -> None:
    parts = parts_of(THREE)
    for index in order:
        await desk.take(index, body(parts[index]))
    assert desk.progress >= 2 * 8 + 1
    desk.uploads.check_whole(1, manifest(THREE))
    path = await desk.publish(len(THREE))
    assert path.read_bytes() == THREE
    assert desk.left() == []
    assert await desk.publish(len(THREE)) == path


async def test_parts_at_the_same_time(desk: Desk) -> None:
    parts = parts_of(THREE)
    await asyncio.gather(*(desk.take(index, body(parts[index])) for index in (0, 1, 2, 1, 0)))
    desk.uploads.check_whole(1, manifest(THREE))
    assert (await desk.publish(len(THREE))).read_bytes() == THREE


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda last: last + b"x", "too-large"),
        (lambda last: last[:-1], "malformed"),
        (lambda last: last[:-1] + bytes([last[-1] ^ 1]), "digest-mismatch"),
    ],
)
async def test_a_part_that_is_not_as_announced_leaves_nothing(
    desk: Desk, change: Callable[[bytes], bytes], kind: str
) -> None:
    last = THREE[2 * PART_BYTES :]
    await desk.refused(kind, desk.take(2, body(last, chunks=in_chunks(change(last)))))
    assert desk.left() == []
    assert desk.uploads.received(1) == {}


async def test_a_part_that_breaks_off_is_not_here_and_can_come_again(desk: Desk) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield bytes(3 << 20)
        raise ConnectionResetError

    parts = parts_of(THREE)
    await desk.take(0, body(parts[0]))
    with pytest.raises(ConnectionResetError):
        await desk.take(1, body(parts[1], chunks=broken()))
    assert list(desk.uploads.received(1)) == [0]
    desk.not_whole("parts-missing", manifest(THREE), 1, 2, 3)
    await desk.take_all(THREE)
    desk.uploads.check_whole(1, manifest(THREE))
    assert (await desk.publish(len(THREE))).read_bytes() == THREE


async def test_a_repeated_part_is_not_read_and_another_one_conflicts(desk: Desk) -> None:
    async def untouched() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    part = parts_of(THREE)[0]
    await desk.take(0, body(part))
    await desk.take(0, body(part, chunks=untouched()))
    with pytest.raises(ConflictingMessage):
        await desk.take(0, body(part, chunks=untouched(), sha256=bytes(32)))
    assert desk.uploads.received(1) == {0: hashlib.sha256(part).digest()}


@pytest.mark.parametrize(
    ("index", "size", "kind"),
    [
        (0, PART_BYTES - 8, "malformed"),
        (0, PART_BYTES + 8, "too-large"),
        (2, 7992, "malformed"),
        (2, 8008, "too-large"),
        (2, PART_BYTES, "too-large"),
        (3, 8, "too-large"),
        (10**9, 8, "too-large"),
    ],
)
async def test_sizes_are_checked_before_a_body_is_read(desk: Desk, index: int, size: int, kind: str) -> None:
    async def untouched() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    await desk.refused(kind, desk.take(index, Body(chunks=untouched(), size=size, sha256=bytes(32))))
    assert desk.left() == []


@pytest.mark.parametrize(("size", "kind"), [(0, "malformed"), (101, "too-large")])
def test_an_update_that_may_be_shorter_still_has_a_length(size: int, kind: str) -> None:
    limits = UpdateLimits(longest=100, exact=False)
    limits.check_size(1)
    limits.check_size(100)
    with pytest.raises(Rejection) as caught:
        limits.check_size(size)
    assert caught.value.kind == kind


async def test_a_manifest_is_checked_against_what_came(tmp_path: Path) -> None:
    desk = Desk(tmp_path, longest=4 * PART_BYTES, exact=False)
    desk.not_whole("parts-missing", manifest(THREE), 0, 3, 3)
    await desk.take_all(THREE)
    desk.not_whole("digest-mismatch", manifest(THREE, digest="ab" * 32))
    for size in (len(THREE) - 1, len(THREE) + 1, 2 * PART_BYTES):
        desk.not_whole("malformed", manifest(THREE, size=size), size)
    desk.not_whole("parts-missing", manifest(THREE, size=4 * PART_BYTES), 3, 1, 4)
    swapped = THREE[PART_BYTES : 2 * PART_BYTES] + THREE[:PART_BYTES] + THREE[2 * PART_BYTES :]
    desk.not_whole("digest-mismatch", manifest(swapped))
    desk.uploads.check_whole(1, manifest(THREE))


async def test_what_a_failed_part_left_beyond_the_end_is_cut_off(tmp_path: Path) -> None:
    desk = Desk(tmp_path, longest=2 * PART_BYTES, exact=False)
    short = THREE[: PART_BYTES + 100]
    await desk.take(0, body(short[:PART_BYTES]))
    await desk.refused("digest-mismatch", desk.take(1, body(bytes(PART_BYTES), sha256=bytes(32))))
    await desk.take(1, body(short[PART_BYTES:]))
    desk.uploads.check_whole(1, manifest(short))
    assert (await desk.publish(len(short))).read_bytes() == short


async def test_nothing_is_added_to_a_complete_update(tmp_path: Path) -> None:
    desk = Desk(tmp_path, longest=3 * PART_BYTES, exact=False)
    await desk.take(0, body(b"all"))
    desk.uploads.check_whole(1, manifest(b"all"))
    path = await desk.publish(3)
    with raises(ConflictingMessage, numbers=(1,)):
        await desk.take(1, body(b"more"))
    await desk.take(0, body(b"all"))
    desk.uploads.drop(1)
    desk.uploads.close()
    assert path.read_bytes() == b"all"


class Held:
    """A body that stops half way until the test lets it go on."""

    def __init__(self, data: bytes) -> None:
        self.data, self.half, self.go_on = data, asyncio.Event(), asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self.data[:2_000_000]
        self.half.set()
        await self.go_on.wait()
        yield self.data[2_000_000:]


async def test_a_manifest_while_a_part_is_still_coming_is_refused(desk: Desk) -> None:
    parts = parts_of(THREE)
    await desk.take_all(THREE[:PART_BYTES])
    await desk.take(2, body(parts[2]))
    slow = Held(parts[1])
    sending = asyncio.create_task(desk.take(1, body(parts[1], chunks=slow.chunks())))
    await slow.half.wait()
    desk.not_whole("malformed", manifest(THREE))
    slow.go_on.set()
    await sending
    desk.uploads.check_whole(1, manifest(THREE))


@pytest.mark.parametrize("end", ["drop", "close"])
async def test_a_client_that_is_given_up_while_it_sends_leaves_nothing(desk: Desk, end: str) -> None:
    parts = parts_of(THREE)
    await desk.take(0, body(parts[0]))
    slow = Held(parts[1])
    sending = asyncio.create_task(desk.take(1, body(parts[1], chunks=slow.chunks())))
    await slow.half.wait()
    desk.closed = Rejection("stale-step", "the step is over")  # type: ignore[arg-type]
    desk.uploads.drop(1) if end == "drop" else desk.uploads.close()
    assert desk.left() == []
    slow.go_on.set()
    await desk.refused("stale-step", sending)
    assert desk.left() == []
    assert 1 not in desk.uploads.received(1)


async def test_a_part_that_waited_until_its_client_was_given_up_is_not_read(tmp_path: Path) -> None:
    desk = Desk(tmp_path, longest=3 * PART_BYTES)
    slow = [Held(bytes(PART_BYTES)) for _ in range(3)]
    sending = [asyncio.create_task(desk.take(i, body(held.data, chunks=held.chunks()))) for i, held in enumerate(slow)]
    await slow[1].half.wait()
    desk.closed = Rejection("stale-step", "the step is over")  # type: ignore[arg-type]
    desk.uploads.drop(1)
    for held in slow:
        held.go_on.set()
    for part in sending:
        await desk.refused("stale-step", part)
    assert not slow[2].half.is_set()
    assert desk.left() == []


@pytest.mark.parametrize("end", ["drop", "close"])
async def test_a_client_that_is_given_up_while_its_update_is_made_durable(
    desk: Desk, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that moves the file finds it; objects go when the stage has ended."""
    await desk.take_all(THREE)
    real = Spool.cut

    async def meanwhile(spool: Spool, path: Path, size: int) -> None:
        desk.uploads.drop(1) if end == "drop" else desk.uploads.close()
        await real(spool, path, size)

    monkeypatch.setattr(Spool, "cut", meanwhile)
    assert (await desk.publish(len(THREE))).read_bytes() == THREE
    assert desk.left() == []


async def test_one_client_cannot_have_many_parts_read_at_once(tmp_path: Path) -> None:
    desk = Desk(tmp_path, longest=6 * PART_BYTES)
    slow = [Held(bytes(PART_BYTES)) for _ in range(6)]
    sending = [asyncio.create_task(desk.take(i, body(held.data, chunks=held.chunks()))) for i, held in enumerate(slow)]
    for held in slow[:2]:
        await held.half.wait()
    await asyncio.sleep(0.05)
    assert [held.half.is_set() for held in slow] == [True, True, False, False, False, False]
    for held in slow:
        held.go_on.set()
    await asyncio.gather(*sending)
    assert len(desk.uploads.received(1)) == 6


async def test_room_for_all_that_is_missing_is_checked_before_anything_is_read(tmp_path: Path) -> None:
    desk = Desk(tmp_path, longest=1 << 62, reserve_bytes=0)

    async def untouched() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    with pytest.raises(StorageFull):
        await desk.take(0, Body(chunks=untouched(), size=PART_BYTES, sha256=bytes(32)))
    assert desk.left() == []


async def test_making_it_durable_can_be_tried_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    await desk.take_all(THREE)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(objects.os, "fsync", full)
        with pytest.raises(StorageFull):
            await desk.publish(len(THREE))
    desk.uploads.check_whole(1, manifest(THREE))
    assert (await desk.publish(len(THREE))).read_bytes() == THREE


# --- through the routes -------------------------------------------------------------------------


@pytest.fixture
def large() -> ModelState:
    """A model whose first update, 4 bytes a parameter, has two parts."""
    return ModelState.from_arrays({"weight": np.zeros(1_100_000, np.float32)})


async def opened(site: Site, model: ModelState, settings: dict[str, Any] | None = None) -> tuple[Any, list[Member]]:
    _, app = await site.begin(settings)
    asked = asyncio.create_task(app.exchange(model, [1, 2, 3, 4]))
    return asked, await site.enter_all()


async def refusal(work: Any) -> str:
    with pytest.raises(Failure) as caught:
        await work
    return caught.value.problem.kind


async def held(member: Member, size: int) -> PartsOut:
    response = await member.ask("GET", f"{member.at('update/parts')}?size={size}")
    return PartsOut.model_validate_json(response.content)


async def test_an_upload_of_two_parts_is_resumed_and_counts_once(here: Site, large: ModelState) -> None:
    asked, members = await opened(here, large)
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    first, second, *others = members
    content, ending = first.vector()
    parts = parts_of(content)
    assert (await held(first, len(content))).parts == {}
    await first.put("update/parts/1", parts[1])
    assert (await held(first, len(content))).parts == {1: hashlib.sha256(parts[1]).hexdigest()}
    assert await refusal(first.put("manifest", ending)) == "parts-missing"
    assert await refusal(held(first, len(content) - 8)) == "malformed"
    assert await refusal(first.ask("PUT", first.at("update/parts/1"), bytes(len(parts[1])))) == "conflict"
    assert await refusal(first.ask("PUT", first.at("update/parts/2"), parts[1])) == "too-large"
    await first.put("update/parts/1", parts[1])
    await first.put("update/parts/0", parts[0])
    await first.put("manifest", ending)
    await first.put("update/parts/0", parts[0])
    await first.put("manifest", ending)
    assert await refusal(first.ask("PUT", first.at("manifest"), b'{"digest": "' + b"0" * 64 + b'", "size": 0}'))
    # One part and no manifest: the second client drops out, and nothing of it is in the sum.
    abandoned, _ = second.vector()
    await second.put("update/parts/0", parts_of(abandoned)[0])
    await second.withdraw()
    left = list(here.services.settings.spool_dir.iterdir())
    assert [path.stat().st_size for path in left] == [len(content)]  # the sum
    await asyncio.gather(*(member.upload() for member in others))
    for step in ("sign", "unmask"):
        await asyncio.gather(*(getattr(member, step)() for member in (first, *others)))
    answer = await asked
    assert isinstance(answer, Replies)
    (reply,) = answer.replies
    assert reply.examples == 30
    mean = reply.model()["weight"]
    np.testing.assert_allclose(mean, np.ones_like(mean), atol=1e-5)


async def test_plain_updates_go_the_same_way(here: Site, large: ModelState) -> None:
    asked, members = await opened(here, large, {"aggregation": "plain"})
    for member in members:
        member.local = Local(by=2.0**-member.id)
    assert await held(members[0], 1 << 39) == PartsOut(parts={}), "a reply may be of any size"
    await asyncio.gather(*(member.plain() for member in members))
    answer = await asked
    assert [reply.node for reply in answer.replies] == [1, 2, 3, 4]
    for reply in answer.replies:
        assert (model_in(reply.content)["weight"] == np.float32(2.0**-reply.node)).all()


async def test_a_part_needs_its_length_and_has_at_most_that_of_a_part(here: Site, model: ModelState) -> None:
    asked, members = await opened(here, model)
    member = members[0]
    path = member.at("update/parts/0")

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(1 << 20)

    headers = member.signed("PUT", path, b"")
    without = await member.http.put(path, content=endless(), headers=headers)
    assert without.status_code == 422
    headers = {**member.signed("PUT", path, b""), "Content-Length": str(PART_BYTES + 1)}
    longer = await member.http.put(path, content=endless(), headers=headers)
    assert longer.status_code == 413
    await end(asked)


@pytest.mark.parametrize("step", ["receipt", "fold"])
async def test_a_full_database_disk_costs_no_second_upload(
    here: Site, model: ModelState, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest alone comes again; where the sum itself is spoilt the exchange fails and leaves no file."""
    asked, members = await opened(here, model)
    await asyncio.gather(*(member.secure(until="upload") for member in members))
    content, ending = members[0].vector()
    await members[0].send(content)
    exchange: Any = here.application.queue.exchange

    def full(*_: Any, **__: Any) -> Any:
        raise StorageFull("full")

    with monkeypatch.context() as patch:
        if step == "receipt":
            patch.setattr(here.services.store, "add_receipt", full)
        else:
            patch.setattr("server_app.exchanges.sums.sum_file.fold_file", full)
        await refusal(members[0].put("manifest", ending))
    folder = here.services.settings.data_dir / exchange.context.key / "updates"
    if step == "receipt":
        assert [path.name for path in folder.iterdir()] == ["1"]
        await members[0].put("manifest", ending)
        await asyncio.gather(*(member.upload() for member in members[1:]))
        for name in ("sign", "unmask"):
            await asyncio.gather(*(getattr(member, name)() for member in members))
        (reply,) = (await asked).replies
        assert reply.examples == 40
    else:
        await wait_until(lambda: exchange.stages.over)
        await wait_until(lambda: not folder.exists() or not list(folder.iterdir()))  # removed just after the end
        await end(asked)
    assert not folder.exists() or list(folder.iterdir()) == []


@pytest.mark.parametrize("aggregation", ["secure", "plain"])
async def test_a_client_given_up_while_its_update_is_made_durable_is_not_counted(
    here: Site, model: ModelState, aggregation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, members = await opened(here, model, {"aggregation": aggregation})
    first, *others = members
    if aggregation == "secure":
        await asyncio.gather(*(member.secure(until="upload") for member in members))
    content, ending = first.vector() if aggregation == "secure" else first.plain_manifest()
    await first.send(content)
    exchange: Any = here.application.queue.exchange
    real = Spool.cut

    async def meanwhile(spool: Spool, path: Path, size: int) -> None:
        exchange.give_up(first.id, "taken for dead")
        await real(spool, path, size)

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "cut", meanwhile)
        assert await refusal(first.put("manifest", ending)) == "stale-step"
    if aggregation == "secure":
        for step in ("upload", "sign", "unmask"):
            await asyncio.gather(*(getattr(member, step)() for member in others))
    else:
        await asyncio.gather(*(member.plain() for member in others))
    answer = await asked
    assert isinstance(answer, Replies | PlainReplies)
    assert sum(reply.examples for reply in answer.replies) == 30
    objects = here.services.settings.data_dir / exchange.context.key
    left = sorted(str(path.relative_to(objects)) for path in objects.rglob("*") if path.is_file())
    # A reply that came too late for the exchange goes with the run's other files.
    assert left == (["mean"] if aggregation == "secure" else [f"replies/{number}" for number in (1, 2, 3, 4)])


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
