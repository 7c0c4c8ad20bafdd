"""The commands `fedcore federation ...`: create, admit, revoke, publish."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from fedcore.federation.authority import Authority
    from fedcore.federation.requests import JoinRequest
    from fedcore.wire.operator import RosterOut

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Make a federation whose clients keep their own keys; admit, revoke and list them.\n\n"
    "Example: fedcore federation create fed --host fl.example.org",
)

Federation = Annotated[
    Path, typer.Option(help="The authority's folder, or the federation's folder around it.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Publish = Annotated[
    Path | None,
    typer.Option(
        "--operator",
        help="An operator's kit: publish the new roster to the running server at once.",
        show_default=False,
    ),
]
_CONNECT_SECONDS = 30.0


@app.command()
def create(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to create.")],
    name: Annotated[
        str, typer.Option(help="Name of the federation.  \\[default: the folder's]", show_default=False)
    ] = "",
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the server, for its certificate; repeatable.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the server.  \\[default: 8443]")] = None,
    authority_key: Annotated[
        str,
        typer.Option(
            metavar="pkcs11:...",
            help="The URI of the authority's key in a token, which is made there if it is missing.",
            show_default=False,
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Make a federation that clients enrol in: its authority, its server and its operator, but no client keys.

    Example: fedcore federation create fed --host fl.example.org
    """
    from datetime import UTC, datetime

    from fedcore.federation import DEFAULT_HOSTS, DEFAULT_PORT, name_after
    from fedcore.federation import create as create_federation
    from fedcore.federation.authority import Authority
    from fedcore.federation.fingerprint import fingerprint
    from fedcore.monitoring.formatting import the_federation

    name = name or name_after(folder)
    made = create_federation(
        folder,
        name=name,
        now=datetime.now(UTC),
        hosts=host or DEFAULT_HOSTS,
        port=port or DEFAULT_PORT,
        authority_key=authority_key,
    )
    code = fingerprint(Authority.load(made.folder).public_key)
    _say(
        as_json,
        {"folder": str(folder), "federation": name, "server": made.server_url, "authority_fingerprint": code},
        f"made {the_federation(name)} in {folder}, without clients yet",
        f"  authority    {folder}/authority    keep it offline: it admits clients",
        f"  fingerprint  {code}    tell it to every client's owner",
        f"  server       {folder}/server       fedcore server --federation {folder}",
        f"  operator     {folder}/operator     fedcore run APP_DIR --operator {folder}/operator",
        f"  apps         the server runs only apps that its owner approves: fedcore server approve APP_DIR "
        f"--federation {folder}",
        "  clients      each runs: fedcore client enroll KIT --name NAME",
    )


@app.command()
def add(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of new clients.")],
    federation: Federation,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the kits.  \\[default: clients/ of the federation]")
    ] = None,
    operator: Publish = None,
    as_json: AsJson = False,
) -> None:
    """Make complete kits for new clients here, with their keys, and sign the next roster. For your own sites.

    Example: fedcore federation add client-5 --federation fed --operator fed/operator

    The maker of a kit could act as its client, so other organisations make their own keys (fedcore client enroll).
    """
    from fedcore.federation.authority import Authority
    from fedcore.federation.kits.ready_kits import add_clients

    authority = Authority.load(federation)
    authority, kits = add_clients(authority, names, out or authority.folder.parent / "clients")
    made = [{"name": kit.name, "id": kit.client_id, "kit": str(kit.folder)} for kit in kits]
    _say(
        as_json,
        {"roster": authority.roster.version, "added": made},
        *(f"{one['name']} is client {one['id']}: {one['kit']}" for one in made),
        _publish_or_say_how(authority, operator),
    )


@app.command()
def approve(
    requests: Annotated[list[Path], typer.Argument(metavar="REQUEST...", help="Files that clients sent.")],
    federation: Federation,
    fingerprint: Annotated[
        list[str] | None,
        typer.Option(
            metavar="F",
            help="A fingerprint that you have from a client's owner; repeatable. Without it the command asks you.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for admissions.  \\[default: next to each request]")] = None,
    operator: Publish = None,
    as_json: AsJson = False,
) -> None:
    """Admit clients, or replace their keys: sign the next roster, and write an admission file for each.

    Example: fedcore federation approve hospital-3.request.json --federation fed
    """
    from fedcore.federation.authority import Authority
    from fedcore.federation.files import replace_file
    from fedcore.federation.requests import ADMISSION_SUFFIX, JoinRequest

    authority = Authority.load(federation)
    joining = [JoinRequest.load(path) for path in requests]
    for request in joining:
        authority.known(request)
        _confirm(request, fingerprint or [])
    authority = authority.approve(joining)
    ids = {member.name: member.id for member in authority.roster.members}
    granted: list[dict[str, Any]] = []
    for path, request in zip(requests, joining, strict=True):
        granted.append({"name": request.name, "id": ids[request.name], "admission": None})
        if not request.replaces:  # a member has a kit, which follows the roster by itself
            target = (out or path.parent) / f"{request.name}{ADMISSION_SUFFIX}"
            replace_file(target, authority.admission(ids[request.name]).to_json())
            granted[-1]["admission"] = str(target)
    _say(
        as_json,
        {"roster": authority.roster.version, "granted": granted},
        *(_admission_line(**one) for one in granted),
        _publish_or_say_how(authority, operator),
    )


@app.command()
def revoke(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Members to revoke, permanently.")],
    federation: Federation,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    operator: Publish = None,
    as_json: AsJson = False,
) -> None:
    """Revoke members: sign the next roster without them. Their ids and names are never reused.

    Example: fedcore federation revoke hospital-2 --federation fed
    """
    from fedcore.federation.authority import Authority

    if not yes:
        typer.confirm(f"permanently revoke {', '.join(names)}?", abort=True, err=True)
    authority = Authority.load(federation).revoke(names)
    left = len(authority.roster.members)
    _say(
        as_json,
        {"roster": authority.roster.version, "revoked": names, "members": left},
        f"revoked {', '.join(names)}; {left} members remain",
        _publish_or_say_how(authority, operator),
    )


@app.command()
def publish(
    federation: Federation,
    operator: Annotated[
        Path, typer.Option(envvar="FEDCORE_OPERATOR", help="The operator's kit: token, CA and the server's address.")
    ],
    connect_seconds: Annotated[float, typer.Option(help="How long to try to reach the server.")] = _CONNECT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Upload the newest roster to the running server, which uses it from the next exchange on.

    Example: fedcore federation publish --federation fed --operator fed/operator
    """
    from fedcore.federation.authority import Authority

    answer = _publish(Authority.load(federation), operator, connect_seconds)
    _say(as_json, answer.model_dump(), _now_has(answer))


@app.command()
def link(
    operator: Annotated[
        Path, typer.Option(envvar="FEDCORE_OPERATOR", help="The operator's kit: token, CA and the server's address.")
    ],
    label: Annotated[str, typer.Option(help="Whom it is for; it appears in the list.")] = "read-only",
    days: Annotated[int, typer.Option(min=1, max=365, help="How long it is valid.")] = 30,
    listing: Annotated[bool, typer.Option("--list", help="List the valid links.")] = False,
    revoked: Annotated[
        str, typer.Option("--revoke", metavar="ID", help="Revoke a link, and sign out everybody who used it.")
    ] = "",
    connect_seconds: Annotated[float, typer.Option(help="How long to try to reach the server.")] = _CONNECT_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Make a link to the server's page for read-only access to runs and members.

    Example: fedcore federation link --operator fed/operator --label "the board" --days 7
    """
    from client_app.operator.client import operator_client
    from client_app.operator.federation_view import list_links, make_link, revoke_link

    with operator_client(operator, "", connect_seconds) as client:
        if revoked:
            result = revoke_link(client, revoked)
        elif listing:
            result = list_links(client)
        else:
            result = make_link(client, label, days)
    _say(as_json, *result)


@app.command()
def show(federation: Federation, as_json: AsJson = False) -> None:
    """List members, fingerprints, rosters, and when the certificates expire.

    Example: fedcore federation show --federation fed
    """
    from datetime import UTC, datetime

    from client_app.operator.federation_view import describe, lines_of
    from fedcore.federation.authority import Authority

    content = describe(Authority.load(federation), datetime.now(UTC))
    _say(as_json, content, *lines_of(content))


@app.command()
def renew(
    federation: Federation,
    certificate: Annotated[
        Path | None, typer.Option(help="The server's certificate.  \\[default: server/server.crt of the federation]")
    ] = None,
    host: Annotated[list[str] | None, typer.Option(help="New name or address of the server; repeatable.")] = None,
    as_json: AsJson = False,
) -> None:
    """Renew the server's certificate for a year, with the same key.

    Example: fedcore federation renew --federation fed

    A running server loads it at a SIGHUP, without a restart: systemctl reload, or kill -HUP.
    """
    from datetime import UTC, datetime

    from fedcore.federation.authority import Authority
    from fedcore.federation.kits.kits import CERTIFICATE_FILE

    authority = Authority.load(federation)
    path = certificate or authority.folder.parent / "server" / CERTIFICATE_FILE
    made = authority.renew(path, host or [], now=datetime.now(UTC))
    until = made.not_valid_after_utc.date().isoformat()
    _say(
        as_json,
        {"certificate": str(path), "good_until": until},
        f"{path} is valid until {until}; a running server loads it at a SIGHUP (systemctl reload, or kill -HUP)",
    )


def _confirm(request: JoinRequest, fingerprints: list[str]) -> None:
    """Check the key against the fingerprint from its owner; raises KitError, or ends the command."""
    from fedcore.federation.fingerprint import check_fingerprint, fingerprint

    what = f"{request.name}, who asks to {'replace its key' if request.replaces else 'join'},"
    if fingerprints:
        check_fingerprint(request.public_key, fingerprints, what)
        return
    typer.echo(f"{what} has a key with the fingerprint\n  {fingerprint(request.public_key)}", err=True)
    typer.confirm(
        "is this the fingerprint that its owner gave you over a channel that you trust?", abort=True, err=True
    )


def _admission_line(name: str, id: int, admission: str | None) -> str:
    return f"{name} is client {id}; " + (f"send back {admission}" if admission else "its new key is on the roster")


def _publish(authority: Authority, operator: Path, connect_seconds: float = _CONNECT_SECONDS) -> RosterOut:
    from client_app.operator.client import OperatorClient
    from fedcore.federation import OperatorKit

    with OperatorClient(OperatorKit.load(operator), connect_seconds=connect_seconds) as client:
        return client.publish(authority.rosters)


def _now_has(answer: RosterOut) -> str:
    waits = "" if answer.roster == answer.newest else "; it takes effect when the open exchange ends"
    return f"the server has roster {answer.newest}{waits}"


def _publish_or_say_how(authority: Authority, operator: Path | None) -> str:
    """Publish the roster if an operator's kit was named; otherwise say how."""
    copy = authority.leave_at_server()
    if operator is not None:
        return _now_has(_publish(authority, operator))
    saved = f", and in {copy} for the server's next start" if copy is not None else ""
    return (
        f"roster {authority.roster.version} is signed{saved}; a running server gets it with: "
        f"fedcore federation publish --federation {authority.folder} --operator OPERATOR_KIT"
    )


def _say(as_json: bool, content: Mapping[str, Any], *lines: str) -> None:
    typer.echo(json.dumps(content, indent=2) if as_json else "\n".join(lines))
