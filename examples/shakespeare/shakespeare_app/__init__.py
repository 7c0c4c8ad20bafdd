"""Shakespeare by speaking role with FedAvg: a plain Flower app."""
