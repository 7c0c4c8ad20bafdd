"""A federation of four, whose server is a process of its own."""

from support.serverside import federation

__all__ = ["federation"]
