"""A parameter server: shards hold the model, workers pull it and push gradients.

Each key is a tensor, and each shard holds a range of all keys laid one after another (Li et al. 2014, "Scaling
distributed machine learning with the parameter server"). A worker pulls the ranges of all shards, computes a gradient,
and pushes each shard its part; the shard makes a step of the app's own optimizer. When the step is made, and who may
read next, is one decision (`update_order`): after all workers have pushed (synchronous), after any of them
(asynchronous), or after any of them while nobody reads who is more than s steps ahead of the slowest. The last is stale
synchronous parallel (Ho et al. 2013), which bounds how old the model is that a gradient was computed from.

Shard 0 leads: it takes the workers' messages one after another and tells the other shards each action, so that all
carry out the same steps in the same order. All of them talk over gloo (`messages`). `server` is the process of a shard,
`worker` that of a worker, `task` what both are told and report. The mode that starts them is
`fedcore.comparison.modes.parameter_server`.
"""
