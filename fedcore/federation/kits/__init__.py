"""Kits: each party's keys, certificates, policy and roster as files."""
