"""What `import fedcore` offers to a script or a notebook: runs and comparisons as calls, and their results.

`simulating` runs an app in memory, `comparing` trains it in several modes, `federation` speaks to a federation of real
processes, here or elsewhere. Each returns an object that shows itself: `result` for one run, `comparing` for several.
Nothing here decides what a run may do; the same functions do, as for the commands.
"""
