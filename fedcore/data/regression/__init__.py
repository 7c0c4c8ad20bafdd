"""Generalised linear models over a federation, by Newton steps on sums over clients."""
