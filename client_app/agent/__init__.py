"""The agent that a site runs: tasks, app updates, background training."""
