"""Reading what a server answered: a message, or a violation of the protocol that quotes nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pydantic

from client_app.http.transport import Answer
from client_app.output import clean
from fedcore.errors import ProtocolViolation
from fedcore.system.concurrency import in_thread

_AT_ONCE: Final = 1 << 16
"""Bytes of an answer up to which it is parsed on the event loop; of more, in a thread."""


async def parse(
    answer: type[Answer], path: str, body: bytes | None, read: Callable[[bytes], Answer] | None = None
) -> Answer | None:
    """The message in an answer's body; None for no body. Raises ProtocolViolation("malformed").

    Args:
        answer: what the message is.
        path: of the route.
        body: of the answer.
        read: parses the body, in place of pydantic.
    """
    if body is None:
        return None
    read = read or answer.model_validate_json
    try:
        return await in_thread(read, body) if len(body) > _AT_ONCE else read(body)
    except pydantic.ValidationError as error:
        # The error's own text quotes what the server sent.
        fields = ", ".join(sorted({".".join(map(str, item["loc"][:1])) for item in error.errors()}))
        raise ProtocolViolation(
            "malformed", f"the server's answer to {public(path)} is no {answer.__name__} ({clean(fields)})"
        ) from None
    except ValueError:
        raise ProtocolViolation("malformed", f"the server's answer to {public(path)} is no JSON") from None


def public(path: str) -> str:
    """The part of a route's path that a person may read in a message."""
    return path.rsplit("/", 1)[-1]
