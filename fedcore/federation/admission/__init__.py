"""Admission: the checks of a task by a client's owner that need no network, shared by the agent and the simulator.

`admit` is the way in. `tasks` checks a task against the installed app, the owner's policy and the roster,
`app_agreement` what a run changes of an app, `releases` whether sums together tell too much; `owner` is a client as
they see it. No check depends on a number that the client's data decides.
"""
