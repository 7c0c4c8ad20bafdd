"""A Flower app whose model is a few large tensors, trained by one step of plain SGD."""
