"""Flower's Grid over exchanges, in secure and in plain mode."""
