"""Boosted trees over a federation: what a site answers, and the ServerApp that asks."""
