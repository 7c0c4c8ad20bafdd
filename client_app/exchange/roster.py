"""Rosters that this client has missed: fetch, verify, save.

The server accepts the keys of the roster in use. A client whose key was replaced meanwhile signs with the one that
waits in its kit.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from client_app.exchange.client import Client
from client_app.http.http_transport import signer
from client_app.http.retry import BRIEF
from fedcore.errors import ProtocolViolation, Unauthorized
from fedcore.federation.kits.identity import next_identity
from fedcore.federation.membership import follow
from fedcore.federation.roster import FORK, GAP, MALFORMED, ROLLBACK
from fedcore.system.concurrency import in_thread
from fedcore.wire.presence import JoinOut, RostersOut

PATH = "/v1/rosters"


async def learn(client: Client) -> Client:
    """The client with the newest roster of the server, which must succeed the one that it knew.

    Raises ProtocolViolation under a fixed name for any other roster; the client then keeps its own.
    """
    kit = client.kit
    try:
        texts = await _missed(client)
        # Also those between: records that this client has yet to see may name them.
        kit = await in_thread(partial(follow, kit, texts, note=client.transcript.know))
    finally:
        client.transport.sign_with(signer(kit))
    if kit.roster is not client.kit.roster:
        changed = "; this client's new key is in use" if kit.identity is not client.kit.identity else ""
        client.output.info("roster", f"roster {kit.roster.version}: {len(kit.roster.members)} members{changed}")
    return replace(client, kit=kit)


async def catch_up(client: Client, version: int) -> Client:
    """The client with a roster of at least `version`, if the server has the rosters up to there."""
    return await learn(client) if version > client.kit.roster.version else client


async def agree(client: Client, joined: JoinOut) -> Client:
    """The client with the roster that the server names; ProtocolViolation if that is no successor."""
    known = client.kit.roster
    if joined.roster < known.version:
        raise ProtocolViolation(
            ROLLBACK, f"the server uses roster {joined.roster}, this client knows roster {known.version} already"
        )
    if joined.roster == known.version and joined.roster_sha256 != known.hash().hex():
        raise ProtocolViolation(FORK, f"the server has another roster {known.version} than this client")
    followed = await catch_up(client, joined.roster)
    if followed.kit.roster.version < joined.roster:
        raise ProtocolViolation(GAP, f"the server uses roster {joined.roster} and does not send it")
    return followed


async def _missed(client: Client) -> list[str]:
    try:
        return await _ask(client)
    except Unauthorized:
        waiting = next_identity(client.kit.folder)
        if waiting is None:
            raise
        client.transport.sign_with(signer(client.kit, identity=waiting))
        return await _ask(client)


async def _ask(client: Client) -> list[str]:
    answer = await client.transport.get(PATH, RostersOut, retry=BRIEF, after=client.kit.roster.version)
    if answer is None:
        raise ProtocolViolation(MALFORMED, "the server sent an empty answer to a request for rosters")
    return answer.rosters
