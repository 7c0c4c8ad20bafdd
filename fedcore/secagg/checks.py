"""The fixed names of the protocol's checks.

A failed check is `ProtocolViolation(check=<name>)`; the names are part of the public interface, because logs, the
audit trail and tests refer to them.

| check                    | made by        | stops                                                          |
| ------------------------ | -------------- | -------------------------------------------------------------- |
| key-substitution         | client, server | keys that their owner did not sign for this very round, model  |
|                          |                | and parameters                                                 |
| own-entry-altered        | client         | a cohort list in which one's own keys are others, or missing   |
| duplicate-key            | client, server | one public key used for two purposes or by two clients         |
| low-order-point          | client, server | a public key that makes every agreement zero                   |
| bad-parameters           | client         | a proposal whose parameters contradict each other              |
| cohort-below-minimum     | client         | a cohort so small that the sum tells too much                  |
| threshold-below-minimum  | client         | a threshold below what the client's owner allows               |
| second-cohort            | client         | a second, different list of keys                               |
| second-delivery          | client         | a second, different set of sharers                             |
| second-survivor-set      | client         | a second, different set of survivors                           |
| second-unmask            | client         | a second, different request for shares                         |
| inconsistent-survivors   | client, server | survivors on which fewer than a quorum of clients agree        |
| signer-not-survivor      | client         | signatures of clients outside the survivors                    |
| share-unsealing          | client         | shares or secrets of another round, cohort, sender or receiver |
| uncommitted-share        | client         | a share that is none, or another than its dealer committed to  |
| unsigned-dealing         | client         | shares that their dealer did not sign, or keys that it did not |
|                          |                | prove to have: no reason to accuse anybody                     |
| shares-for-both          | server         | shares of both secrets of one client                           |
| wrong-neighbours         | client         | the keys of clients that the graph does not make neighbours    |
| holders-below-threshold  | client         | sharers among whom too few hold shares of this client's        |
|                          |                | secrets: none would be left whose masks hide its vector        |
| wrong-recipients         | client, server | shares missing, or for someone who must not have one           |
| own-id-missing           | client         | a set of clients that leaves out the one that is asked         |
| sharers-not-advertised   | client         | a sharer whose keys nobody has checked                         |
| survivors-not-sharers    | client         | a survivor with whom no pairwise mask exists                   |
| off-roster               | client, server | an id that is not on the roster or was not asked this round    |
| duplicate-id             | client         | one client counted twice                                       |
| late-input               | server         | a masked vector of a client that was declared dropped          |
| dropped-client           | server         | any other message of a client that was declared dropped        |
| out-of-order             | server         | a message that belongs to another stage                        |
| malformed                | client, server | sizes, types and ranges that no honest party sends             |

Two different uploads of one client are a `ConflictingMessage`. A client that restarts cannot resume its round:
every session draws fresh keys and cannot be stored or copied.

A client that cheats in a way that can be proved is named by `ServerRound.blamed`, under a fixed reason (`Fault`):

| reason               | what the client did                                                                  |
| -------------------- | ------------------------------------------------------------------------------------ |
| wrong-share          | released another share than the one that its dealer committed to                     |
| inconsistent-dealing | dealt shares that are none, are not those that it committed to, or do not lead back  |
|                      | to the secret that it published                                                      |
| sealed-garbage       | signed a sealed text that its receiver cannot open                                   |
| key-off-curve        | advertised a point of the curve's twist, about whose agreements nothing can be proved |
| unsigned-dealing     | sent shares under a signature that is none, or no proof that it has its keys         |
| false-complaint      | accused a client that sealed what it should, or without proof                        |
| malformed-message    | sent what no honest client sends                                                     |
| norm-proof           | masked an update that is longer than the bound, or does not prove that it is not      |
"""

from __future__ import annotations

from enum import StrEnum


class Check(StrEnum):
    """A name out of the table above."""

    KEY_SUBSTITUTION = "key-substitution"
    OWN_ENTRY_ALTERED = "own-entry-altered"
    DUPLICATE_KEY = "duplicate-key"
    LOW_ORDER_POINT = "low-order-point"
    BAD_PARAMETERS = "bad-parameters"
    COHORT_BELOW_MINIMUM = "cohort-below-minimum"
    THRESHOLD_BELOW_MINIMUM = "threshold-below-minimum"
    SECOND_COHORT = "second-cohort"
    SECOND_DELIVERY = "second-delivery"
    SECOND_SURVIVOR_SET = "second-survivor-set"
    SECOND_UNMASK = "second-unmask"
    INCONSISTENT_SURVIVORS = "inconsistent-survivors"
    SIGNER_NOT_SURVIVOR = "signer-not-survivor"
    SHARE_UNSEALING = "share-unsealing"
    UNCOMMITTED_SHARE = "uncommitted-share"
    UNSIGNED_DEALING = "unsigned-dealing"
    SHARES_FOR_BOTH = "shares-for-both"
    WRONG_NEIGHBOURS = "wrong-neighbours"
    HOLDERS_BELOW_THRESHOLD = "holders-below-threshold"
    WRONG_RECIPIENTS = "wrong-recipients"
    OWN_ID_MISSING = "own-id-missing"
    SHARERS_NOT_ADVERTISED = "sharers-not-advertised"
    SURVIVORS_NOT_SHARERS = "survivors-not-sharers"
    OFF_ROSTER = "off-roster"
    DUPLICATE_ID = "duplicate-id"
    LATE_INPUT = "late-input"
    DROPPED_CLIENT = "dropped-client"
    OUT_OF_ORDER = "out-of-order"
    MALFORMED = "malformed"


class Fault(StrEnum):
    """What a client is blamed for; a name out of the second table above."""

    WRONG_SHARE = "wrong-share"
    INCONSISTENT_DEALING = "inconsistent-dealing"
    SEALED_GARBAGE = "sealed-garbage"
    KEY_OFF_CURVE = "key-off-curve"
    UNSIGNED_DEALING = "unsigned-dealing"
    FALSE_COMPLAINT = "false-complaint"
    MALFORMED_MESSAGE = "malformed-message"
    NORM_PROOF = "norm-proof"
