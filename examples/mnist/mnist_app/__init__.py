"""A Flower app: federated averaging on MNIST, with the models and the splits of McMahan et al. (2017)."""
