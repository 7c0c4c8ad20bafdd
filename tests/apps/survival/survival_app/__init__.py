"""Cox regression on made-up patients."""
