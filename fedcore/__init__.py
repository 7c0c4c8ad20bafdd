"""Federated learning with secure aggregation: the library."""
