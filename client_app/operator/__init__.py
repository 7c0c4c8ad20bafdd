"""The operator's side: submitting a run to a server, following it, and fetching its model."""
