"""Flower's own output during a run, without the lines that do not concern the user."""

from __future__ import annotations

import logging
from pathlib import Path

import flwr

_FLOWER = str(Path(flwr.__file__).parent)


def quiet_flower() -> None:
    """Leave out what Flower itself says of a run that goes well, which our events say already.

    Warnings stay, and so does every line that an app writes with Flower's logger.
    """
    logging.getLogger("flwr").addFilter(_is_worth_reading)


def _is_worth_reading(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING or not record.pathname.startswith(_FLOWER)
