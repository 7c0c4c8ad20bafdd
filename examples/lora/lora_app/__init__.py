"""LoRA on a Hugging Face transformer with FedAvg over the adapter: a Flower app."""
