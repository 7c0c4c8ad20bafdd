"""The agent: what a site runs, from its tasks to its pending updates."""
