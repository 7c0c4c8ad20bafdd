"""Ranks: the processes that run the owner's ClientApp, on one machine or several, and what keeps them alive.

To import torch and an app, open its data set and find the other ranks takes seconds, a small round takes less. So
ranks stay: they start once, are asked one task after another, and keep what the app keeps. Between two tasks they
wait in a read, never in a collective, which would take a core and have a deadline.

Ranks that train together fail together, since nobody can finish a collective without the others. The first failure
ends all of them, whatever they are doing, and new ones start in the background while the agent tells the server.
Which failure was the first is not what is seen first: a rank that merely lost its peer often says so before the
peer's end is noticed.

A group (`group`) has one of two drivers. On one machine the agent starts every process and sees it end (`supervisor`,
`rank`). On several, torchrun starts them on each machine (`elastic`, `elastic_rank`), and a store tells all of them
of a failure (`rendezvous`). Both sides speak the messages of `messages`; what goes wrong has the names of `failures`.
"""
