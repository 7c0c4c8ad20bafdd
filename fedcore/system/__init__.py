"""The machine underneath: files, threads, processes and what they say to each other. Knows nothing of learning.

`files` replaces files atomically and locks folders, `concurrency` keeps threads and tasks from being left behind,
`json_lines` carries messages to processes with user code, `process_group` joins ranks, `peers` finds out which
of them failed first.
"""
