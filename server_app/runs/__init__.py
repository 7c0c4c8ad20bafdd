"""Runs: the queue of submitted runs, and the one that is carried out, from its ServerApp's process to its event log.

The routes call `RunQueue`. It checks a run when it is submitted (`plan.py`), so that a run that cannot work in this
federation is refused while the operator looks on; `RunWorker` leads the oldest run that waits. Whether its app, an
error or the operator ends a run, it gets exactly one final status, with the event that says so. No error ends the
worker, and it tries to write what has to be written until that succeeds (`persistence.py`).

`RunOrchestrator` leads one run. The ServerApp speaks first, in JSON lines over a socket: which clients are there, and
please carry out this exchange. For each exchange the orchestrator waits for a cohort (`exchanges/cohort.py`: clients
that are online, have the run's app and may train now; never fewer than the clients' policies ask for), makes the task,
and tries again with another cohort if an attempt fails and another one can help. The ServerApp gets the replies, their
models by path, or the reason why there are none.

The journal (`journal.py`) keeps requests and replies, and the state of the run is folded from the ends of its exchanges
(`fedcore.run.engine.state`): after a restart, or the death of its process, the app is started again, gets the same
replies, and the run continues. Of several servers over one database one leads at a time (`leadership.py`).

Everything that happens goes into the event log, numbered at once and written in the background; operators follow it by
long polls. Models never pass through the database or the socket: they are objects, and files for the app to read
(`files/run_files.py`). `retention.py` says what stays of runs that have ended, and how long.
"""
