"""Exchanges: one cohort, one sum. Their stages, the updates that come in, and the two kinds, secure and plain.

`Exchange.run` leads an exchange through its stages: begin a stage, wait, close it, go on. It waits until every client
that is still connected has answered, the time is up, or too few are left for a sum. A plain exchange has
one stage, `input`; a secure one has those of the protocol, and drives its state machine, `fedcore.secagg.ServerRound`.
A stage is closed by compare-and-swap in the database, with the clients that answered and those that were dropped; only
then does any client learn what follows. So a server that was killed comes back to the very sets of clients that it has
named: `restore` rebuilds the exchange from its messages and closures (`recovery.py`), and `run` resumes it.

Each client has one of six states (`stages.py`), and `Participants` is their only owner. They are necessary because of
the moment in which an update is taken: that lasts as long as a disk and a large addition do, and the client may vanish
meanwhile. From its admission on, an update counts whatever happens to its client, since half a vector cannot be
subtracted from a sum; so the stage waits for an admitted client, and one that leaves while its vector is added is a
survivor that will not answer any more. The protocol hears of losses in one place, just before its stage closes.

An update becomes an object, its receipt is committed, and then it is added to the sum. A client that gets no answer
sends the same again, and the server tells a repetition by the receipt. Were the vector added first and its receipt then
refused by a full disk, the repetition would add it a second time: a wrong model that nobody notices. This way round the
client sends only the manifest again, and nothing has been added. The sum grows in a file of the spool, of which a few
MiB at a time are in memory (`sums/sum_file.py`), and is gone with its process. It is written down with the clients in
it (`sums/masked_sum.py`), so a restart adds the vectors that have a receipt and are not in it: no other, and none
twice. Where adding itself fails half way the sum is spoilt, and with it the exchange, which is tried again.

A control message is checked and taken over at once, and counts with its receipt; to take one over twice changes
nothing. One that could not be kept is taken back when its stage closes.
"""
