"""An identity provider as a process: oidc-provider-mock, which here also checks PKCE and knows the device flow.

    python -m support.oidc_provider PORT

Users are `ada` and `bob`, operators, `eve`, a viewer, and `joe`, who is neither. Their roles lie where Keycloak has
them.
`POST /confirm?user_code=...&sub=ada` stands for what a person does in a browser with the code of a device.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import sys
import time
from typing import Any

CLIENT = "fedcore"
ROLES = {"ada": ["operate"], "bob": ["operate", "uma_authorization"], "eve": ["watch"], "joe": []}
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


def make_app() -> Any:
    """The WSGI application."""
    import flask
    from joserfc import jwt
    from joserfc.jwk import RSAKey
    from oidc_provider_mock import User, app

    users = [
        User(sub=sub, claims={"preferred_username": sub, "realm_access": {"roles": roles}})
        for sub, roles in ROLES.items()
    ]
    made = app(user_claims=users, issue_refresh_token=False)
    challenges: dict[str, str] = {}
    devices: dict[str, dict[str, str]] = {}

    @made.before_request
    def check_pkce() -> Any:
        request = flask.request
        if request.path == "/oauth2/authorize":
            assert request.args["code_challenge_method"] == "S256"
            challenges[request.args["redirect_uri"]] = request.args["code_challenge"]
        if request.path != "/oauth2/token":
            return None
        if request.form["grant_type"] == DEVICE_GRANT:
            return device_token()
        digest = hashlib.sha256(request.form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        assert challenge == challenges[request.form["redirect_uri"]]
        return None

    def device_token() -> Any:
        from oidc_provider_mock._storage import storage

        device = next(one for one in devices.values() if one["device_code"] == flask.request.form["device_code"])
        if "sub" not in device:
            return flask.jsonify({"error": "authorization_pending"}), 400
        user, now = storage.get_user(device["sub"]), int(time.time())
        assert user is not None
        claims = {"iss": flask.request.host_url.rstrip("/"), "aud": device["client_id"], "sub": user.sub, "iat": now}
        key = RSAKey.import_key(storage.jwk.as_dict(is_private=True))
        token = jwt.encode({"alg": "RS256", "kid": key.thumbprint()}, {**claims, "exp": now + 60, **user.claims}, key)
        return flask.jsonify({"token_type": "Bearer", "access_token": "opaque", "id_token": token})

    @made.post("/device")
    def device() -> Any:
        made_up = {"device_code": secrets.token_hex(8), "user_code": secrets.token_hex(2)}
        devices[made_up["user_code"]] = {**made_up, "client_id": flask.request.form["client_id"]}
        page = flask.request.host_url + "confirm"
        return flask.jsonify({**made_up, "verification_uri": page, "expires_in": 600, "interval": 1})

    @made.post("/confirm")
    def confirm() -> str:
        devices[flask.request.args["user_code"]]["sub"] = flask.request.args["sub"]
        return "confirmed"

    @made.after_request
    def name_device_flow(response: Any) -> Any:
        if flask.request.path == "/.well-known/openid-configuration":
            document = response.get_json()
            document["device_authorization_endpoint"] = flask.request.host_url + "device"
            response.set_data(flask.json.dumps(document))
        return response

    return made


def main() -> None:
    os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
    from werkzeug.serving import make_server

    make_server("127.0.0.1", int(sys.argv[1]), make_app(), threaded=True).serve_forever()


if __name__ == "__main__":
    main()
