"""What runs at a site that has data, and the operator's `fedcore run` (`client_app.operator`).

An agent is one member of a federation: it holds the member's keys, makes outgoing requests only, and takes part in
one exchange after another. What it may be asked to do is not for the server to say. The owner's policy, the roster
that the federation's authority signed, and the agent's own ledger decide (`admission`, `eligibility`, `ledger`); the
server is a peer that may err or lie, and each refusal has a fixed name.

The ClientApp is the user's code, and user code never runs where keys are: it could read them, and with the masks the
update that they hide. So it runs in processes of its own (`ranks`), which get a task and a model file and give back
another file. The agent encodes, masks and uploads that file itself (`exchange`, `upload`).

What must not happen twice is written down before it happens once. A client that released its shares for two different
sets of survivors would let a server take the masks off single updates; so the ledger is on the disk before the first
byte is on the wire, and a client that was restarted in the middle of an exchange is a dropout of it.
"""
