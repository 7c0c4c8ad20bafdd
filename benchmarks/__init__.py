"""Benchmarks: each prints ratios against a floor or a peer, measured in one run."""
