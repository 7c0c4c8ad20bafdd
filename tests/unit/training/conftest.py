"""Tests of training draw from one seed."""

from support.seeded import drawn_from_one_seed

__all__ = ["drawn_from_one_seed"]
