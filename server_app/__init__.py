"""The fedcore server: a FastAPI application that carries secure aggregation between clients."""
