"""A Flower app: federated averaging on Fashion-MNIST with a small CNN."""
