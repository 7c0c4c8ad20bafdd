"""The model that the ServerApp of an app asks its clients with first, derived where the server is not trusted with it.

`derive` starts a process in a sandbox, without data and network, in which the ServerApp runs as it does on the server
(`fedcore.flower.start`) until it hands over its first model. Nothing is sent; the SHA-256 of the model is the result.
"""
