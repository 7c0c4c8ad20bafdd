"""`fedcore federation link`: a read-only link is made, listed, used and revoked."""

from __future__ import annotations

import pytest
from support.members import Failure
from support.operator import operate
from support.serverside import Site

from client_app.operator.federation_view import list_links, make_link, revoke_link
from fedcore.errors import ConfigurationError, FedcoreError
from tests.support.raising import raises


async def test_a_link_is_made_used_and_revoked(here: Site) -> None:
    content, url, until, how = await operate(here, lambda client: make_link(client, "the board", 7))
    assert url == content["url"]
    assert "for the board, valid until 20" in until
    viewer = await here.sign_in(url.partition("#view=")[2])
    content, line = await operate(here, list_links)
    (listed,) = content["links"]
    assert line.split()[0] == listed["id"]
    assert line.endswith("the board")
    assert "token" not in listed
    assert how.split("--revoke ")[1].split()[0] == listed["id"]
    _, said = await operate(here, lambda client: revoke_link(client, listed["id"]))
    assert "signed out" in said
    with pytest.raises(Failure, match="401"):
        await here.signed_in(viewer, "GET", "/v1/runs")
    assert (await operate(here, list_links))[1] == "there is no link"


@pytest.mark.parametrize("link", ["unknown", "../runs"])
async def test_a_link_that_is_not_there_is_no_link(here: Site, link: str) -> None:
    with raises(FedcoreError, kind="not-found"):
        await operate(here, lambda client: revoke_link(client, link))


@pytest.mark.parametrize("label", ["", " ", "a" * 101, "two\nlines"])
async def test_a_label_is_one_line(here: Site, label: str) -> None:
    with pytest.raises(ConfigurationError, match="--label"):
        await operate(here, lambda client: make_link(client, label, 7))
