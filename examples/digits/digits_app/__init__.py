"""A Flower app: FedAvg on scikit-learn's digits."""
