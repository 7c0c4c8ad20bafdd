"""Federated against the baselines: the same app, data, start and number of samples, in one report."""
