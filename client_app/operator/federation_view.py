"""Output of `fedcore federation show` and `fedcore federation link`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from client_app.operator.client import OperatorClient
from fedcore.errors import ConfigurationError
from fedcore.federation.authority import Authority
from fedcore.federation.files import read_certificate
from fedcore.federation.fingerprint import fingerprint
from fedcore.federation.kits.expiry import warning
from fedcore.federation.kits.kits import CA_FILE, CERTIFICATE_FILE
from fedcore.monitoring.formatting import the_federation
from fedcore.wire.watch import LinkIn


def describe(authority: Authority, now: datetime) -> dict[str, Any]:
    """The federation at `now`, an aware time, without any secret."""
    server = authority.folder.parent / "server" / CERTIFICATE_FILE
    certificates = {"ca": authority.folder / CA_FILE} | ({"server": server} if server.exists() else {})
    return {
        "federation": authority.federation,
        "server": authority.server_url,
        "authority_fingerprint": fingerprint(authority.public_key),
        "roster": authority.roster.version,
        "members": [
            {"id": member.id, "name": member.name, "fingerprint": fingerprint(member.public_key)}
            for member in authority.roster.members
        ],
        "revoked": [{"id": member.id, "name": member.name} for member in authority.roster.revoked],
        "good_until": {what: _end(path) for what, path in certificates.items()},
        "warnings": [text for what, path in certificates.items() if (text := _warning(what, path, now))],
    }


def lines_of(content: Mapping[str, Any]) -> Iterator[str]:
    """The content as lines of text."""
    yield f"{the_federation(content['federation'])} at {content['server']}, roster {content['roster']}"
    yield f"authority    {content['authority_fingerprint']}"
    for member in content["members"]:
        yield f"{member['id']:6}  {member['name']:<24} {member['fingerprint']}"
    for member in content["revoked"]:
        yield f"{member['id']:6}  {member['name']:<24} revoked"
    for what, until in content["good_until"].items():
        yield f"certificate of the {what}: valid until {until}"
    for text in content["warnings"]:
        yield f"warning: {text}"


def _warning(what: str, path: Path, now: datetime) -> str:
    return warning(read_certificate(path), now, what=f"the certificate of the {what}")


def _end(path: Path) -> str:
    return read_certificate(path).not_valid_after_utc.date().isoformat()


Result = tuple[Mapping[str, Any], *tuple[str, ...]]
"""Values for JSON, then lines of text."""


def make_link(client: OperatorClient, label: str, days: int) -> Result:
    """A new link; raises ConfigurationError for a label that is empty, too long or not one line."""
    try:
        link = LinkIn(label=label, days=days)
    except ValidationError:
        raise ConfigurationError("--label must be one line of 1 to 100 characters") from None
    made = client.make_link(link)
    return (
        made.model_dump(mode="json"),
        made.url,
        f"  for {made.label}, valid until {made.expires.date()}; it is shown only once, and gives read-only access",
        f"  fedcore federation link --operator {client.kit.folder} --revoke {made.id}    revokes it",
    )


def list_links(client: OperatorClient) -> Result:
    """The valid links, without their tokens."""
    links = client.links()
    lines = [f"{link.id}  until {link.expires.date()}  {link.label}" for link in links.links]
    return (links.model_dump(mode="json"), *(lines or ["there is no link"]))


def revoke_link(client: OperatorClient, link: str) -> Result:
    """Revoke a link."""
    client.revoke_link(link)
    return ({"revoked": link}, f"the link {link} is revoked; everybody who used it is signed out")
