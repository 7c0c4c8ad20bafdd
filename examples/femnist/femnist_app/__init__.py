"""FEMNIST by writer with FedAvg, with or without differential privacy: a plain Flower app."""
