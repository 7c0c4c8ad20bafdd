"""How people watch a server: metrics, traces, its certificate, the health of its storage, and what it can see."""
