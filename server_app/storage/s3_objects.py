"""Objects in a bucket that speaks S3, with copies of those in use in a local folder.

Address and credentials come from the usual variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION,
AWS_ENDPOINT_URL, AWS_ALLOW_HTTP (https://developmentseed.org/obstore/latest/api/store/aws/).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Awaitable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

from fedcore.errors import ConfigurationError, StorageUnavailable
from fedcore.system.concurrency import in_thread
from fedcore.system.files import replacing
from server_app.storage.objects import checked, move, remove_object, trouble_named

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")
_AWAY: Final = "the server's object store does not answer for now"
_BLOCK_BYTES: Final = 8 << 20
_CLIENT: Final = {"connect_timeout": "5s", "read_timeout": "60s", "timeout": "15m"}
RETRY: Final = {"max_retries": 5, "retry_timeout": timedelta(seconds=30)}


class S3Objects:
    """Objects in a bucket, with local copies.

    A copy is named by the bucket's ETag, so one that another server has replaced is fetched again.

    store
        The bucket.
    cache
        A folder of this process alone; it removes what an earlier process left there.
    """

    def __init__(self, store: S3Store, cache: Path) -> None:
        self._store = store
        self._cache = cache

    @classmethod
    async def open(cls, location: str, cache: Path) -> S3Objects:
        """The bucket and prefix at `s3://bucket/prefix`. Raises ConfigurationError and StorageUnavailable."""
        try:
            from obstore.store import S3Store
        except ImportError:
            raise ConfigurationError("an object store needs one more package: pip install 'fedcore[s3]'") from None
        if not location.startswith("s3://") or not location[5:].strip("/"):
            raise ConfigurationError(f"objects is {location!r}; expected a folder, or s3://BUCKET/PREFIX")
        # Named here, since options that are given take the place of this variable.
        allow_http = os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")
        options: Any = {"client_options": {**_CLIENT, "allow_http": allow_http}, "retry_config": RETRY}
        try:
            store = S3Store.from_url(location, **options)
            await in_thread(_empty, cache)
            await _first(store)
        except Exception as error:
            raise _refusal(location, error) from error
        return cls(store, cache)

    async def put(self, path: Path, key: str) -> None:
        """Upload a file, in parts if it is large; it stays here as the copy."""
        import obstore

        result = await _request(obstore.put_async(self._store, checked(key), path))
        with trouble_named():
            await in_thread(_keep, path, self._copy(key, result["e_tag"]))

    async def fetch(self, key: str) -> Path:
        """A copy of the object as it is now."""
        import obstore

        try:
            about = await _request(obstore.head_async(self._store, checked(key)))
            copy = self._copy(key, about["e_tag"])
            if not copy.is_file():
                copy = await self._download(key)
        except FileNotFoundError:
            raise KeyError(key) from None
        return copy

    async def remove(self, prefix: str) -> None:
        """Remove objects, a thousand at a time, and their copies."""
        import obstore

        names = [checked(prefix)]
        async for page in _pages(obstore.list(self._store, prefix=prefix)):
            names += [about["path"] for about in page]
        for start in range(0, len(names), 1000):
            with contextlib.suppress(FileNotFoundError):
                await _request(obstore.delete_async(self._store, names[start : start + 1000]))
        with trouble_named():
            await in_thread(remove_object, self._cache / prefix)

    async def cut(self, key: str, size: int) -> None:
        """Nothing: neither an object of a bucket nor the copy of it changes."""

    def _copy(self, key: str, e_tag: str | None) -> Path:
        return self._cache / key / f"{hashlib.sha256((e_tag or '').encode()).hexdigest()[:32]}.copy"

    async def _download(self, key: str) -> Path:
        import obstore

        answer = await _request(obstore.get_async(self._store, key))
        copy = self._copy(key, answer.meta["e_tag"])  # which may be newer than a moment ago
        with _drafted(copy) as file, _away_named():
            async for block in answer.stream(min_chunk_size=_BLOCK_BYTES):
                await in_thread(file.write, block)
        return copy


@contextlib.contextmanager
def _drafted(copy: Path) -> Iterator[BinaryIO]:
    """A file that takes the name `copy` once all is in it."""
    with trouble_named():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with replacing(copy) as file:
            yield file


async def _first(store: S3Store) -> None:
    """Ask for any one object, to see that the bucket answers."""
    import obstore

    async for _ in obstore.list(store, chunk_size=1):
        return


async def _pages(stream: Any) -> Any:
    with _away_named():
        async for page in stream:
            yield page


async def _request(work: Awaitable[T]) -> T:
    with _away_named():
        return await work


@contextlib.contextmanager
def _away_named() -> Iterator[None]:
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError:  # as obstore names what is not there
        raise
    except (BaseError, PermissionError) as error:
        raise StorageUnavailable(_AWAY) from error


def _refusal(location: str, error: Exception) -> Exception:
    from obstore.exceptions import BaseError, GenericError

    why = str(error).partition("\n")[0][:300]
    if isinstance(error, GenericError):
        return StorageUnavailable(f"the object store {location} cannot be used: {why}")
    if isinstance(error, BaseError | PermissionError):
        return ConfigurationError(f"the object store {location} cannot be used: {why}; look at objects and at AWS_...")
    return error


def _keep(path: Path, copy: Path) -> None:
    """Make `path` the only copy of its object."""
    if copy.parent.is_dir():
        for old in copy.parent.glob("*.copy"):
            old.unlink(missing_ok=True)
    move(path, copy)


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
