"""FEMNIST by writer with FedAvg, with or without differential privacy: a Flower app."""
