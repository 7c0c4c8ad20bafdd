"""Training that fails in one rank of one client."""
