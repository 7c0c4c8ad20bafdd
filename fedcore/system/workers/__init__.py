"""Worker processes: how they are started, what they say to the process that started them, and how they end.

`starting` starts and ends processes, `child_processes` those that run commands, `calls` makes messages of a class's
methods and of functions, and `failures` carries exceptions and exit statuses. Messages are JSON lines
(`fedcore.system.json_lines`), models are safetensors files, and fedcore pickles nothing.
"""
