"""Identities and files of a federation: provisioning, the signed roster, everybody's kits."""

from fedcore.federation.kits import ClientKit, OperatorKit, Policy, ServerKit
from fedcore.federation.provision import DEFAULT_HOSTS, DEFAULT_PORT, Federation, provision
from fedcore.federation.roster import Member, Roster

__all__ = [
    "DEFAULT_HOSTS",
    "DEFAULT_PORT",
    "ClientKit",
    "Federation",
    "Member",
    "OperatorKit",
    "Policy",
    "Roster",
    "ServerKit",
    "provision",
]
