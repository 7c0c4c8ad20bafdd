"""The fixed names of the protocol's checks.

A failed check is `ProtocolViolation(check=<name>)`; the names are part of the public interface, because logs, the
audit trail and tests refer to them. The last column is the case of PROTOCOL.md, "What must be tested".

| check                    | made by        | stops                                                          | case    |
| ------------------------ | -------------- | -------------------------------------------------------------- | ------- |
| key-substitution         | client, server | keys that their owner did not sign for this very round, model  | 1, 3, 6 |
|                          |                | and parameters                                                 |         |
| own-entry-altered        | client         | a cohort list in which one's own keys are others, or missing   | 1       |
| duplicate-key            | client         | one public key used for two purposes or by two clients         | 1       |
| low-order-point          | client, server | a public key that makes every agreement zero                   | 1       |
| bad-parameters           | client         | a proposal whose parameters contradict each other              | 4       |
| cohort-below-minimum     | client         | a cohort so small that the sum tells too much                  | 4       |
| threshold-below-minimum  | client         | a threshold below what the client's owner allows               | 4       |
| second-cohort            | client         | a second, different list of keys                               | 2, 5    |
| second-delivery          | client         | a second, different set of sharers                             | 2, 5    |
| second-survivor-set      | client         | a second, different set of survivors                           | 2, 5    |
| second-unmask            | client         | a second, different request for shares                         | 5       |
| inconsistent-survivors   | client, server | survivors on which fewer than a quorum of clients agree        | 2       |
| signer-not-survivor      | client         | signatures of clients outside the survivors                    | 2       |
| share-unsealing          | client         | shares or secrets of another round, cohort, sender or receiver | 6       |
| shares-for-both          | server         | shares of both secrets of one client                           | 5       |
| wrong-neighbours         | client         | the keys of clients that the graph does not make neighbours    | 1       |
| holders-below-threshold  | client         | sharers among whom too few hold shares of one's own secrets:   | 4       |
|                          |                | none would be left whose masks hide one's vector               |         |
| wrong-recipients         | client, server | shares missing, or for someone who must not have one           | 8, 14   |
| own-id-missing           | client         | a set of clients that leaves out the one that is asked         | 8       |
| sharers-not-advertised   | client         | a sharer whose keys nobody has checked                         | 8       |
| survivors-not-sharers    | client         | a survivor with whom no pairwise mask exists                   | 8       |
| off-roster               | client, server | an id that is not on the roster or was not asked this round    | 8       |
| duplicate-id             | client         | one client counted twice                                       | 8       |
| late-input               | server         | a masked vector of a client that was declared dropped          | 7       |
| dropped-client           | server         | any other message of a client that was declared dropped        | 7       |
| out-of-order             | server         | a message that belongs to another stage                        | 14      |
| malformed                | client, server | sizes, types and ranges that no honest party sends             | 14      |

Two uploads of one client (case 9) are a `ConflictingMessage`; a wrong share (case 10) is named in
`ServerRound.bad_share_senders` and is no violation, since the round goes on. Case 13 is met by construction: every
session draws fresh keys and cannot be stored or copied. Cases 11 and 12 belong to the codec.
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
