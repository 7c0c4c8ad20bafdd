"""Checkpoints of a simulation: written after each exchange, read when it resumes."""
