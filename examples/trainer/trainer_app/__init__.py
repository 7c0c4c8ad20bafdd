"""A Trainer of Hugging Face inside a ClientApp: a Flower app."""
