"""Models that runs start from: sent before the run is submitted, kept with it, and handed to its ServerApp by path.

Until a run names it, such a model is a file of the spool, which the next start of the server removes: an operator who
submits then sends it again.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Final

from fedcore.errors import EncodingError, PeerError
from fedcore.state import ModelState
from fedcore.wire.problems import ProblemKind
from server_app.rejection import Rejection
from server_app.storage.blobs import Body, Spool, discard
from server_app.storage.objects import Objects

MOST_UNCLAIMED: Final = 4
"""Models that wait for their run; the oldest one makes room for another."""
_PREFIX: Final = "initial-"


async def take_model(spool: Spool, body: Body) -> None:
    """Keep a model for the run that will name it. Raises Rejection (also for what is no model) and StorageFull."""
    target = _path_of(spool, body.sha256.hex())
    if target.exists():
        return
    spool.check_room(body.size)
    path = spool.create()
    try:
        await spool.write(path, 0, body)
        await asyncio.to_thread(_check, path)
        await spool.publish(path, target, size=body.size)
    except BaseException:
        discard(path)
        raise
    await asyncio.to_thread(_make_room, spool.folder)


async def claim_model(spool: Spool, sha256: str, objects: Objects, key: str) -> None:
    """Keep a model that was sent as the object `key`; raises Rejection if it was not sent, or is gone."""
    target = _path_of(spool, sha256)
    if not target.exists():
        text = f"the initial model {sha256} is not here; send it again (PUT /v1/models/{sha256})"
        raise Rejection(ProblemKind.NOT_FOUND, text)
    await objects.put(target, key)


async def resend_model(spool: Spool, sha256: str, objects: Objects, key: str) -> None:
    """Send the model of an earlier run, the object `key`, again; Rejection if it is gone. Raises StorageFull."""
    target = _path_of(spool, sha256)
    if target.exists():
        return
    try:
        model = await objects.fetch(key)
    except KeyError:
        raise Rejection(ProblemKind.NOT_FOUND, "the initial model of that run is not kept any more") from None
    size = model.stat().st_size
    spool.check_room(size)
    path = spool.create()
    try:
        await asyncio.to_thread(shutil.copyfile, model, path)
        await spool.publish(path, target, size=size)
    except BaseException:
        discard(path)
        raise


def _path_of(spool: Spool, sha256: str) -> Path:
    return spool.folder / f"{_PREFIX}{sha256}"


def _check(path: Path) -> None:
    try:
        ModelState.open(path)
    except (PeerError, EncodingError) as error:
        raise Rejection(ProblemKind.MALFORMED, f"the initial model cannot be read: {error}") from None


def _make_room(folder: Path) -> None:
    waiting = sorted(folder.glob(f"{_PREFIX}*"), key=lambda path: path.stat().st_mtime)
    for path in waiting[:-MOST_UNCLAIMED]:
        discard(path)
