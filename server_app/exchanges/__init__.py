"""Exchanges: one cohort, one sum. Their stages, the updates that come in, and the two kinds, secure and plain."""
