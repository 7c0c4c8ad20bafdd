"""Whole clients in one process against a server and an operator whom an adversary controls.

`data` is what a client has and what its local work does with it, `asks` what the adversary asks for, `server` how it
answers, `wire` what it gets to see, `play` puts them together.
"""
