"""Worker processes: how they are started, what they say to the process that started them, and how they end.

`calls` makes messages of a class's methods, `failures` carries exceptions and exit statuses, `starting` starts and ends
processes. Messages are JSON lines (`fedcore.system.json_lines`), models are safetensors files, and nothing is pickled.
"""
