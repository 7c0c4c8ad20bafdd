"""Federated against the baselines: the same app in several modes, each in real processes, in one report.

What federated learning costs can only be said against something. Everything that a mode does not decide is therefore
equal in all of them: the model and its first weights, the examples of each site and their order, the number of examples
trained on, the test sets. `workers.problem` takes these from the app itself, `workers.schedule` says which examples are
taken when, and the report checks afterwards what was really equal.

A comparison goes through these modules: `plan` turns what was asked for into runs (modes x sweep x seeds), `app_facts`
finds out what has to be known of the app, `carry_out` goes through the runs in the folder that `folder` keeps, each by
its mode (`modes`), and `report` shows the results (`results`).

Seconds are measured on one machine over its loopback, where bytes cost nothing. `measure` therefore counts the bytes
that real processes exchange, and says from a model of the network how long the same would have taken elsewhere.
"""
