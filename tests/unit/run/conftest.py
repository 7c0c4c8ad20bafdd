"""Runs that a server leads, and a simulation."""

from support.leaders import leader, six

__all__ = ["leader", "six"]
