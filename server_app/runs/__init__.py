"""Runs: the queue of submitted runs, and the one that is carried out, from its ServerApp's process to its event log.

`RunQueue` is what the routes talk to. It checks a run when it is submitted (`plan.py`), so that what cannot work in
this federation is refused while the operator looks on; `RunWorker` leads the oldest run that waits. Whatever ends a
run (its app, an error, the operator), it gets exactly one final status, with the event that says so. No error ends the
worker, and what has to be written is tried until it is (`persistence.py`).

`RunOrchestrator` leads one run. The ServerApp speaks first, in JSON lines over a socket: which clients are there, and
please carry out this exchange. For each exchange the orchestrator waits for a cohort (`cohort.py`: who is online, has
the run's app and may train now; never fewer than the clients' policies ask for), makes the task, and tries again with
another cohort where an attempt fails and another one can help. What the ServerApp gets is the replies, their models by
path, or the reason why there are none.

What the ServerApp asks for is journaled (`journal.py`), and what exchanges tell and cost is folded from their ends
(`run_state.py`): after a restart, or the death of its process, the app is started again, hears the same answers again,
and the run goes on where it was. Of several servers over one database one leads at a time (`leadership.py`).

Everything that happens goes into the event log, numbered at once and written in the background; operators follow it by
long polls. Models never pass through the database or the socket: they are objects, and files
for the app to read (`run_files.py`). What is kept of runs that have ended, and how long, says `retention.py`.
"""
