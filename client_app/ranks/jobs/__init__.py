"""Ranks in jobs of a cluster: the agent stays outside, with the keys and the connection to the server.

`group` submits a job through a `launcher` (`slurm`, `kubernetes`). In it `host` runs the group of ranks of one machine
or of several, as an agent there would, and starts ranks that failed again without leaving the job. Agent and host talk
through two files of a folder that both see (`mailbox`), so a node needs no network to the agent's machine. Models and
the app lie in that folder for the time of a task; keys, the ledger and masked updates never do.
"""
