"""The fedcore server: a FastAPI application that carries secure aggregation between clients.

One process, one event loop, one federation. What an operator submits becomes a run; runs wait in the database and are
carried out one after another (`runs/`). A run's ServerApp is user code and lives in a process of its own; whenever it
asks for results of its clients, that is one exchange (`exchanges/`): a cohort, some stages, one sum. Clients and
operators reach all of it over HTTP (`http/`, `routes/`), and what must outlive a crash is in SQLite and in files
(`storage/`).

Two rules keep it simple. All state lives on the event loop, so between two awaits nothing changes; what takes long
(hashing, folding, the disk) is sent to threads that are handed all they need. And the server never calls a client:
clients poll, and a `Bell` wakes the polls that may have an answer now.

A restart carries nothing on. A run that was open is marked as interrupted, what lies in the spool is removed, and
clients that come back with a step of an exchange that ended are told so. The database keeps what a person or a client
may ask for later: runs, their events, who was asked, and the receipts of what was sent.
"""
