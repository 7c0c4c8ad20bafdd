"""A Flower app whose clients train on random numbers."""
