"""Exchanges: one cohort, one sum. Their stages, the updates that come in, and the two kinds, secure and plain.

`Exchange.run` leads an exchange through its stages: begin a stage, wait, close it, go on. It waits until every client
that is still there has answered, or the time is up, or so few are left that no sum can come of it. A plain exchange has
one stage, `input`; a secure one has those of the protocol, and drives its state machine, `fedcore.secagg.ServerRound`.
Between two stages the change is recorded by compare-and-swap, and waiting clients are woken.

Each client has one of six standings (`stages.py`), and `Participants` is their only owner. What makes them necessary is
the moment in which an update is taken: that lasts as long as a disk and a large addition do, and the client may vanish
meanwhile. From its admission on, an update counts whatever becomes of its client, since nobody can take half a vector
out of a sum again; so the stage does not end over an admitted client, and one that leaves while its vector is added is
a survivor that will not answer any more. The protocol hears of losses in one place, just before its stage closes.

The receipt comes before the sum. A client that gets no answer sends the same again, and the server tells a repetition
by the receipt. Were the vector added first and its receipt then refused by a full disk, the repetition would add it a
second time: a wrong model that nobody notices. This way round the client sends only the manifest again, and nothing has
been added. Where adding itself fails half way the sum is spoilt, and with it the exchange, which is tried again.

Control messages are checked and taken over at once and get their receipt then; to do one of them twice changes nothing.
"""
