"""Checks of a task against its owner's policy, without a network; agent and simulator share them.

`tasks` holds the checks of one task against the app that is installed, the owner's policy and the roster; `agreed` what
a run may change of an app; `releases` which sums together tell too much; `owner` what all of them need of a client.
Nothing here asks for a number that the client's data decides.
"""
