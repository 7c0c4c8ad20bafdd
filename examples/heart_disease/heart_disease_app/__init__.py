"""A Flower app: federated averaging over four real hospitals, with logistic regression."""
