"""Runs of an app in memory, through the real state machines."""

from support.simulated import simulate

__all__ = ["simulate"]
