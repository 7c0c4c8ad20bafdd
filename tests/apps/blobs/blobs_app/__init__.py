"""Two clouds of points, over sites of unequal size."""
