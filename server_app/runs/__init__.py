"""Runs: the queue of submitted runs, and the one that is carried out, from its ServerApp's process to its event log.

`RunQueue` is what the routes talk to. It checks a run when it is submitted (`plan.py`), so that what cannot work in
this federation is refused while the operator looks on, and it leads the oldest run that waits. Whatever ends a run
(its app, an error, the operator, the end of the server), it gets exactly one final status, with the event that says so.

`RunOrchestrator` leads one run. The ServerApp speaks first, in JSON lines over a socket: which clients are there, and
please carry out this exchange. For each exchange the orchestrator waits for a cohort (`cohort.py`: who is online, has
the run's app and may train now; never fewer than the clients' policies ask for), makes the task, and tries again with
another cohort where an attempt fails and another one can help. What the ServerApp gets is the replies, their models by
path, or the reason why there are none.

Everything that happens goes into the event log, numbered at once and written in the background; operators follow it by
long polls. Models never pass through the database or the socket: they are files in the run's folder (`run_files.py`).
"""
