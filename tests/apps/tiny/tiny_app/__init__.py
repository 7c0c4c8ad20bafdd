"""A linear model on fixed data, as a Flower app that can be told to misbehave."""
