"""Shakespeare by speaking role with FedAvg: a Flower app."""
