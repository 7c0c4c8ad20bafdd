"""The machine underneath: files, threads, processes and what they say to each other. Knows nothing of learning."""
