"""An upload that the kernel refuses to write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FULL_DISK = """
import asyncio, hashlib, pathlib, resource, signal, sys
from fedcore.errors import StorageFull
from server_app.storage.blobs import Body, Spool
from server_app.storage.objects import DirectoryObjects
from server_app.exchanges.transfers import UpdateLimits, Uploads
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, 2 << 20))
spool = Spool(folder=pathlib.Path(sys.argv[1]) / "spool", reserve_bytes=0)
spool.clear()
objects = DirectoryObjects(pathlib.Path(sys.argv[1]))
uploads = Uploads(spool, objects, "updates", UpdateLimits(longest=4_000_000, exact=True))
async def chunks():
    for _ in range(40):
        yield bytes(100_000)
body = Body(chunks=chunks(), size=4_000_000, sha256=bytes(32))
try:
    asyncio.run(uploads.take(1, 0, body, admit=lambda: None, progress=lambda: None))
except StorageFull as error:
    assert not list(spool.folder.iterdir())
    print("refused:", error)
"""


def test_a_file_that_cannot_grow_is_a_full_disk(tmp_path: Path) -> None:
    """The kernel itself refuses the write here, as it does on a full disk."""
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("refused: the server's disk is full")
