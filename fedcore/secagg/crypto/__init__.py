"""The cryptography of the protocol: keys, key schedule, secret sharing, masks, commitments."""
