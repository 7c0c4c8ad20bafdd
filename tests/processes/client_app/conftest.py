"""What the processes of a client get from a server that the test leads."""

from support.scripted import federation, kit, kits, log, make_task, script

__all__ = ["federation", "kit", "kits", "log", "make_task", "script"]
