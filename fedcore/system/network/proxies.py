"""The proxy that the environment names, by HTTPS_PROXY, ALL_PROXY and NO_PROXY."""

from __future__ import annotations

import ipaddress
import urllib.request
from urllib.parse import urlsplit

import urllib3

from fedcore.errors import ConfigurationError


def proxy_of(server: str) -> urllib3.util.Url | None:
    """The proxy for a server; None for none. Raises ConfigurationError for one that is no HTTP proxy, or no address."""
    proxies, address = urllib.request.getproxies(), urlsplit(server).netloc
    named = proxies.get("https") or proxies.get("all")
    if not named or urllib.request.proxy_bypass(address):
        return None
    try:
        proxy = urllib3.util.parse_url(named if "://" in named else f"http://{named}")
    except urllib3.exceptions.LocationParseError:  # it may contain a password
        raise ConfigurationError(
            "the address of a proxy in the environment cannot be read: write HTTPS_PROXY=http://HOST:PORT, or "
            "http://USER:PASSWORD@HOST:PORT with what is special in the password percent-encoded (%2F for a slash)"
        ) from None
    if proxy.scheme not in ("http", "https"):  # its address may contain a password
        raise ConfigurationError(
            f"the environment names a proxy of the kind {proxy.scheme}; fedcore can use HTTP proxies: set HTTPS_PROXY, "
            "or NO_PROXY if the server is to be reached without one"
        )
    return proxy


def way_out(server: str) -> str | None:
    """The address of the proxy for a server, which may contain a password; None for none, and for the loopback."""
    proxy = _proxy_beyond_loopback(server)
    return proxy.url if proxy is not None else None


def name_of_way_out(server: str) -> str:
    """Host and port of the proxy for a server, without a password; empty for none, and for the loopback."""
    proxy = _proxy_beyond_loopback(server)
    return (proxy.netloc or "") if proxy is not None else ""


def is_loopback(url: str) -> bool:
    """Whether this is an address of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _proxy_beyond_loopback(server: str) -> urllib3.util.Url | None:
    return None if is_loopback(server) else proxy_of(server)
