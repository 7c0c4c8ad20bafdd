"""Updates whose norm each client proves to be within a bound (`norm-proof`, docs/adr/0074-norm-proofs.md).

`parameters` has the encoding, `updates` makes words of an update and a mean of their sum. What is proved, and how, is
in `fedcore.secagg.norm`.
"""
