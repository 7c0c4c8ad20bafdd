"""A Flower app: federated averaging over one half of each client's records."""
