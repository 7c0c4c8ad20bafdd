"""A Flower app: FedAvg on Fashion-MNIST with a small CNN."""
