"""The agent that a site runs: its loop, app updates, background training."""
