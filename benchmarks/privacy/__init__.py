"""Attacks on what surrounds an exchange: parts of `benchmarks/privacy_attacks.py`.

`federation` has the clients that are attacked, `reading` what counts as read, `crafted` models that single records out,
`differences` sums that differ by one client, `queries` statistics, `membership` what a final model tells.
"""
