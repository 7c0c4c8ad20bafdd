"""The commands `fedcore login` and `fedcore logout`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

Kit = Annotated[
    Path, typer.Option("--operator", help="The operator's kit; it needs no file token.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def login(operator: Kit, as_json: AsJson = False) -> None:
    """Sign in at the identity provider of the server's institution, by a code that you confirm in a browser.

    Example: fedcore login --operator fed/operator

    The commands that work with this kit then use the session, which lies in its file `session`, until it ends. A
    program sets the variable FEDCORE_TOKEN instead, to a token of the identity provider or of the operator.
    """
    from client_app.operator.login.signing_in import sign_in
    from fedcore.wire.base import moment

    known = sign_in(operator, lambda line: typer.echo(line, err=True))
    expires = moment(known.expires.timestamp()) if known.expires is not None else ""
    if as_json:
        typer.echo(json.dumps({"person": known.person, "role": known.role.value, "expires": expires}))
    else:
        typer.echo(f"signed in as {known.person}, {known.role.value} of {known.federation}, until {expires}")


def logout(operator: Kit) -> None:
    """End the session that `fedcore login` began.

    Example: fedcore logout --operator fed/operator
    """
    from client_app.operator.login.signing_in import sign_out

    typer.echo("signed out" if sign_out(operator) else "nobody was signed in with this kit")
