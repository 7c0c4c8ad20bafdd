"""An app for the kill harness: its clients' updates are powers of four."""
