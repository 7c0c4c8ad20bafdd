"""What runs in the processes of a mode: one worker for each site or rank, and one that evaluates.

`processes` forks and ends them and brings their reports back; `problem` and `schedule` say on what they train and in
which order, `training` how, `server_app` how an app that trains in its own way is centralized, and `models` with which
model a run begins and what the models of its rounds give.
"""
