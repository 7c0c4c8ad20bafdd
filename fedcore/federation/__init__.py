"""Who belongs to a federation and how each party proves it: the authority, the signed roster, and the kits.

Secure aggregation is only as good as the identity keys behind it: a server that could invent clients would need only
one honest client in a cohort to read its update. So membership is not the server's to decide. An authority, whose key
stays offline, signs the roster: the list of clients with their Ed25519 identity keys. Every party checks that signature
for itself, and every round is bound to the roster's hash. The signature covers a canonical binary form, not the JSON
text. Who joins, leaves or changes a key makes a new version of the roster, which names the one before, and a party
accepts only the successor of the one that it knows (`roster`, `chain`, `membership`).

`create` makes the authority's folder and the kits of the server and the operator; clients make their own keys and
enrol. `provision` makes all of it at once, with a ready kit for each client, for trying things out. `kits` reads a kit
and refuses one that is incomplete, altered or readable by other users. A client's kit holds its owner's policy: what
the owner insists on, whatever a server says.
"""

from fedcore.federation.kits.kits import ClientKit, OperatorKit, ServerKit
from fedcore.federation.kits.provision import DEFAULT_HOSTS, DEFAULT_PORT, FederationFolder, create, provision
from fedcore.federation.policy import TWO_TELL_EACH_OTHER, Policy
from fedcore.federation.roster import Member, Roster, name_after

__all__ = [
    "DEFAULT_HOSTS",
    "DEFAULT_PORT",
    "TWO_TELL_EACH_OTHER",
    "ClientKit",
    "FederationFolder",
    "Member",
    "OperatorKit",
    "Policy",
    "Roster",
    "ServerKit",
    "create",
    "name_after",
    "provision",
]
