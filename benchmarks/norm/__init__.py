"""Forgeries of a proof that an update's norm is within a bound."""
