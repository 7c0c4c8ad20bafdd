"""A Flower app: federated averaging on scikit-learn's digits."""
