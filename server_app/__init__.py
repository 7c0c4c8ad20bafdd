"""The fedcore server: a FastAPI application that carries secure aggregation between clients.

One process, one event loop, one federation. What an operator submits becomes a run; runs wait in the database and are
carried out one after another (`runs/`). A run's ServerApp is user code and lives in a process of its own; whenever it
asks for results of its clients, that is one exchange (`exchanges/`): a cohort, some stages, one sum. Clients and
operators reach all of it over HTTP (`http/`, `routes/`), and what must outlive a crash is in SQLite and in files
(`storage/`).

Two rules keep it simple. All state lives on the event loop, so between two awaits nothing changes; slow work
(hashing, adding vectors, the disk) runs in threads that get all they need as arguments. And the server never calls a
client: clients poll, and a `Bell` wakes the polls that may have an answer now.

Imports go down only, and import-linter holds them to it: `main` starts `serving`, which serves the `application` and
runs the `background` tasks; below it are `routes/`; then `http/` and `runs/`, which do not know each other; `views/`,
`exchanges/`, `services`; `members/` and `operation/`, and `storage/`.

After a restart, the server resumes the open run from the database: its journal of requests and the messages of its open
exchange. The spool is emptied. The database also keeps what a person may ask for later: runs, their events, and the
cohorts of exchanges.
"""
