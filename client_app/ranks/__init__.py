"""Ranks: the processes that run the owner's ClientApp, on one machine or several, and what keeps them alive."""
