"""Survival over a federation: times until an event, out of counts on a grid of times that all sites know."""
