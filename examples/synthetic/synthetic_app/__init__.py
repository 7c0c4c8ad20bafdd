"""Synthetic(alpha, beta) of FedProx, with devices that are late: a Flower app."""
