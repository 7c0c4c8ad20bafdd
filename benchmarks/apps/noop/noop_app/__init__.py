"""A plain Flower app whose clients hand the model back almost as it was."""
