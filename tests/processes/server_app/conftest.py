"""A federation of four, whose server is a process of its own."""

from support.services import federation

__all__ = ["federation"]
