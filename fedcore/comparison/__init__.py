"""Federated against the baselines: the same app in several modes, each in real processes, in one report.

The cost of federated learning can only be stated relative to something else. So everything that a mode does not decide
is equal in all of them: the model and its first weights, the examples of each site and their order, the number of
examples trained on, the test sets. `workers.problem` takes these from the app itself, `workers.schedule` says which
examples are taken when, and the report checks afterwards what was really equal.

`plan` turns a job into runs (modes x sweep x seeds), `app_probe` determines what they need to know of the app,
`execution` goes through the runs in the folder of `folder`, each by its mode (`modes`), and `report` shows the results
(`results`).

Seconds are measured on one machine over its loopback, where bytes cost nothing. `measure` therefore counts the bytes
that real processes exchange, and says from a model of the network how long the same would have taken elsewhere.
"""
