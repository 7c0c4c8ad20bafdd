"""Least squares, a few local steps on each client."""
