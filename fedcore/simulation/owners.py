"""Who takes part in a simulation: keys, a roster, and owners with one policy."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from fedcore.federation import Member, Policy, Roster
from fedcore.federation.admission.app_agreement import AppAgreement
from fedcore.federation.admission.simulated import SimulatedOwners
from fedcore.federation.policy import ANY_MODEL
from fedcore.flower.app import AppBundle, FlowerApp
from fedcore.run.settings import JobSettings
from fedcore.wire.base import Scalar

FEDERATION = "simulation"
RUN = "simulation"


def client_name(client: int) -> str:
    """The name of a simulated client, as provisioning gives it."""
    return f"client-{client}"


def key_of(member: int, secret: bytes | None) -> Ed25519PrivateKey:
    """The key of a client, or with 0 that of the authority. secret: of a run that goes on, whose keys are the same."""
    if secret is None:
        return Ed25519PrivateKey.generate()
    return Ed25519PrivateKey.from_private_bytes(hmac.digest(secret, f"simulated key {member}".encode(), "sha256"))


def owners_of(
    app: FlowerApp,
    identities: Mapping[int, Ed25519PrivateKey],
    authority: Ed25519PrivateKey,
    policy: Policy | None,
    *,
    run_config: Mapping[str, Scalar],
    settings: JobSettings,
    from_app: bool = True,
) -> SimulatedOwners:
    """The owners of these clients. policy: as `Simulation` has it, None for the stock one with more freedom.

    from_app: whether the run begins with the app's own model.
    """
    public = {i: key.public_key().public_bytes_raw() for i, key in identities.items()}
    members = [Member(id=i, name=client_name(i), public_key=key) for i, key in public.items()]
    agreed = AppAgreement.of(app)
    if policy is None:
        agreed = replace(agreed, run_config=run_config, settings=settings)
        stock = Policy.default(len(members))
        least = min(stock.min_corrupt, settings.max_corrupt)
        policy = replace(stock, allow_plain=True, allow_buffered=True, min_corrupt=least, first_models=(ANY_MODEL,))
    return SimulatedOwners(
        roster=Roster.sign(FEDERATION, members, authority),
        policy=policy,
        app_sha256=AppBundle.from_folder(app.folder).sha256,
        agreed=agreed,
        from_app=from_app,
    )
