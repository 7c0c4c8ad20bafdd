"""Client 1, in this process, against a server that the test leads."""

from support.scripted import (
    allow,
    client,
    federation,
    kit,
    kits,
    ledger,
    listening_to,
    log,
    make_task,
    notices,
    retry,
    script,
)

__all__ = [
    "allow",
    "client",
    "federation",
    "kit",
    "kits",
    "ledger",
    "listening_to",
    "log",
    "make_task",
    "notices",
    "retry",
    "script",
]
