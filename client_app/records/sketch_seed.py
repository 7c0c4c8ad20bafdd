"""The secret seed of a client's sketches of models (`fedcore.state.Sketcher`), which never leaves its state folder.

If it is lost, another one takes its place: sketches of before are then of no use, and the models that they were made of
count as one with models that are the same.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from fedcore.errors import ConfigurationError
from fedcore.secagg import Randomness
from fedcore.state import Sketcher
from fedcore.state.sketch import SEED_BYTES
from fedcore.system.files import write_file

SEED_FILE: Final = "sketch.seed"


def sketcher_of(state_dir: Path, randomness: Randomness = os.urandom) -> Sketcher:
    """The sketcher of a state folder, whose seed is drawn at first; raises ConfigurationError if it is damaged."""
    path = state_dir / SEED_FILE
    if not path.exists():
        write_file(path, randomness(SEED_BYTES).hex(), mode=0o600, durable=True)
    try:
        seed = bytes.fromhex(path.read_text())
    except ValueError:
        seed = b""
    if len(seed) != SEED_BYTES:
        raise ConfigurationError(
            f"{path} is damaged: it holds {2 * SEED_BYTES} hexadecimal digits; remove it, and a new one takes its "
            "place, with which models of earlier runs are compared by their hashes alone",
            check="damaged",
        )
    return Sketcher(seed)
