"""Correlations of numbers over a federation."""
