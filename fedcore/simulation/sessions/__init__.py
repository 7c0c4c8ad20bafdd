"""The protocol's client sessions of a simulated round, in this process or spread over several."""
