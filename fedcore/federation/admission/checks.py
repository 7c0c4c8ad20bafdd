"""The checks of admission, by their fixed names, which a client tells its server.

They come before the protocol starts, whose own are in `fedcore.secagg.Check`:

| check                   | stops                                                                          |
| ----------------------- | ------------------------------------------------------------------------------ |
| app-mismatch            | running an app that the owner did not install                                  |
| config-not-allowed      | a question in a number: config or settings other than the app's (`app_agreement`) |
| message-not-allowed     | the same in a message, under a key for which the owner has a rule (`app_agreement`) |
| model-too-large         | a model that fills the disk                                                    |
| too-many-tensors        | an encoding that takes for ever to read                                        |
| too-long                | local work without an end                                                      |
| too-short               | a time that only the quick can keep, to see who is left out of the sum         |
| too-many-exchanges      | being asked until something is known, in a run or in a day                     |
| too-many-releases       | the same of one model and purpose (`releases`)                                 |
| tree-too-deep           | sums of nodes that many conditions single out                                  |
| node-too-small          | the same, in a run whose settings let a node hold few rows                     |
| not-planned             | a query that is not in the study plan of the app, or not so often (`app_agreement`) |
| other-question          | a second question about a model: another message, weight, setting (`question`)  |
| weight-key              | a weight that the server chooses: zero for all but one client, say             |
| model-not-canonical     | one model under many hashes, by what a file says next to its tensors            |
| other-layout            | the same by other names, another order or a tensor that nobody uses (`first_model`) |
| differencing            | sums from one model that together tell the sum of a few clients                |
| first-model             | a run that begins with a model that somebody crafted (`first_model`)           |
| plain-not-allowed       | sending an update that the server can read                                     |
| buffered-not-allowed    | summing updates that began from different models                                |
| version-fork            | two models under one number, or a number that no sum led to                     |
| privacy-required        | a sum without noise, where the owner insists on differential privacy           |
| noise-shares            | noise that is shared out among more clients than a sum is sure to have         |
| too-little-noise        | one exchange that alone reveals more than the owner allows                     |
| privacy-budget          | an exchange that would make all of them together reveal more than that         |
| own-id-missing          | a task for a cohort without this client                                        |
| duplicate-id            | one client that counts as two                                                  |
| roster-rollback         | an exchange under an older roster, on which a revoked client may still stand    |
| roster-gap              | an exchange under a roster that the server does not show                       |
| off-roster              | a cohort with clients that the federation's authority never signed             |
| cohort-below-minimum    | a sum over so few clients that it tells too much                               |
| threshold-below-minimum | a threshold below the owner's                                                  |
| corrupt-below-minimum   | a round that withstands fewer colluding clients than the owner demands         |
| agreement-not-allowed   | a key agreement that a later quantum computer could open                       |
| bad-parameters          | parameters that contradict each other, such as 2t <= n                         |
| encoding-refused        | an encoding that is none, that could wrap, or for fewer clients than the cohort |
| encoding-off-settings   | an encoding or noise that does not follow from the settings of the run         |
| scales-off-rule         | the same update asked for at scales of the server's choice, or small tensors apart|
| layout-mismatch         | an encoding for another model than the one that was sent                       |
| model-missing           | training without a model                                                       |
| message-missing         | a plain exchange without a message                                             |
| model-digest            | another model than the announced one                                           |
| model-malformed         | a model that is no safetensors file                                            |
| buffer-off-settings     | updates that are too old, or a buffer where the settings have none, or none     |
| start-mismatch          | an update that is said to begin from another model than it did                 |
| update-reused           | an update of a buffer in a second sum (`releases`)                             |
| wrong-group             | a group that the server chose, or a training in one sum where groups are agreed |
| too-many-draws          | draws, one after the other, until the groups are as the server likes them      |
| exchange-reused         | a second time in one exchange (`client_app.records.ledger`)                            |

How the local work failed has fixed names too: `client_app.ranks.failures`.
"""

from __future__ import annotations

from typing import Final

APP_MISMATCH: Final = "app-mismatch"
CONFIG_NOT_ALLOWED: Final = "config-not-allowed"
MESSAGE_NOT_ALLOWED: Final = "message-not-allowed"
MODEL_TOO_LARGE: Final = "model-too-large"
TOO_MANY_TENSORS: Final = "too-many-tensors"
TOO_LONG: Final = "too-long"
TOO_SHORT: Final = "too-short"
TOO_MANY_EXCHANGES: Final = "too-many-exchanges"
TOO_MANY_RELEASES: Final = "too-many-releases"
TREE_TOO_DEEP: Final = "tree-too-deep"
NODE_TOO_SMALL: Final = "node-too-small"
NOT_PLANNED: Final = "not-planned"
OTHER_QUESTION: Final = "other-question"
WEIGHT_KEY: Final = "weight-key"
MODEL_MALFORMED: Final = "model-malformed"
MODEL_NOT_CANONICAL: Final = "model-not-canonical"
OTHER_LAYOUT: Final = "other-layout"
DIFFERENCING: Final = "differencing"
FIRST_MODEL: Final = "first-model"
PLAIN_NOT_ALLOWED: Final = "plain-not-allowed"
BUFFERED_NOT_ALLOWED: Final = "buffered-not-allowed"
VERSION_FORK: Final = "version-fork"
PRIVACY_REQUIRED: Final = "privacy-required"
NOISE_SHARES: Final = "noise-shares"
TOO_LITTLE_NOISE: Final = "too-little-noise"
PRIVACY_BUDGET: Final = "privacy-budget"
CORRUPT_BELOW_MINIMUM: Final = "corrupt-below-minimum"
AGREEMENT_NOT_ALLOWED: Final = "agreement-not-allowed"
ENCODING_OFF_SETTINGS: Final = "encoding-off-settings"
SCALES_OFF_RULE: Final = "scales-off-rule"
BUFFER_OFF_SETTINGS: Final = "buffer-off-settings"
START_MISMATCH: Final = "start-mismatch"
UPDATE_REUSED: Final = "update-reused"
