"""Simulated devices: speed, network, availability, and the virtual clock."""
