"""A Flower app: FedAvg over four real hospitals, with logistic regression."""
