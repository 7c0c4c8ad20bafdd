"""LoRA on a Hugging Face transformer with FedAvg over the adapter: a plain Flower app."""
