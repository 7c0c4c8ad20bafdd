"""Connections over a network."""
