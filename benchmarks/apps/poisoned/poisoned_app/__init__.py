"""MNIST with clients that poison the model."""
