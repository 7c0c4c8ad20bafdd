"""What the clients of a run fetch: the strategy's models, or models that are 16-bit differences from one to the next.

With `download-bits` = 16 a model that the strategy hands over is rounded to the last *sent* model plus a difference in
bfloat16 (`fedcore.state.difference`); what is announced, and what all clients train from, is that sum. The mean of
their changes is added to the strategy's own model, in which no rounding ever is. The chain of sent models follows from
the strategy's models alone: a ServerApp that is started again hands all of them over again, and so does one that
another server leads on, and that gives the same models.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from fedcore.state import ModelState, can_differ, write_difference
from fedcore.wire.tasks import ModelRef
from server_app.exchanges.context import Difference
from server_app.runs.files.run_files import RunFiles, reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A model as clients get it. path: the whole of it. reference: what they are told. difference: to the one before.

    base: the strategy's own model, where that is another.
    """

    path: Path
    reference: ModelRef
    base: Path | None = None
    difference: Difference | None = None


class ModelDownloads:
    """The models of one run, in one life of its ServerApp. bits: 32 for whole models, 16 for differences."""

    def __init__(self, files: RunFiles, bits: int) -> None:
        self._files = files
        self._bits = bits
        self._asked = ""
        self._sent: Sent | None = None

    async def send(self, model: Path, announced: ModelRef) -> Sent:
        """What clients get of a model that the app handed over; for the same model the same again."""
        if self._bits == 32:
            return Sent(path=model, reference=announced)
        last = self._sent
        if last is None or announced.sha256 != self._asked:
            difference, whole = await self._files.sent_files(model, last.path if last is not None else None)
            made = last is not None and await asyncio.to_thread(_write, last.path, model, difference, whole)
            sent = await reference(whole)
            before = Difference(base=last.reference.sha256, path=difference) if made and last is not None else None
            self._sent, self._asked = Sent(path=whole, reference=sent, difference=before), announced.sha256
            last = self._sent
        return Sent(path=last.path, reference=last.reference, base=model, difference=last.difference)


def _write(base: Path, model: Path, difference: Path, whole: Path) -> bool:
    """Replace `whole`, the model itself, if there is a difference; whether that is the smaller file."""
    held, new = ModelState.open(base), ModelState.open(model)
    if not can_differ(held, new):
        return False
    write_difference(held, new, difference, whole)
    return difference.stat().st_size < whole.stat().st_size
