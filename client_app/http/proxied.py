"""Connections of httpx through the proxies of the environment."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

import httpx

from fedcore.system.network.proxies import way_out


def proxies_for(servers: Sequence[str], tls: ssl.SSLContext) -> dict[str, httpx.BaseTransport | None]:
    """Of the addresses that the environment names a proxy for, what sends requests there (`mounts` of httpx)."""
    return {
        server: httpx.HTTPTransport(verify=tls, proxy=proxy)
        for server in servers
        if (proxy := way_out(server)) is not None
    }
