"""A client's records on disk: ledger and transcript, and the reports that read them."""
