"""What `fedcore federation link` does: read-only links to the server's page, made, listed and revoked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from client_app.operator.client import OperatorClient
from fedcore.errors import ConfigurationError
from fedcore.wire.watch import LinkIn

Told = tuple[Mapping[str, Any], *tuple[str, ...]]
"""As JSON, and as lines."""


def make_link(client: OperatorClient, label: str, days: int) -> Told:
    """A new link; raises ConfigurationError for a label that is empty, too long or not one line."""
    try:
        asked = LinkIn(label=label, days=days)
    except ValidationError:
        raise ConfigurationError("--label takes a line of 1 to 100 letters") from None
    made = client.make_link(asked)
    return (
        made.model_dump(mode="json"),
        made.url,
        f"  for {made.label}, good until {made.expires.date()}; it is shown this once, and whoever has it may look",
        f"  fedcore federation link --operator {client.kit.folder} --revoke {made.id}    ends it",
    )


def list_links(client: OperatorClient) -> Told:
    """The links that are good, without their tokens, which nobody has but who was given them."""
    found = client.links()
    lines = [f"{link.id}  until {link.expires.date()}  {link.label}" for link in found.links]
    return (found.model_dump(mode="json"), *(lines or ["there is no link"]))


def revoke_link(client: OperatorClient, link: str) -> Told:
    """End a link."""
    client.revoke_link(link)
    return ({"revoked": link}, f"the link {link} is good no more; whoever came by it is signed out")
