"""Runs: the queue of submitted runs, and the one that is carried out, from its ServerApp's process to its event log."""
