"""The sum of an exchange's masked vectors: a file of words, and what of it is saved."""
