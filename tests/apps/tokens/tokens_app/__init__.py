"""A very small GPT on made-up tokens."""
