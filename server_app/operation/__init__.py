"""How a server is watched while it runs: metrics, traces, and its certificate."""
