"""Storage: the database, and the store of large files (objects)."""

from __future__ import annotations

from pathlib import Path

from server_app.storage.objects import DirectoryObjects, Objects
from server_app.storage.s3_objects import S3Objects


async def open_objects(location: str, data_dir: Path) -> Objects:
    """Open the object store.

    Args:
        location: "" for the data folder, a folder relative to it, or `s3://bucket/prefix`.
        data_dir: the server's data folder; copies of a bucket's objects go below it.

    Raises:
        ConfigurationError: the location is no store that can be used.
        StorageUnavailable: the bucket does not answer.
    """
    if "://" in location:
        return await S3Objects.open(location, data_dir / "objects")
    return DirectoryObjects(data_dir / location)
