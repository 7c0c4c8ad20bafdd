"""Signing in at the identity provider of an institution, for the commands of an operator or viewer."""
