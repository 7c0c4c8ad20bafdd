"""The client's records on disk: ledger, journal, transcript, and what is read out of them."""
