"""The settings files of the kits as they are first written; policy.toml is in `policy_text`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fedcore.federation.approval import APPROVED_FILE
from fedcore.federation.kits.kits import AUTHORITY_FILE, ROSTERS_FILE
from fedcore.flower.node.keys import NodeKeys, node_lines
from fedcore.monitoring.formatting import the_federation
from fedcore.wire.base import Scalar

_SEVERAL: Final = """\
# If a federation has several servers, they are tried in this order:
# servers = ["https://other.example.org:8443"]
"""


def server_text(name: str, *, bind: str, port: int, min_cohort: int, approve_apps: str) -> str:
    """server.toml."""
    return f"""\
# The server of {the_federation(name)}. Paths are relative to this file.
federation = "{name}"
# The address and port to listen on; "0.0.0.0" is every IPv4 address of this machine, "::" every address.
host = "{bind}"
port = {port}
# The address at which people reach the page, for the links that the server makes, such as "https://fl.example.org";
# "" for the one that they use themselves, if the certificate names it.
public-url = ""
# The address of this very server as it stands in the clients' client.toml, such as "https://a.example.org:8443", if
# several share a database: those that stand by name the leader's to clients. `fedcore server --address` counts first.
address = ""
tls-certificate = "server.crt"
tls-key = "server.key"
# Who belongs to the federation: all versions, signed by its authority. A running server adds those that it is handed.
rosters = "{ROSTERS_FILE}"
authority = "{AUTHORITY_FILE}"
# The SHA-256 of the token in the operator's folder; the token itself is not kept here.
operator-token-sha256 = "operator_token.sha256"
# The fewest clients of a secure sum in addition to those that may collude with the server, as policy.toml says at
# every client: a run waits for so many, and for as many more as may collude. If an owner asks for more, say so here.
min-cohort = {min_cohort}
# Which apps the operator may run here, as code on this machine: "listed" for those that `fedcore server approve` put
# into the file {APPROVED_FILE}, "any" for all, which is for trying things out.
approve-apps = "{approve_apps}"
# A ServerApp runs without this process's variables, files and network. What it may have nevertheless: variables by
# name, files and folders to read. false takes the sandbox away, to look for a fault. If root starts the server,
# app-user names the user that a ServerApp runs as; "" for root with few of its rights.
app-env = []
app-read = []
app-sandbox = true
app-user = ""
# Uploads in progress, models and the journal of runs.
data-dir = "data"
# The database: "" for SQLite in the data folder, or postgresql+psycopg://USER@HOST/NAME, which several servers may
# share. One with a password belongs into the variable FEDCORE_DATABASE, which counts before this line.
database = ""
# Where models and updates go: "" for the data folder, a folder, or s3://BUCKET/PREFIX; servers that share a database
# share it too.
objects = ""
# Where Prometheus reads the metrics, such as "127.0.0.1:9464"; "" for nowhere. Anybody who can connect may read them.
metrics-listen = ""
# Where spans of rounds go by OTLP over HTTP, such as "http://127.0.0.1:4318/v1/traces"; "" for nowhere.
traces = ""
"""


def operator_text(name: str, server_url: str) -> str:
    """operator.toml."""
    return f"""\
# The operator of {the_federation(name)}: submits runs and follows them.
# The file token is a secret.
federation = "{name}"
server-url = "{server_url}"
{_SEVERAL}"""


def authority_text(name: str, server_url: str) -> str:
    """federation.toml, the authority's own."""
    return f"""\
# The authority of {the_federation(name)}. authority.key signs its rosters, ca.key the server's certificate: both are
# secrets, and neither is needed while the federation runs.
federation = "{name}"
# The server's address for new clients.
server-url = "{server_url}"
"""


def client_text(
    name: str,
    client_id: int,
    client: str,
    server_url: str,
    node_config: Mapping[str, Scalar],
    keys: NodeKeys = MappingProxyType({}),
) -> str:
    """client.toml.

    Args:
        name: of the federation.
        client_id: of the client.
        client: its name.
        server_url: where the server is.
        node_config: what the app gets, by key.
        keys: what the site's app asks for: comments say it, and those that are not set yet are to be filled in.
    """
    return f"""\
# Client {client_id} of {the_federation(name)}. Only identity.key is a secret.
federation = "{name}"
client-id = {client_id}
name = "{client}"
server-url = "{server_url}"
{_SEVERAL}
# What the app sees as context.node_config: where this site's own data are, as the app's README says, for example
# csv = "/srv/data/patients.csv"
[node-config]
{node_lines(keys, node_config)}"""
