"""Strategies that one weighted mean is enough for, by their names in the run config."""
