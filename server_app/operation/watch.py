"""What nobody asks for and has to be known anyway, looked at every few seconds."""

from __future__ import annotations

import asyncio
from typing import Final, NoReturn

from server_app.services import Services

WATCH_SECONDS: Final = 10.0
CONNECTED_SECONDS: Final = 30.0
"""A client that waits for a task asks again after 25 s at the latest."""


async def watch(services: Services) -> NoReturn:
    """Keep the gauges and the certificate's reminder up to date."""
    while True:
        await look(services)
        await asyncio.sleep(WATCH_SECONDS)


async def look(services: Services) -> None:
    """Look once."""
    metrics = services.metrics
    metrics.clients.set(len(services.presence.online(CONNECTED_SECONDS)))
    if services.certificate is not None:
        services.certificate.remind()
        metrics.certificate.set(services.certificate.days_left)
    try:
        metrics.waiting_runs.set(await services.store.count_waiting())
    except Exception as error:  # whoever leads the runs says what is wrong with the database
        metrics.storage_failed(error)
