"""Status of each client in a run, derived from state that the server already has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedcore.run.groups import groups_in
from fedcore.wire.operator import ClientRunState, RunClientOut, RunClientsOut
from server_app.exchanges.exchange import Exchange
from server_app.exchanges.transfers import Transfer
from server_app.services import Services

ONLINE_SECONDS: Final = 15.0


def client_statuses(services: Services, run: str, app_sha256: str, exchanges: Sequence[Exchange]) -> RunClientsOut:
    """All members, and what they do for a run that waits or is led.

    services
        Of this process.
    run
        Its id.
    app_sha256
        SHA-256 of its app.
    exchanges
        Exchanges of the run that are open or ended last, the newest last. If several are open, as those of groups, the
        newest stands for all, and each client is shown in its own.
    """
    newest = next((one for one in reversed(exchanges) if not one.stages.over), None)
    own = {client: one for one in exchanges for client in one.task.cohort}
    last = exchanges[-1] if exchanges else None
    return RunClientsOut(
        run=run,
        exchange=newest.task.exchange if newest is not None else 0,
        server_round=newest.task.server_round if newest is not None else 0,
        stage=newest.stages.current if newest is not None else "",
        groups=groups_in(newest.task) if newest is not None else 1,
        clients=[
            RunClientOut(id=member.id, name=member.name, state=state, why=why)
            for member in services.roster.members
            for state, why in [_status(services, member.id, app_sha256, own.get(member.id, last))]
        ],
    )


def _status(services: Services, client: int, app_sha256: str, exchange: Exchange | None) -> tuple[ClientRunState, str]:
    if client in services.work.busy:
        return ClientRunState.TRAINING, "for a later sum"
    if exchange is None or client not in exchange.clients:
        return _idle(services, client, app_sha256, is_candidate=exchange is None or exchange.stages.over)
    reason = exchange.clients.reasons.get(client, "")
    if exchange.stages.over:
        state, why = _idle(services, client, app_sha256, is_candidate=True)
        return state, why or (f"dropped in exchange {exchange.task.exchange}: {reason}" if reason else "")
    if exchange.clients.has_update(client):
        return ClientRunState.DONE, reason
    if reason:
        return ClientRunState.DROPPED, reason
    transfer = exchange.transfers.measure(client)
    uploads = transfer is not None and transfer.what is Transfer.UPLOAD
    return (ClientRunState.UPLOADING if uploads else ClientRunState.TRAINING), str(transfer or "")


def _idle(services: Services, client: int, app_sha256: str, *, is_candidate: bool) -> tuple[ClientRunState, str]:
    """A client that works on nothing of this run. is_candidate: whether the next exchange may include it."""
    presence = services.presence
    if presence.silent_for(client) > ONLINE_SECONDS:
        return ClientRunState.AWAY, "is not connected"
    if presence.installed.get(client) != app_sha256:
        return ClientRunState.WAITING, "another app is installed there than the one of this run"
    if presence.is_ineligible(client):
        return ClientRunState.WAITING, "may not train now, by its owner's rules"
    slow = services.lines.why_not_asked(services.clock()).get(client, "")
    return ClientRunState.WAITING, slow or ("" if is_candidate else "is not asked in this exchange")
