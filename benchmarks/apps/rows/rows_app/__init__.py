"""Columns of a table, as each client has them."""
