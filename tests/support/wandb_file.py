"""What is in an offline file of Weights & Biases: protocol buffers in LevelDB's log format.

https://github.com/google/leveldb/blob/main/doc/log_format.md; the file begins with seven bytes of its own.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_BLOCK, _HEADER = 32768, 7


def records(path: Path) -> Iterator[Any]:
    """The records of a file, in order."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, held = path.read_bytes(), _HEADER, b""
    while place + _HEADER <= len(data):
        if _BLOCK - place % _BLOCK < _HEADER:  # the rest of a block is padding
            place += _BLOCK - place % _BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        held += data[place + _HEADER : place + _HEADER + length]
        place += _HEADER + length
        if kind in (1, 4):  # whole, or last part
            record = Record()
            record.ParseFromString(held)
            held = b""
            yield record


def history(path: Path) -> list[dict[str, Any]]:
    """The figures that were logged, in order."""
    logged = (record.history for record in records(path) if record.HasField("history"))
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in one.item} for one in logged]
