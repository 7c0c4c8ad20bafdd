"""Small apps as Flower's documentation teaches to write them: a module for each way, a linear model, NumPy alone."""
