"""A model whose every weight takes the same step on every client: whatever else a sum shows is noise."""
