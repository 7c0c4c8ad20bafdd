"""A run's ServerApp: its process, the messages to it, its files."""
