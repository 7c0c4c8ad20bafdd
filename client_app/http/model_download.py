"""A model on its way into a file, over as many connections as it takes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import BinaryIO

from client_app.http.blocking_transport import HttpResponse
from fedcore.errors import ProtocolViolation


class ModelDownload:
    """A file that is being received, at most `size` bytes: written, hashed and counted as it comes.

    It goes on where a broken connection left it (RFC 9110, section 14), if the server still has the same file.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.digest = hashlib.sha256()
        self.received = 0
        self.headers: Mapping[str, str] = {}
        """Of the answer that began it."""
        self._file = file
        self._size = size
        self._length = -1
        """Bytes of the whole, as that answer says."""

    @property
    def is_complete(self) -> bool:
        """Whether all has come that the server announced."""
        return self.received == self._length

    def rest(self) -> dict[str, str]:
        """The headers that ask for what is missing; none if nothing has come yet, or the file has no mark."""
        tag = self.headers.get("etag")
        return {"range": f"bytes={self.received}-", "if-range": tag} if self.received and tag else {}

    def begin(self, response: HttpResponse) -> None:
        """An answer has come: the rest of the file, or all of it again."""
        if response.status == HTTPStatus.PARTIAL_CONTENT:
            if not response.headers.get("content-range", "").startswith(f"bytes {self.received}-"):
                raise ProtocolViolation("model-digest", "the server sent another part of the model than was asked for")
            return
        if self.received:
            self._file.seek(0)
            self._file.truncate()
        self.digest, self.received, self.headers = hashlib.sha256(), 0, response.headers
        length = response.headers.get("content-length", "")
        self._length = int(length) if length.isdecimal() else -1

    def take(self, chunk: bytes) -> None:
        """The next bytes; raises ProtocolViolation("model-digest") if they are more than there can be."""
        self.received += len(chunk)
        if self.received > self._size:
            raise ProtocolViolation("model-digest", "the model is longer than announced")
        self.digest.update(chunk)
        self._file.write(chunk)
