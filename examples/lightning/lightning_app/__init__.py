"""A Lightning module inside a ClientApp: a Flower app."""
